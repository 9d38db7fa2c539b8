"""Compressed KV caches for mlx-lm, on their own: the codecs that REFRACT scores, for `mlx_lm` to generate with.

    from mlx_lm import load, generate
    from refract.mlx import make_prompt_cache

    model, tokenizer = load("some/model")
    cache = make_prompt_cache(model, "ctk=q8_0,ctv=turbo3")
    generate(model, tokenizer, "…", prompt_cache=cache)

Importing this module needs the packages of `refract-kv[mlx]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal

import mlx.nn as nn
from mlx_lm.models.cache import load_prompt_cache as _load
from mlx_lm.models.cache import save_prompt_cache

from refract.backends.mlx.prompt_cache import WORKING, BatchCompressedKVCache, CompressedKVCache, register
from refract.backends.mlx.prompt_caches import bound, model_caches
from refract.kv import parse_kv

__all__ = [
    "BatchCompressedKVCache",
    "CompressedKVCache",
    "load_prompt_cache",
    "make_prompt_cache",
    "save_prompt_cache",
    "stored_bytes",
]

register()


def make_prompt_cache(
    model: nn.Module, kv: str, *, storage: Literal["packed", "dense"] = "packed", working: int = WORKING
) -> list[Any]:
    """One empty cache a layer that stores what `kv` says, for `prompt_cache` of mlx-lm's `generate` and its kin.

    packed: codes, norms and scales are what is held. Up to `working` tokens a copy of the values as they are read is
    held as well, which makes decoding as fast as with plain caches; beyond, there is none, and every step decodes one
    layer after the other. working=0 never has one.
    dense: values are rounded through the codec when they are written and held as they are read; nothing is saved.

    Both give the same codes. Layers without keys and values (recurrent ones) keep mlx-lm's own caches. For
    `batch_generate` give one call's result a prompt: `prompt_caches=[make_prompt_cache(model, kv) for _ in prompts]`.

    Raises: KVSyntaxError, KVUnsupportedError for what is asked; ModelError for an architecture whose caches cannot be
    replaced, such as a latent one (MLA); ValueError for another storage.
    """
    if storage not in ("packed", "dense"):
        raise ValueError(f"storage is {storage!r}, expected packed or dense")
    return model_caches(model, parse_kv(kv), packed=storage == "packed", working=working)


def load_prompt_cache(file: str | PathLike[str], model: nn.Module | None = None) -> list[Any]:
    """The caches that `save_prompt_cache` wrote; kbias and prerope need the model they belong to.

    mlx-lm's own `load_prompt_cache` reads such files too once this module is imported.
    """
    caches = _load(str(file))
    return caches if model is None else bound(caches, model)


def stored_bytes(cache: Sequence[Any]) -> int:
    """Bytes that the arrays of all layers take, room to grow and working copies included."""
    return sum(layer.nbytes for layer in cache)
