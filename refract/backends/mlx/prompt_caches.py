"""The caches of a whole model, for mlx-lm's generation; and those of a file, made whole again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache
from mlx_lm.models.cache import make_prompt_cache as own_prompt_cache

from refract.backends.mlx.layer_plan import NEEDING_MODEL, side_specs
from refract.backends.mlx.prompt_cache import CompressedKVCache, Origin
from refract.backends.mlx.sides import SideSpec
from refract.errors import KVUnsupportedError, ModelError
from refract.formats import KEYS, unsupported
from refract.kv import KVConfig, parse_kv

_NO_STORAGE = ("sparsev", "select", "evict", "decay")


def model_caches(model: nn.Module, kv: KVConfig, *, packed: bool, working: int) -> list[Any]:
    """One empty cache a layer; layers that keep no keys and values, such as recurrent ones, get mlx-lm's own.

    Raises: KVUnsupportedError where the backend or the model cannot do what `kv` asks; ModelError naming a layer whose
    cache is none of those that can be replaced.
    """
    if reasons := unsupported(kv, "mlx"):
        raise KVUnsupportedError(f"{kv}: {reasons[0]}", hint="see: refract formats --backend mlx")
    if others := [key for key in _NO_STORAGE if kv.get(key) != KEYS[key].default]:
        raise KVUnsupportedError(
            f"{others[0]}={kv.get(others[0])} changes how a model attends, which a cache alone cannot do",
            hint=f"leave {others[0]} out here; `refract score` can measure it",
        )
    caches, windows, head_dim = _layout(model)
    layers = [layer for layer, window in zip(model.layers, windows, strict=True) if window is not None]
    sides = iter(enumerate(side_specs(kv, head_dim, len(layers), layers)))
    made: list[Any] = []
    for own, window in zip(caches, windows, strict=True):
        if window is None:
            made.append(own)
            continue
        number, (k, v) = next(sides)
        origin = Origin(
            kv=str(kv),
            layer=number,
            layers=len(layers),
            head_dim=head_dim,
            window=window,
            packed=packed,
            working=working,
        )
        made.append(CompressedKVCache(k, v, origin))
    return made


def _layout(model: nn.Module) -> tuple[list[Any], list[int | None], int]:
    """(mlx-lm's own caches, empty; each KV layer's window, 0 without one, None for other layers; head dimension)."""
    caches, tried = own_prompt_cache(model), own_prompt_cache(model)
    mx.eval(model(mx.array([[0]]), cache=tried))
    windows = [_window(cache, number) for number, cache in enumerate(caches)]
    dims = {_dims(cache, number) for number, cache in enumerate(tried) if windows[number] is not None}
    if not dims:
        raise ModelError("no layer of this model keeps keys and values", hint="there is nothing to compress")
    if len(dims) > 1:
        raise ModelError(f"layers have different head dimensions: {sorted(dims)}", hint="expected one for all layers")
    return caches, windows, dims.pop()


def _window(cache: Any, number: int) -> int | None:
    if isinstance(cache, ArraysCache):
        return None
    if type(cache) is KVCache:
        return 0
    if type(cache) is RotatingKVCache and not cache.keep:
        return int(cache.max_size)
    raise ModelError(
        f"layer {number} keeps a {type(cache).__name__}, which cannot be replaced by a compressed cache",
        hint="use mlx-lm's own cache for this architecture",
    )


def _dims(cache: Any, number: int) -> int:
    if cache.keys is None:
        raise ModelError(
            f"layer {number} reads another layer's keys and values, or keeps them elsewhere",
            hint="use mlx-lm's own cache for this architecture",
        )
    k, v = int(cache.keys.shape[-1]), int(cache.values.shape[-1])
    if k != v:
        raise ModelError(
            f"layer {number} keeps {k} values a key and {v} a value: a latent (MLA) cache, which no codec here is for",
            hint="use mlx-lm's own cache for this architecture",
        )
    return k


class UnboundCache:
    """A loaded cache whose modifiers need the model: refuses every use until `bound` has seen it."""

    def __init__(self, origin: Origin, saved: Sequence[Any]) -> None:
        self.origin, self.saved = origin, saved

    def __getattr__(self, name: str) -> Any:
        raise KVUnsupportedError(
            f"a cache of {self.origin.kv} was loaded without its model",
            hint="load it with refract.mlx.load_prompt_cache(file, model)",
        )


def restored_cache(state: Sequence[Any]) -> CompressedKVCache | UnboundCache:
    """The cache of a saved `state`; one that has to be bound where a modifier needs the model."""
    kv, layer, layers, head_dim, window, packed, working, *saved = state
    origin = Origin(
        kv=str(kv),
        layer=int(layer),
        layers=int(layers),
        head_dim=int(head_dim),
        window=int(window),
        packed=bool(packed),
        working=int(working),
    )
    config = parse_kv(origin.kv)
    if any(config.get(key) != "0" for key in NEEDING_MODEL):
        return UnboundCache(origin, saved)
    return _filled(origin, saved, side_specs(config, origin.head_dim, origin.layers, None)[origin.layer])


def bound(caches: Sequence[Any], model: nn.Module) -> list[Any]:
    """The caches, those bound to the layers of `model` that have to be."""
    own = [layer for layer, cache in zip(model.layers, caches, strict=True) if _is_ours(cache)]
    return [
        _filled(
            cache.origin,
            cache.saved,
            side_specs(parse_kv(cache.origin.kv), cache.origin.head_dim, cache.origin.layers, own)[cache.origin.layer],
        )
        if isinstance(cache, UnboundCache)
        else cache
        for cache in caches
    ]


def _is_ours(cache: Any) -> bool:
    return isinstance(cache, UnboundCache | CompressedKVCache)


def _filled(origin: Origin, saved: Sequence[Any], sides: tuple[SideSpec, SideSpec]) -> CompressedKVCache:
    cache = CompressedKVCache(*sides, origin)
    for side, held in zip((cache.k, cache.v), saved, strict=True):
        side.load(held)
    return cache
