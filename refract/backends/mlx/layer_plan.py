"""How every layer of a model stores its keys and values under a KV configuration: codecs, modifiers, what stays raw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import mlx.nn as nn

from refract.backends.mlx.codecs import layer_codecs
from refract.backends.mlx.codecs.base import Codec, group_of
from refract.backends.mlx.codecs.rotations import rotate, unrotate
from refract.backends.mlx.key_bias import key_shift
from refract.backends.mlx.key_modifiers import KeyBias, KeyModifier, pre_rope
from refract.backends.mlx.key_stages import KeyMean, key_scale
from refract.backends.mlx.probe import rotation_of
from refract.backends.mlx.retention import EVERYTHING, retention_of
from refract.backends.mlx.sides import SideSpec
from refract.errors import KVUnsupportedError
from refract.kv import KVConfig

NEEDING_MODEL = ("kbias", "prerope")


def side_specs(
    kv: KVConfig, head_dim: int, count: int, layers: Sequence[nn.Module] | None
) -> tuple[tuple[SideSpec, SideSpec], ...]:
    """(K, V) of each of `count` KV layers; `layers` are the model's own, None where nothing needs them.

    Raises: KVUnsupportedError naming the layer, the head dimension or the part of the model that a modifier needs.
    """
    sides = []
    for number, (k, v) in enumerate(layer_codecs(kv, head_dim, count)):
        layer = None if layers is None else layers[number]
        modifiers = key_modifiers(kv, k, head_dim, layer, number) if k.bits_per_value < 16 else ()
        sides.append((_side(kv, k, modifiers), _side(kv, v, ())))
    return tuple(sides)


def _side(kv: KVConfig, codec: Codec, modifiers: tuple[KeyModifier, ...]) -> SideSpec:
    raw = retention_of(kv) if codec.bits_per_value < 16 else EVERYTHING
    return SideSpec(codec=codec, retention=raw, modifiers=modifiers, fused=True)


def key_modifiers(
    kv: KVConfig, codec: Codec, head_dim: int, layer: nn.Module | None, number: int
) -> tuple[KeyModifier, ...]:
    """What is done to the keys of a layer before `codec` sees them, the first first."""
    found: list[KeyModifier] = []
    if group_of(codec) > 1 and (idle := [key for key in ("kmean", "kcal") if kv.get(key) != "0"]):
        raise KVUnsupportedError(
            f"{idle[0]}={kv.get(idle[0])} cannot act: {codec.name} has a minimum and a scale a channel as it is",
            hint=f"leave {idle[0]} out",
        )
    if kv.get("kbias") == "1":
        found.append(KeyBias(shift=key_shift(number, _given(layer, "kbias"))))
    if kv.get("prerope") == "1":
        found.append(pre_rope(_given(layer, "prerope"), number, head_dim))
    if kv.get("kmean") == "1":
        found.append(KeyMean())
    if (tokens := int(kv.get("kcal"))) and (acting := rotation_of(codec, head_dim)) is not None:
        kind, seed = acting
        found.append(key_scale(tokens, partial(rotate, kind=kind, seed=seed), partial(unrotate, kind=kind, seed=seed)))
    return tuple(found)


def _given(layer: nn.Module | None, key: str) -> nn.Module:
    if layer is None:
        raise KVUnsupportedError(f"{key}=1 needs the model's layers", hint="give the model as well")
    return layer
