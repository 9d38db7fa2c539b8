"""The KV cache of a server that does not say what it keeps: what its user states, marked as such."""

from __future__ import annotations

from collections.abc import Sequence

from refract.backends._kv_heads import stated_bytes
from refract.backends._source import ModelSource
from refract.formats import FORMATS
from refract.kv import KVConfig
from refract.work import EffectiveKV

STATED = "stated, not read: no server says through this API in what types it keeps its KV cache"


def stated_kv(source: ModelSource, kv: KVConfig, notes: Sequence[str]) -> EffectiveKV:
    """`kv` as if it were what the server keeps, with a note that nobody has checked it.

    Raises: KVUnsupportedError where it names layers that the model does not have.
    """
    compressed = len(_compressed_layers(kv, source.layers))
    return EffectiveKV(
        k=str(kv.k),
        v=str(kv.v),
        layers=source.layers,
        layers_compressed=compressed,
        bytes_per_token=stated_bytes(source, kv, compressed),
        notes=(STATED, *notes),
    )


def _compressed_layers(kv: KVConfig, layers: int) -> frozenset[int]:
    if not (kv.k.compressed or kv.v.compressed):
        return frozenset()
    found: frozenset[int] = frozenset()
    for side, own, boundary in zip((kv.k, kv.v), kv.own_layers(layers), kv.boundary_types, strict=True):
        found |= own if side.compressed else frozenset()
        found |= frozenset() if FORMATS[boundary].dense else kv.layers(layers) - own
    return found
