"""Puts a reader of our own between a loaded model's attention layers and its dot products.

mlx-lm's attention calls a function of its module, `scaled_dot_product_attention`, which all models of a process share.
Every attention layer of one model gets a copy of its own code that calls the reader instead; nothing else changes, and
no other model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from refract.errors import ModelError

_CALLED = "scaled_dot_product_attention"


class Reader(Protocol):
    """What attention calls instead: queries (B, H, n, D) against a cache's keys and values (B, H_kv, m, D)."""

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None = None,
    ) -> mx.array: ...


def attention_of(layer: nn.Module, number: int) -> nn.Module:
    """The layer's attention, the one part of it that calls for dot products.

    Raises: ModelError when there is none, or more than one.
    """
    found = [module for module in layer.modules() if _CALLED in _code_names(module)]
    if len(found) != 1:
        raise ModelError(
            f"layer {number} ({type(layer).__name__}) has {len(found)} attentions that read as mlx-lm's do, expected 1",
            hint="evict, select and sparsev need it: leave them out for this architecture",
        )
    return found[0]


def redirect(layers: Sequence[nn.Module], reader: Reader) -> None:
    """Makes the attention of every one of `layers` call `reader`. Raises: ModelError as `attention_of` does."""
    for number, layer in enumerate(layers):
        attention = attention_of(layer, number)
        kind = type(attention)
        attention.__class__ = type(kind.__name__, (kind,), {"__call__": _calling(kind.__call__, reader)})


def _code_names(module: nn.Module) -> tuple[str, ...]:
    call = type(module).__call__
    return call.__code__.co_names if isinstance(call, FunctionType) else ()


def _calling(call: Any, reader: Reader) -> FunctionType:
    """The function `call` with `reader` under the name it calls."""
    copy = FunctionType(
        call.__code__, {**call.__globals__, _CALLED: reader}, call.__name__, call.__defaults__, call.__closure__
    )
    copy.__kwdefaults__ = call.__kwdefaults__
    return copy
