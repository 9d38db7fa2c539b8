"""What is done to keys before a codec sees them, and undone on reading, where their position is enough to know it.

    kbias    k − RoPE(b, p): the key projection's bias b, rotated as it was added, comes from the weights
    prerope  RoPE⁻¹(k, p): keys as they were before their rotation (KVQuant, arXiv:2401.18079)

Nothing is stored for either. A modifier that could not act on a model is refused when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import mlx.core as mx
import mlx.nn as nn

from refract.backends.mlx.key_bias import Shift
from refract.errors import KVUnsupportedError

Start: TypeAlias = "int | mx.array"  # the first token's position, or that of every sequence (B,)
Rope = Callable[..., mx.array]  # (x (B, H, n, D), offset=Start)

_CLOSE = 1e-3  # how far RoPE⁻¹(RoPE(x)) may lie from x, far above float32's rounding


class KeyState(Protocol):
    """One modifier at work on the keys of one layer; what it learns of them, it keeps in `table` and `total`."""

    def reduce(self, keys: mx.array, start: Start) -> mx.array:
        """What the codec is given of `keys` (B, H, n, D) float32; every token comes once, in order."""

    def restore(self, keys: mx.array, start: Start) -> mx.array:
        """Keys again, of what the codec left of tokens that came before."""

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """What is stored beside the codes."""


class KeyModifier(Protocol):
    """A modifier of one layer's keys."""

    @property
    def name(self) -> str:
        """The modifier's key."""

    @property
    def staged(self) -> bool:
        """Whether it learns from the keys."""

    @property
    def warmup(self) -> int:
        """Tokens that come before it acts."""

    def start(self) -> KeyState:
        """The modifier at work on new sequences."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyBias:
    """Keys less what their position alone decides."""

    shift: Shift
    name: str = "kbias"
    staged: bool = False
    warmup: int = 0

    def __deepcopy__(self, memo: Any) -> KeyBias:
        return self  # a value; a copied cache shares it

    def start(self) -> KeyBias:
        """Itself: nothing is learnt."""
        return self

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """Nothing is stored."""
        return ()

    def reduce(self, keys: mx.array, start: Start) -> mx.array:
        """k − RoPE(b, p)."""
        return keys - self.shift(start, keys.shape[2])

    def restore(self, keys: mx.array, start: Start) -> mx.array:
        """k + RoPE(b, p)."""
        return keys + self.shift(start, keys.shape[2])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreRope:
    """Keys before their rotation, which is a turn by −p · ω: positions ascend from −(start + n − 1) when reversed."""

    rope: Rope
    name: str = "prerope"
    staged: bool = False
    warmup: int = 0

    def __deepcopy__(self, memo: Any) -> PreRope:
        return self  # a value; a copied cache shares it

    def start(self) -> PreRope:
        """Itself: nothing is learnt."""
        return self

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """Nothing is stored."""
        return ()

    def reduce(self, keys: mx.array, start: Start) -> mx.array:
        """RoPE⁻¹(k, p)."""
        return self.rope(keys[:, :, ::-1], offset=1 - start - keys.shape[2])[:, :, ::-1]

    def restore(self, keys: mx.array, start: Start) -> mx.array:
        """RoPE(k, p)."""
        return self.rope(keys, offset=start)


def pre_rope(layer: nn.Module, number: int, head_dim: int) -> PreRope:
    """The layer's rotation, undone. Raises: KVUnsupportedError when there is none, or it cannot be."""
    rope = next((module.rope for module in layer.modules() if callable(getattr(module, "rope", None))), None)
    if rope is None:
        raise KVUnsupportedError(
            f"prerope=1 cannot act: layer {number} ({type(layer).__name__}) has no rotary embedding",
            hint="leave prerope out for this architecture",
        )
    modifier = PreRope(rope=rope)
    x = mx.sin(mx.arange(3 * head_dim, dtype=mx.float32)).reshape(1, 1, 3, head_dim)
    if not float(mx.max(mx.abs(modifier.reduce(modifier.restore(x, 5), 5) - x))) < _CLOSE:
        raise KVUnsupportedError(
            f"prerope=1 cannot act: the rotary embedding of layer {number} is not undone by turning back",
            hint="leave prerope out for this architecture",
        )
    return modifier


def reduced(states: Sequence[Any], keys: mx.array, start: Start) -> mx.array:
    """What the codec is given of `keys` (B, H, n, D): float32, through every modifier in turn."""
    keys = keys.astype(mx.float32)
    for state in states:
        keys = state.reduce(keys, start)
    return keys


def restored(states: Sequence[Any], keys: mx.array, start: Start) -> mx.array:
    """Keys of what the codec left: the modifiers undone, the last one first."""
    for state in reversed(states):
        keys = state.restore(keys, start)
    return keys
