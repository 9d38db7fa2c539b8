"""What the caches of a loaded model really do: two tokens go through it, and every layer has to pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx

from refract.backends.mlx.cache import LayerSpec, SequenceCache
from refract.backends.mlx.codecs.base import Codec
from refract.backends.mlx.codecs.rotations import Rotated, kind_of
from refract.backends.mlx.codecs.sketch import Sketched
from refract.backends.mlx.codecs.turbo import Turbo
from refract.backends.mlx.key_modifiers import KeyModifier, reduced
from refract.backends.mlx.model import SplitModel
from refract.backends.mlx.retention import EVERYTHING, Retention
from refract.backends.mlx.sides import SideSpec, half
from refract.errors import ConfigMismatchError, ModelError
from refract.work import EffectiveKV

# How far what is read may lie from what the codec leaves: a share of the codec's own error, and of the whole as much as
# arithmetic in 16 bits needs. The finest codec, of 8 bits, errs by five times the latter.
_OF_ERROR, _OF_NORM = 0.1, 1e-3
_MODIFIER_NOTES = {
    "kbias": "the rotated bias of the key projection is taken off K before it is stored and put back on reading",
    "prerope": "K is stored as it was before its rotary embedding, which is applied on reading",
    "kmean": "K is stored less the mean of the first 1, 2, 4, … tokens; these means take 16 bits a value each",
    "kcal": "the dimensions of the rotated K are scaled by what its first tokens showed of them",
}


class RecordingCache(SequenceCache):
    """A layer's cache that remembers, part by part, what it was given and what it last gave back."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.given: list[tuple[mx.array, mx.array]] = []
        self.read: tuple[mx.array, mx.array] | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """As the cache it is, and remembers it."""
        self.given.append((keys, values))
        self.read = super().update_and_fetch(keys, values)
        return self.read


def probe(model: SplitModel, specs: Sequence[LayerSpec], own: tuple[int, int]) -> tuple[EffectiveKV, int]:
    """What the caches hold after some tokens went through the model, and the width of its logits.

    Two tokens, one at a time; where some stay raw as many more, so that a few have left the newest ones.

    `own`: (K, V) a layer to take the side's format from.

    Raises: ModelError when a layer never wrote to its cache; ConfigMismatchError as `verify` does.
    """
    caches = [RecordingCache(spec) for spec in specs]
    raw = max(_waiting(side) for spec in specs for side in spec.sides)
    for tokens in ([0] * (raw + 1), [1]):
        logits = model.head(model.trunk(mx.array([tokens]), cache=caches)[:, -1:])
        mx.eval(logits)
    unused = [layer for layer, cache in enumerate(caches) if cache.read is None]
    if unused:
        raise ModelError(
            f"layers {unused} of this model keep their keys and values elsewhere, out of a codec's reach",
            hint="use another engine for this architecture",
        )
    verify(caches)
    size = sum(
        given.shape[1] * given.shape[3] * codec.bits_per_value / 8
        for cache in caches
        for given, codec in zip(cache.given[0], (cache.spec.k, cache.spec.v), strict=True)
    )
    effective = EffectiveKV(
        k=specs[own[0]].k.name,
        v=specs[own[1]].v.name,
        layers=len(specs),
        layers_compressed=sum(spec.compressed for spec in specs),
        bytes_per_token=size,
        notes=(
            *_window_notes(specs),
            *_rotation_notes(caches, own),
            *_kept_notes(specs, own),
            *_other_notes(specs, own),
        ),
    )
    return effective, int(logits.shape[-1])


def _waiting(side: SideSpec) -> int:
    """Tokens that a side may hold before it codes one, and before all its modifiers act."""
    kept = side.retention.sink + side.retention.residual + side.group - 1
    return kept + max((modifier.warmup for modifier in side.modifiers), default=0)


def verify(caches: Sequence[RecordingCache]) -> None:
    """Nothing, where every cache gives back what its codecs leave of what it was given, and less than that itself
    where a codec compresses.

    Raises: ConfigMismatchError, which names the first layer and side that does not.
    """
    for layer, cache in enumerate(caches):
        for side, spec, parts, read in zip(
            "KV", cache.spec.sides, zip(*cache.given, strict=True), cache.read or (), strict=True
        ):
            codec = spec.codec
            found = difference(codec, parts, read, modifiers=spec.modifiers, retention=spec.retention)
            if found is not None:
                raise ConfigMismatchError(
                    f"layer {layer} should store {side} as {codec.name}, and {found}",
                    hint="this is a bug; please report it with the output of: refract selftest",
                )


