"""KV codecs of the MLX backend: one file a family, one entry in `CODECS` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from refract.backends.mlx.codecs.affine import Affine
from refract.backends.mlx.codecs.base import Codec
from refract.backends.mlx.codecs.blocks import BLOCK, IQ4NL, Q8_0, Ranged, Symmetric
from refract.backends.mlx.codecs.channels import ChannelMinMax
from refract.backends.mlx.codecs.codebooks import angle_levels
from refract.backends.mlx.codecs.dense import Dense
from refract.backends.mlx.codecs.fp8 import FP8
from refract.backends.mlx.codecs.hybridpc import HybridPC, angle_bits
from refract.backends.mlx.codecs.minmax import MinMax
from refract.backends.mlx.codecs.nuq import NUQ
from refract.backends.mlx.codecs.polar import Polar
from refract.backends.mlx.codecs.rfsn import RFSN
from refract.backends.mlx.codecs.rotations import Rotated, rotation
from refract.backends.mlx.codecs.sketch import Kind, Sketch, Sketched, projection
from refract.backends.mlx.codecs.turbo import Turbo
from refract.errors import KVUnsupportedError
from refract.kv import Format, KVConfig

Factory = Callable[[Format, int], Codec]  # (format, head dimension) -> codec


def _affine(format_: Format, dim: int) -> Codec:
    group = int(format_.option("g"))
    _require_groups(format_, dim, group)
    return Affine(bits=format_.spec.size, group=group)


def _block(codec: Codec) -> Factory:
    def build(format_: Format, dim: int) -> Codec:
        _require_groups(format_, dim, BLOCK)
        return codec

    return build


def _dense(format_: Format, dim: int) -> Codec:
    return Dense(name=format_.name)


def _fp8(format_: Format, dim: int) -> Codec:
    return FP8(kind=format_.name.removeprefix("fp8_"), dim=dim, scale=format_.option("scale"))


def _minmax(format_: Format, dim: int) -> Codec:
    if format_.option("axis") == "channel":
        return ChannelMinMax(bits=format_.spec.size, tokens=int(format_.option("g")))
    if format_.option("g") != "head":
        _require_groups(format_, dim, int(format_.option("g")))
    return MinMax(bits=format_.spec.size, dim=dim, group=format_.option("g"))


def _hybridpc(format_: Format, dim: int) -> Codec:
    bits = int(format_.option("bits"))
    for level, count in enumerate(angle_bits(bits)[1:], 2):
        angle_levels(level, count)
    return HybridPC(ratio=format_.option("ratio"), bits=bits, dim=dim)


def _nuq(format_: Format, dim: int) -> Codec:
    codec = NUQ(bits=format_.spec.size, dim=dim, axis=format_.option("axis"), outliers=format_.option("outliers"))
    if 2 * codec.kept > codec.size:
        raise KVUnsupportedError(
            f"outliers={codec.outliers} keeps {codec.kept} of {codec.size} values aside",
            hint="use a share of a few per cent, such as outliers=0.01",
        )
    return codec


def _polar(format_: Format, dim: int) -> Codec:
    bits = tuple(int(level) for level in format_.option("bits").split("-"))
    _require_groups(format_, dim, 1 << len(bits))
    if format_.option("angles") == "opt":
        for level, count in enumerate(bits[1:], 2):
            angle_levels(level, count)
    return Polar(bits=bits, angles=format_.option("angles"))


def _rfsn(format_: Format, dim: int) -> Codec:
    group = int(format_.option("g"))
    _require_groups(format_, dim, group)
    return RFSN(bits=format_.spec.size, group=group)


def _turbo(format_: Format, dim: int) -> Codec:
    bits = format_.spec.size - int(format_.option("prod"))  # the sketch takes one
    codec = Turbo(bits=bits, dim=dim, codebook=format_.option("codebook"), scale=format_.option("scale"))
    _ = codec.levels  # refuses a head dimension without a codebook
    return codec


CODECS: Mapping[str, Factory] = {
    "f32": _dense,
    "f16": _dense,
    "bf16": _dense,
    "q8_0": _block(Q8_0()),
    "q5_1": _block(Ranged(bits=5)),
    "q5_0": _block(Symmetric(bits=5)),
    "q4_1": _block(Ranged(bits=4)),
    "q4_0": _block(Symmetric(bits=4)),
    "iq4_nl": _block(IQ4NL()),
    "fp8_e4m3": _fp8,
    "fp8_e5m2": _fp8,
    **{f"affine{bits}": _affine for bits in (2, 3, 4, 5, 6, 8)},
    **{f"turbo{bits}": _turbo for bits in range(1, 9)},
    "polar": _polar,
    "hybridpc": _hybridpc,
    **{f"rfsn{bits}": _rfsn for bits in range(2, 9)},
    **{f"minmax{bits}": _minmax for bits in (2, 3, 4, 8)},
    **{f"nuq{bits}": _nuq for bits in (2, 3, 4)},
}


def _require_groups(format_: Format, dim: int, group: int) -> None:
    if dim % group:
        raise KVUnsupportedError(
            f"{format_} works on groups of {group} values, and this model's head dimension {dim} is not a multiple",
            hint="choose a smaller group or another format, such as turbo4",
        )


def make_codec(format_: Format, dim: int, *, rot: str = "auto", seed: int = 0, qjl: str = "0") -> Codec:
    """The codec of `format_` for head dimension `dim`, behind the rotation `rot` drawn from `seed`.

    "auto" rotates what the catalogue calls rotated, and nothing else. `qjl` is the modifier's value: what the codec
    leaves is sketched as well.

    Raises: KVUnsupportedError when the format is not built here, or it or the rotation does not fit the head dimension.
    """
    if format_.name not in CODECS:
        raise KVUnsupportedError(f"the mlx backend has no {format_.name} yet", hint="it has " + " ".join(CODECS))
    prod = dict(format_.options).get("prod") == "1"
    if not prod and qjl == "0":
        return _rotated(format_, dim, rot, seed)
    sketch = _sketch(qjl if qjl != "0" else "gauss", dim, seed)
    alone = prod and format_.spec.size == 1  # its one bit is the sketch's
    codec = None if alone else _rotated(format_, dim, rot, seed)
    return Sketched(codec=codec, sketch=sketch, name=str(replace(format_, options=_without_rot(format_))))


def _without_rot(format_: Format) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in format_.options if name != "rot")


def _sketch(qjl: str, dim: int, seed: int) -> Sketch:
    """The sketch that the modifier's value asks for: gauss, orth:m=32."""
    kind, _, count = qjl.partition(":m=")
    sketch = Sketch(kind=cast("Kind", kind), dim=dim, count=int(count or dim), seed=seed)
    projection(sketch)  # refuses a count that the head dimension does not allow
    return sketch


