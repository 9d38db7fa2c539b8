"""The KV cache of a running vLLM server, as it says itself, held against what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from refract.backends._kv_heads import kv_heads
from refract.backends._source import ModelSource
from refract.backends.vllm.http_facts import ServerFacts
from refract.backends.vllm.kvtypes import bytes_per_value
from refract.errors import ConfigMismatchError
from refract.kv import KVConfig
from refract.work import EffectiveKV

_SAME = {"fp8": "fp8_e4m3", "float16": "f16", "bfloat16": "bf16"}
_OWN = "auto"  # the model's own type
_WIDTHS = (2, 4)  # bytes of a value that the model's own type can have


def same_type(asked: str, found: str) -> bool:
    """Whether two of vLLM's names for a KV type mean the same."""
    return _SAME.get(asked, asked) == _SAME.get(found, found)


def check_skipped(kv: KVConfig, layers: int, facts: ServerFacts) -> None:
    """Nothing, when the server spares the layers that `kv` spares.

    For TurboQuant vLLM adds the first and last two layers of dense models to those it is told, and says so only in
    its configuration. Raises: ConfigMismatchError.
    """
    if _is_plain(facts.cache_dtype) or not all(name.isdecimal() for name in facts.skipped):
        return
    spared = frozenset(range(layers)) - kv.own_layers(layers)[0]
    found = frozenset(map(int, facts.skipped))
    if spared != found:
        raise ConfigMismatchError(
            f"{kv} spares {_listed(spared)}, the server spares {_listed(found)}",
            hint="write the candidate with boundary=N for its first and last N layers, or start the server with"
            " --kv-cache-dtype-skip-layers",
        )


def _listed(layers: frozenset[int]) -> str:
    return f"layers {', '.join(map(str, sorted(layers)))}" if layers else "no layer"


def effective(source: ModelSource, kv: KVConfig, asked: str, facts: ServerFacts, notes: Sequence[str]) -> EffectiveKV:
    """What the server allocated, for a type that is `asked` under vLLM's name."""
    compressed = 0 if _is_plain(facts.cache_dtype) else source.layers - len(facts.skipped)
    values = 2 * kv_heads(source) * source.head_dim
    own = own_width(source, facts, values)
    stored = own if _is_plain(facts.cache_dtype) else bytes_per_value(facts.cache_dtype, source.head_dim)
    name = _SAME.get(facts.cache_dtype, facts.cache_dtype)
    return EffectiveKV(
        k=name,
        v=name,
        layers=source.layers,
        layers_compressed=compressed,
        bytes_per_token=values * (stored * compressed + own * (source.layers - compressed)),
        notes=(*_said(kv, asked, facts), *notes),
    )


def own_width(source: ModelSource, facts: ServerFacts, values: int) -> float:
    """Bytes of a value in the model's own type: the width at which as many blocks fit as there are, else 2."""
    for width in _WIDTHS:
        block = values * width * source.layers * facts.block_size
        if _is_plain(facts.cache_dtype) and block and facts.memory_bytes // block == facts.blocks:
            return float(width)
    return float(_WIDTHS[0])


def _said(kv: KVConfig, asked: str, facts: ServerFacts) -> list[str]:
    notes = [f"{kv} → {facts.cache_dtype}, read from the server"]
    if facts.skipped:
        notes.append(f"layers {', '.join(facts.skipped)} keep the model's own type")
    caching = "on, and every text has a salt of its own" if facts.prefix_caching else "off"
    return [*notes, f"prefix caching is {caching}"]


def _is_plain(name: str) -> bool:
    return name in (_OWN, "float16", "bfloat16", "float32")
