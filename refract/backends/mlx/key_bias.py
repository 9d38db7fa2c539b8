"""The part of a key that its position alone decides: RoPE(b, p) of the bias b of a layer's key projection.

What all keys share tells a query little of which to attend to, while a codec's error grows with it. It is known from
the weights, so it is taken off before a key is stored and put back when it is read: nothing is stored for it. Keys that
are normalised after the projection have no such part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from refract.errors import KVUnsupportedError

# (first position, how many) -> (1 or B, heads, n, D); the position is an int, or one of each row (B,)
Shift = Callable[[int | mx.array, int], mx.array]


def key_shifts(layers: Sequence[nn.Module]) -> tuple[Shift, ...]:
    """The shift of every layer. Raises: KVUnsupportedError naming the first layer that has none."""
    return tuple(key_shift(number, layer) for number, layer in enumerate(layers))


def key_shift(number: int, layer: nn.Module) -> Shift:
    """The shift of one layer. Raises: KVUnsupportedError when it has none."""
    attention = layer.get("self_attn")
    bias = None if attention is None or "k_proj" not in attention else attention["k_proj"].get("bias")
    if bias is None:
        raise KVUnsupportedError(
            f"kbias=1 cannot act: layer {number} has no bias of its key projection", hint="leave kbias out"
        )
    if "k_norm" in attention:
        raise KVUnsupportedError(
            f"kbias=1 cannot act: layer {number} normalises its keys after the bias", hint="leave kbias out"
        )
    rope: Any = attention.rope
    heads = int(getattr(attention, "n_kv_heads", 0) or attention.num_key_value_heads)
    by_head = bias.reshape(1, heads, 1, -1)

    def shift(first: int | mx.array, count: int) -> mx.array:
        rows = 1 if isinstance(first, int) else first.shape[0]
        wide = mx.broadcast_to(by_head, (rows, heads, count, by_head.shape[-1]))
        turned: mx.array = rope(wide, offset=first)
        return turned

    return shift
