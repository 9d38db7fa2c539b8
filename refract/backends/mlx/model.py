"""A loaded mlx-lm model, split into what makes hidden states and what makes logits of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache

from refract.errors import ModelError


class _PassThrough:
    """Stands in for a model's trunk: returns the hidden states it is called with, and lends its other parts."""

    def __init__(self, trunk: nn.Module) -> None:
        self._trunk = trunk

    def __call__(self, hidden: mx.array, *_: Any, **__: Any) -> mx.array:
        return hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trunk, name)


def _language_model(model: nn.Module) -> nn.Module:
    """The text model inside a multimodal wrapper, or the model itself."""
    return model.language_model if "language_model" in model else model


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitModel:
    """`trunk(tokens, cache)` gives final hidden states (B, n, width); `head(hidden)` gives logits (B, n, vocabulary).

    The head runs the model's own code after the trunk, soft caps and scales included.
    """

    trunk: Any
    head: Any
    layers: tuple[nn.Module, ...]
    cache_kinds: tuple[Any, ...]  # the cache objects mlx-lm itself would use, one a layer


def split_model(model: nn.Module) -> SplitModel:
    """Raises: ModelError when the model is not built of a trunk and a head as mlx-lm's are."""
    language_model = _language_model(model)
    trunk = language_model.get("model")
    if not isinstance(trunk, nn.Module):
        raise ModelError(
            f"{type(model).__module__} is not built of a trunk and a head, which exact KL needs",
            hint="use another engine for this architecture",
        )
    head = copy.copy(language_model)
    head["model"] = _PassThrough(trunk)
    kinds = language_model.make_cache() if hasattr(language_model, "make_cache") else None
    layers = tuple(language_model.layers)
    return SplitModel(trunk=trunk, head=head, layers=layers, cache_kinds=tuple(kinds or (KVCache() for _ in layers)))


def layer_windows(kinds: Sequence[Any]) -> tuple[int | None, ...]:
    """Each layer's sliding window in tokens, None where it attends to everything.

    Raises: ModelError naming the first layer whose cache is neither, such as a recurrent state or a latent (MLA).
    """
    windows: list[int | None] = []
    for number, kind in enumerate(kinds):
        if type(kind) is KVCache:
            windows.append(None)
        elif type(kind) is RotatingKVCache and not getattr(kind, "keep", 0):
            windows.append(int(kind.max_size))
        else:
            raise ModelError(
                f"layer {number} keeps a {type(kind).__name__}, which the mlx backend can neither compress nor batch",
                hint="only models whose layers all keep keys and values are supported so far",
            )
    return tuple(windows)
