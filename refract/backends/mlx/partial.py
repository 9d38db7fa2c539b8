"""What a configuration needs of a loaded model beyond codecs: tokens that go between passes, reads of a part only.

Both act where one token is decoded after the other. What they do is measured once, on a text of our own, and told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from refract.backends.mlx.attention import attention_of, redirect
from refract.backends.mlx.cache import LayerSpec
from refract.backends.mlx.evicting import EvictingKeeper, Expectation
from refract.backends.mlx.eviction import TriAttention, eviction_policy
from refract.backends.mlx.keeper import Keeper, PlainKeeper
from refract.backends.mlx.model import SplitModel
from refract.backends.mlx.reading import PartialReader, Tally
from refract.backends.mlx.rotary import Floats, Rotary, read_rotary
from refract.backends.mlx.selection import block_selection
from refract.errors import ModelError
from refract.kv import KVConfig
from refract.work import TokenIds

_STEPS = 16  # tokens of the trial text that are decoded one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """How a session keeps its sequences, and what its attention reads through where it reads a part."""

    keeper: Keeper
    reader: PartialReader | None = None


def attach(kv: KVConfig, model: SplitModel, specs: Sequence[LayerSpec], head_dim: int) -> Partial:
    """The keeper of `kv`; the model's attention reads as `kv` says from here on.

    Raises: ModelError where the architecture's attention cannot be read in part or its rotation is no rotation.
    """
    policy, selection, threshold = eviction_policy(kv), block_selection(kv), float(kv.get("sparsev"))
    reader = None
    if selection or threshold or (policy is not None and policy.needs_scores):
        reader = PartialReader(selection, threshold)
        redirect(model.layers, reader)
    if policy is None:
        return Partial(keeper=PlainKeeper(specs), reader=reader)
    expectation = None
    if isinstance(policy, TriAttention):
        evicted = [number for number, spec in enumerate(specs) if spec.window is None]
        expectation = Expectation(
            rotary=[_rotary(model.layers[number], number, head_dim) for number in evicted],
            tokens=int(kv.option("evict", "calib")),
            largest=kv.option("evict", "agg") == "max",
            union=kv.option("evict", "mode") == "union",
            normalised=kv.option("evict", "norm") == "1",
        )
    return Partial(keeper=EvictingKeeper(specs, policy, expectation), reader=reader)


def _rotary(layer: nn.Module, number: int, head_dim: int) -> Rotary:
    rope = getattr(attention_of(layer, number), "rope", None)
    if rope is None:
        raise ModelError(f"layer {number} has no rotary embedding", hint="evict=triattention needs one: use recency")

    def turned(vectors: Floats, position: int) -> Floats:
        given = mx.array(vectors.astype(np.float32))[:, None, None]
        return np.array(rope(given, offset=position), np.float64)[:, 0, 0]

    try:
        return read_rotary(turned, head_dim)
    except ValueError as error:
        raise ModelError(
            f"the rotary embedding of layer {number} cannot be undone: {error}",
            hint="evict=triattention needs it: use evict=recency",
        ) from None


def held_share(kv: KVConfig) -> float:
    """The share of a long sequence's tokens that is held: 1 without eviction, or where a budget says how many."""
    if kv.get("evict") == "none" or int(kv.option("evict", "budget")):
        return 1.0
    return float(kv.option("evict", "keep"))


def notes(kv: KVConfig, partial: Partial, model: SplitModel, trial: TokenIds) -> Iterator[str]:
    """What beyond codecs happens to the cache, one line each; what is read is measured on `trial`."""
    if kv.get("evict") != "none":
        yield _eviction_note(kv, partial.keeper.specs)
    reader = partial.reader
    if reader is None or not (reader.selection or reader.threshold):
        return
    keys, weights = _measured(reader, partial.keeper, model, trial)
    if reader.selection:
        yield f"select: {_said(keys)} of the keys are read when a token is decoded ({len(trial)} tokens of text)"
    if reader.threshold:
        yield f"sparsev: {_said(weights)} of the attention weights are below {reader.threshold:g} and give nothing"


def _said(tally: Tally) -> str:
    return "an unmeasured share" if tally.share is None else f"{tally.share:.1%}"


def _eviction_note(kv: KVConfig, specs: Sequence[LayerSpec]) -> str:
    budget, layers = int(kv.option("evict", "budget")), sum(spec.window is None for spec in specs)
    held = f"at most {budget} tokens" if budget else f"{float(kv.option('evict', 'keep')):.0%} of the tokens seen"
    left = f"; {len(specs) - layers} with a sliding window are left alone" if layers < len(specs) else ""
    size = "" if budget else "; bytes a token are those of a long sequence"
    return f"evict={kv.get('evict').split(':')[0]}: {layers} layers hold {held}, at their true positions{left}{size}"


def _measured(reader: PartialReader, keeper: Keeper, model: SplitModel, trial: TokenIds) -> tuple[Tally, Tally]:
    """What of the keys and of the weights was read, and dropped, over the last tokens of `trial`."""
    sequence = keeper.sequence(trial)
    keys, weights = Tally(), Tally()
    mx.eval(model.trunk(mx.array([trial[:-_STEPS]]), cache=sequence.caches))
    sequence.passed(len(trial) - _STEPS)
    reader.keys, reader.weights = keys, weights
    for token in trial[-_STEPS:]:
        mx.eval(model.trunk(mx.array([[token]]), cache=sequence.caches))
        sequence.passed(1)
    reader.keys = reader.weights = None
    return keys, weights
