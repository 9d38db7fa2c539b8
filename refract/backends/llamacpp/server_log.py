"""What llama.cpp's log at level 4 says of the KV cache it allocated (b11434, and the turboquant fork)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from refract.errors import ConfigMismatchError, EngineError
from refract.formats import FORMATS
from refract.kv import KVConfig
from refract.work import EffectiveKV

_MIB = 1 << 20
_ROUNDING_MIB = 0.0051  # half of the last digit printed
_BLOCK = 32  # values
_CONTEXT = re.compile(r"llama_context: n_ctx +=")
_CACHE = re.compile(
    r"llama_kv_cache: size = +[\d.]+ MiB \( *(\d+) cells, +(\d+) layers.*?\), "
    r"K \((\w+)\): +([\d.]+) MiB, V \((\w+)\): +([\d.]+) MiB"
)
_ROTATED = re.compile(r"llama_kv_cache: (?:n_rot|attn_rot)_([kv]) = (\d+)")
_NUMBER = re.compile(r"llama_context: (n_seq_max|n_ctx_seq|n_batch|n_ubatch) += (\d+)")
_FLASH = re.compile(r"(?:flash_attn += (enabled|disabled)|Flash Attention was auto, set to (enabled|disabled))")
_SUBSTITUTED = re.compile(
    r"^.*?((?:llama_kv_cache|llama_context)\S*:? .*(?:adaptive|asymmetric|falling back).*)$", re.M
)
_PADDED = re.compile(r"llama_kv_cache: (turbo zero-padding .*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLine:
    """One allocated cache; models with sliding windows have two."""

    cells: int
    layers: int
    k: str
    k_mib: float
    v: str
    v_mib: float

    @property
    def bytes_per_token(self) -> float:
        """Of K and V over its layers."""
        return sum(self._side(name, mib) for name, mib in ((self.k, self.k_mib), (self.v, self.v_mib)))

    def _side(self, name: str, mib: float) -> float:
        """One side's bytes a token: exact where the type's bits give a whole number of blocks, else as printed.

        The log rounds to 0.01 MiB; a type that is padded has more bytes than its bits say.
        """
        printed = mib * _MIB / self.cells
        bits = FORMATS[name].bits_per_value() if name in FORMATS else None
        if bits is None:
            return printed
        exact = round(printed / self.layers * 8 / bits / _BLOCK) * _BLOCK * bits / 8 * self.layers
        return exact if abs(exact - printed) <= _ROUNDING_MIB * _MIB / self.cells else printed


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLog:
    """All caches of a context, whether K and V are stored rotated, and how attention is computed."""

    caches: tuple[CacheLine, ...]
    rotated_k: bool
    rotated_v: bool
    flash_attention: bool | None
    remarks: tuple[str, ...]
    numbers: Mapping[str, int] = field(default_factory=dict)  # of the context, by llama.cpp's names


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedContext:
    """What was asked of a context beside its KV types; None for what the user's own flags decide.

    Sequences are those that a server decodes at once; `ubatch` is at most the batch it is cut from.
    """

    flash_attention: bool | None
    ubatch: int | None
    sequences: int | None


def read_cache_log(log: str) -> CacheLog:
    """What the log says of its last context: a first one may have been made only to see what fits.

    Raises: EngineError when it names no KV cache.
    """
    numbers = {name: int(value) for name, value in _NUMBER.findall(log)}  # later ones stand
    starts = [match.start() for match in _CONTEXT.finditer(log)]
    log = log[starts[-1] :] if starts else log
    caches = tuple(
        CacheLine(cells=int(cells), layers=int(layers), k=k, k_mib=float(k_mib), v=v, v_mib=float(v_mib))
        for cells, layers, k, k_mib, v, v_mib in _CACHE.findall(log)
    )
    if not caches or not all(cache.cells and cache.layers for cache in caches):
        raise EngineError(
            "llama-server's log does not say what KV cache it allocated",
            hint="use a build near b11434; a flag that changes the log level would hide it",
        )
    rotated = {side for side, size in _ROTATED.findall(log) if int(size)}
    flash = [one or other for one, other in _FLASH.findall(log)]
    remarks = [" ".join(text.split()) for pattern in (_SUBSTITUTED, _PADDED) for text in pattern.findall(log)]
    return CacheLog(
        caches=caches,
        rotated_k="k" in rotated,
        rotated_v="v" in rotated,
        flash_attention=flash[-1] == "enabled" if flash else None,
        remarks=tuple(dict.fromkeys(remarks)),
        numbers=numbers,
    )


def effective_kv(kv: KVConfig, found: CacheLog, *, notes: tuple[str, ...] = ()) -> EffectiveKV:
    """What was allocated, summed over all caches.

    Raises: ConfigMismatchError when a cache is of other types than asked for, or rotated against the request.
    """
    for cache in found.caches:
        if (cache.k, cache.v) != (kv.k.name, kv.v.name):
            raise ConfigMismatchError(
                f"asked for {kv}, llama-server allocated ctk={cache.k},ctv={cache.v} for {cache.layers} layers",
                hint="leave KV types out of the extra flags, and variables that change them out of the environment",
            )
    if unrotated(kv) and (found.rotated_k or found.rotated_v):
        raise ConfigMismatchError("asked for rot=none, llama-server rotates", hint="use a build near b11434")
    compressed = sum(c.layers for c in found.caches if _compressed(c.k) or _compressed(c.v))
    return EffectiveKV(
        k=found.caches[0].k,
        v=found.caches[0].v,
        layers=sum(cache.layers for cache in found.caches),
        layers_compressed=compressed,
        bytes_per_token=sum(cache.bytes_per_token for cache in found.caches),
        notes=(*_notes(kv, found), *notes),
    )


def check_context(found: CacheLog, asked: AskedContext, *, tokens: int) -> None:
    """Nothing, where the log confirms all that was asked for and a sequence of `tokens` fits.

    Raises: ConfigMismatchError, which names what differs.
    """
    ubatch = None if asked.ubatch is None else min(asked.ubatch, found.numbers.get("n_batch", asked.ubatch))
    for what, wanted, real in (
        ("flash attention", asked.flash_attention, found.flash_attention),
        ("a ubatch of", ubatch, found.numbers.get("n_ubatch")),
        ("sequences at once:", asked.sequences, found.numbers.get("n_seq_max")),
    ):
        if wanted is not None and wanted != real:
            answer = "does not say" if real is None else f"has {_word(real)}"
            raise ConfigMismatchError(f"asked for {what} {_word(wanted)}, llama.cpp {answer}")
    if found.numbers.get("n_ctx_seq", tokens) < tokens:
        raise ConfigMismatchError(
            f"sequences of {tokens} tokens were asked for, llama.cpp holds {found.numbers['n_ctx_seq']}",
            hint="leave -c out of the extra flags",
        )


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def unrotated(kv: KVConfig) -> bool:
    """Whether the configuration asks for storing without rotation."""
    return "none" in (kv.get("rot_k"), kv.get("rot_v"))


def _notes(kv: KVConfig, found: CacheLog) -> tuple[str, ...]:
    notes = []
    if kv.k.compressed or kv.v.compressed:
        sides = [name for name, on in (("K", found.rotated_k), ("V", found.rotated_v)) if on]
        notes.append(f"stored rotated: {' and '.join(sides)}" if sides else "stored without rotation")
    if found.flash_attention is not None:
        notes.append(f"flash attention {'on' if found.flash_attention else 'off'}")
    if len(found.caches) > 1:
        parts = ", ".join(f"{cache.layers} layers of {cache.cells:,} cells" for cache in found.caches)
        notes.append(f"{len(found.caches)} caches: {parts}")
    return (*notes, *found.remarks)


def _compressed(name: str) -> bool:
    return name not in FORMATS or not FORMATS[name].dense