def difference(
    codec: Codec,
    parts: Sequence[mx.array],
    read: mx.array,
    *,
    modifiers: tuple[KeyModifier, ...] = (),
    retention: Retention = EVERYTHING,
) -> str | None:
    """What is wrong with `read` (B, H, n, D) as what `codec` leaves of `parts` written one after the other, or None.

    `modifiers` act before it and are undone; what `retention` keeps raw is as it came, in 16 bits.
    """
    raw = mx.concatenate(list(parts), axis=2).astype(mx.float32)
    if read.shape != raw.shape:
        return f"gives back the shape {read.shape} for {raw.shape}"
    left = _left(SideSpec(codec=codec, modifiers=modifiers, retention=retention), raw)
    given_back = read.astype(mx.float32)
    allowed = _OF_ERROR * _norm(left - raw) + _OF_NORM * _norm(raw)
    if not _norm(given_back - left) <= allowed:
        return f"gives back what lies {_norm(given_back - left) / max(_norm(raw), 1e-30):.2g} of its norm from that"
    if codec.bits_per_value < 16 and _norm(raw) > 0.0 and bool(mx.array_equal(given_back, raw)):
        return "gives back what it was given, uncompressed"
    return None


def _left(side: SideSpec, raw: mx.array) -> mx.array:
    """What a sound cache gives back of `raw`, written in parts of which the last was a single token."""
    states, sink, stop = [modifier.start() for modifier in side.modifiers], side.sink, raw.shape[2]
    if side.keeps_raw:
        raw, stop = half(raw), side.settled(0, stop)
        sink = min(sink, stop)
        reduced(states, raw[:, :, :sink], 0)  # they learn from what is kept as well
    coded = side.through(raw[:, :, sink:stop], states, sink).astype(mx.float32)
    return mx.concatenate([raw[:, :, :sink], coded, raw[:, :, stop:]], axis=2)


def _norm(x: mx.array) -> float:
    return float(mx.sqrt(mx.sum(mx.square(x))))


def _window_notes(specs: Sequence[LayerSpec]) -> Iterator[str]:
    for window in sorted({spec.window for spec in specs if spec.window is not None}):
        count = sum(spec.window == window for spec in specs)
        yield f"{count} layers attend to {window} tokens only, compressed like the others"


def _rotation_notes(caches: Sequence[RecordingCache], own: tuple[int, int]) -> Iterator[str]:
    k, v = (caches[layer] for layer in own)
    for side, codec, (given, _) in (("K", k.spec.k, k.given[0]), ("V", v.spec.v, v.given[0][::-1])):
        if (acting := rotation_of(codec, given.shape[-1])) is not None:
            yield f"{side} is rotated by {acting[0]}, seed {acting[1]}"
        if isinstance(codec, Sketched):
            sketch, of = codec.sketch, "what its codes leave" if codec.codec else "itself"
            yield f"{side} is stored with {sketch.count} signs ({sketch.kind}, seed {sketch.seed}) of {of}"


def _kept_notes(specs: Sequence[LayerSpec], own: tuple[int, int]) -> Iterator[str]:
    for modifier in specs[own[0]].modifiers:
        yield _MODIFIER_NOTES[modifier.name]
    if note := specs[min(own)].retention.note:
        yield note


def rotation_of(codec: Codec, dim: int) -> tuple[str, int] | None:
    """(The kind of rotation that acts before the codec at head dimension `dim`, its seed), None without one."""
    if isinstance(codec, Sketched):
        return None if codec.codec is None else rotation_of(codec.codec, dim)
    if isinstance(codec, Turbo | Rotated) and codec.rotation != "none":
        return kind_of(codec.rotation, dim), codec.seed
    return None


def _other_notes(specs: Sequence[LayerSpec], own: tuple[int, int]) -> Iterator[str]:
    for side, names, layer in zip("KV", zip(*((s.k.name, s.v.name) for s in specs), strict=True), own, strict=True):
        others = [f"{other} ({name})" for other, name in enumerate(names) if name != names[layer]]
        if others:
            yield f"{side} is stored otherwise in layers {', '.join(others)}"