def _rotated(format_: Format, dim: int, rot: str, seed: int) -> Codec:
    codec = CODECS[format_.name](format_, dim)
    if rot == "none" or (rot == "auto" and not format_.spec.rotated):
        return replace(codec, rotation="none") if isinstance(codec, Turbo) else codec
    rotation(dim, seed, rot)  # refuses a head dimension that the rotation does not fit
    if isinstance(codec, Turbo):
        return replace(codec, rotation=rot, seed=seed)
    return Rotated(codec=codec, rotation=rot, seed=seed)


def side_codecs(kv: KVConfig, dim: int) -> tuple[tuple[Codec, Codec], tuple[Codec, Codec]]:
    """((K's codec, that of its boundary layers), (V's, that of its boundary layers)); boundary layers are not rotated.

    Raises: KVUnsupportedError as `make_codec` does.
    """
    k = make_codec(kv.k, dim, rot=kv.get("rot_k"), seed=kv.seed, qjl=kv.get("qjl"))
    v = make_codec(kv.v, dim, rot=kv.get("rot_v"), seed=kv.seed)
    k_edge, v_edge = (make_codec(Format(name=name), dim) for name in kv.boundary_types)
    return (k, k_edge), (v, v_edge)


def layer_codecs(kv: KVConfig, dim: int, count: int) -> tuple[tuple[Codec, Codec], ...]:
    """(K's codec, V's) of each of `count` KV layers; a layer that `layers` spares holds f16, or what is no compression.

    Raises: KVUnsupportedError as `make_codec` and `KVConfig.own_layers` do.
    """
    chosen, f16 = kv.layers(count), make_codec(Format(name="f16"), dim)
    sides = []
    for (codec, edge), stored, own in zip(side_codecs(kv, dim), (kv.k, kv.v), kv.own_layers(count), strict=True):
        spared = f16 if stored.compressed else codec
        rest = [edge if layer in chosen else spared for layer in range(count)]
        sides.append([codec if layer in own else rest[layer] for layer in range(count)])
    return tuple(zip(*sides, strict=True))
