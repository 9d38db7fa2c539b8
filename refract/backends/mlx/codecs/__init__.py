"""KV codecs of the MLX backend: one file a family, one entry in `CODECS` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refract.backends.mlx.codecs.affine import Affine
from refract.backends.mlx.codecs.base import Codec
from refract.backends.mlx.codecs.blocks import BLOCK, Q4_0, Q8_0
from refract.backends.mlx.codecs.dense import Dense
from refract.backends.mlx.codecs.turbo import CENTROIDS, Turbo
from refract.errors import KVUnsupportedError
from refract.kv import Format, KVConfig

Factory = Callable[[Format, int], Codec]  # (format, head dimension) -> codec


def _affine(bits: int) -> Factory:
    def build(format_: Format, dim: int) -> Codec:
        group = int(dict(format_.options).get("g", "64"))
        _require_groups(format_, dim, group)
        return Affine(bits=bits, group=group)

    return build


def _block(codec: Codec) -> Factory:
    def build(format_: Format, dim: int) -> Codec:
        _require_groups(format_, dim, BLOCK)
        return codec

    return build


def _dense(format_: Format, dim: int) -> Codec:
    return Dense(name=format_.name)


def _turbo(bits: int) -> Factory:
    def build(format_: Format, dim: int) -> Codec:
        return Turbo(bits=bits, dim=dim)

    return build


CODECS: Mapping[str, Factory] = {
    "f32": _dense,
    "f16": _dense,
    "bf16": _dense,
    "q8_0": _block(Q8_0()),
    "q4_0": _block(Q4_0()),
    "affine4": _affine(4),
    "affine8": _affine(8),
    **{f"turbo{bits}": _turbo(bits) for bits in CENTROIDS},
}


def _require_groups(format_: Format, dim: int, group: int) -> None:
    if dim % group:
        raise KVUnsupportedError(
            f"{format_} works on groups of {group} values, and this model's head dimension {dim} is not a multiple",
            hint="choose a smaller group or another format, such as turbo4",
        )


def make_codec(format_: Format, dim: int) -> Codec:
    """The codec of `format_` for head dimension `dim`.

    Raises: KVUnsupportedError when the format is not built here or does not fit the head dimension.
    """
    if format_.name not in CODECS:
        raise KVUnsupportedError(f"the mlx backend has no {format_.name} yet", hint="it has " + " ".join(CODECS))
    return CODECS[format_.name](format_, dim)


def side_codecs(kv: KVConfig, dim: int) -> tuple[tuple[Codec, Codec], tuple[Codec, Codec]]:
    """((K's codec, that of its boundary layers), (V's, that of its boundary layers)).

    Raises: KVUnsupportedError as `make_codec` does.
    """
    k_edge, v_edge = (Format(name=name) for name in kv.boundary_types)
    return (make_codec(kv.k, dim), make_codec(k_edge, dim)), (make_codec(kv.v, dim), make_codec(v_edge, dim))
