"""How wide a token's keys and values are, by a model's own files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from refract.backends._gguf import read_gguf
from refract.backends._source import ModelSource
from refract.kv import KVConfig

_PLAIN_BITS = 2 * 16.0  # of a key and a value


def kv_heads(source: ModelSource) -> int:
    """Key-value heads of a layer; 0 where the files do not say one number for all layers."""
    if source.is_gguf:
        gguf = read_gguf(source.path)
        found = gguf.get("attention.head_count_kv", gguf.get("attention.head_count"))
    else:
        config = json.loads((source.path / "config.json").read_text("utf-8"))
        text: Mapping[str, Any] = config.get("text_config", config)
        found = text.get("num_key_value_heads", text.get("num_attention_heads"))
    return found if isinstance(found, int) and found > 0 else 0


def stated_bytes(source: ModelSource, kv: KVConfig, compressed_layers: int) -> float:
    """Bytes of one token's K and V over all layers if `kv` is what is stored; other layers in 16 bits.

    0 where the files do not say how many heads there are, or a format's layout is not settled.
    """
    values = kv_heads(source) * source.head_dim
    sides = [side.bits_per_value(source.head_dim) for side in (kv.k, kv.v)]
    if not values or None in sides:
        return 0.0
    own = sum(bits for bits in sides if bits is not None)
    plain = source.layers - compressed_layers if kv.k.compressed or kv.v.compressed else 0
    return values * (own * (source.layers - plain) + _PLAIN_BITS * plain) / 8
