"""Which tokens a cache gives up: pure functions from the positions it holds to the ones it keeps.

A policy acts between forward passes, at multiples of its step of the tokens seen, and on all layers that attend to
everything alike. Kept keys stay as they are, rotated to their true positions, so nothing is rotated again; layers with
a sliding window are bounded already and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import numpy as np
import numpy.typing as npt

from refract.errors import KVUnsupportedError
from refract.kv import KVConfig

# What depends on a token's place in the cache, or on the tokens before it, with its value when it is off
_BY_PLACE = {"kbias": "0", "prerope": "0", "kmean": "0", "kcal": "0", "sink": "0", "residual": "0", "prefill": "quant"}

Positions = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Scorer = Callable[[], Scores]  # the expected attention of every held key, higher is more; asked only when needed

# Recency and random act at multiples of so many tokens: token by token would make every prefill pass one token long.
PLAIN_STEP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When to act and how much to hold: `budget` tokens, or without one the share `keep` of the tokens seen."""

    keep: float
    budget: int = 0
    every: int = PLAIN_STEP
    warmup: int = 0

    def target(self, seen: int) -> int:
        """How many tokens may be held after `seen` of them, at least one."""
        return self.budget or max(1, ceil(round(self.keep * seen, 6)))

    def due(self, seen: int) -> bool:
        """Whether it is time to act after `seen` tokens."""
        return seen % self.every == 0 and seen >= self.warmup

    def excess(self, held: int, seen: int) -> int:
        """How many of `held` tokens are to go after `seen`; 0 when it is not time."""
        return max(0, held - self.target(seen)) if self.due(seen) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One sequence's cache before a decision: the true positions (n,) it holds, ascending, of `seen` tokens.

    `key` is a number of the sequence's own, from which whatever is random about it follows.
    """

    positions: Positions
    seen: int
    key: int = 0


class Policy(Protocol):
    """What decides; `needs_scores` where it looks at keys and queries."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def needs_scores(self) -> bool: ...

    def kept(self, held: Held, scores: Scorer) -> Positions:
        """Indices into `held.positions` of what stays, ascending; all of them when nothing is to go."""


def _all(held: Held) -> Positions:
    return np.arange(len(held.positions))


def _without(held: Held, gone: Positions) -> Positions:
    return np.setdiff1d(_all(held), gone, assume_unique=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recency:
    """Keeps the first `sink` tokens and the newest (StreamingLLM, arXiv:2309.17453, true positions kept)."""

    schedule: Schedule
    sink: int = 4
    needs_scores: bool = field(default=False, init=False)

    def kept(self, held: Held, scores: Scorer) -> Positions:
        """As `Policy` says: the oldest go, but for the sink."""
        first = int(np.searchsorted(held.positions, self.sink))
        gone = first + np.arange(self.schedule.excess(len(held.positions), held.seen))
        return _without(held, gone[gone < len(held.positions)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Keeps tokens by a lot drawn once for every position: the control that any cleverer policy has to beat."""

    schedule: Schedule
    seed: int = 0
    needs_scores: bool = field(default=False, init=False)

    def kept(self, held: Held, scores: Scorer) -> Positions:
        """As `Policy` says: the lowest lots go, so what was evicted earlier would be evicted now as well."""
        count = self.schedule.excess(len(held.positions), held.seen)
        lots = np.random.default_rng([self.seed, held.key]).random(held.seen)[held.positions]
        return _without(held, np.argsort(lots, kind="stable")[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class TriAttention:
    """Evicts the keys with the least expected attention, the newest `window` tokens excepted.

    Version 1 compares all of them. Version 2 cuts the positions before the window into `segments` equal stretches, each
    of which loses the same share, rounded down, before the rest goes by score. Version 3, the default, also keeps the
    first `prefix` tokens. `order` "fork" evicts the keys with the *most* expected attention, as the llama.cpp port of
    the method does. Equal scores are told apart by noise of 1e-6 from the seed.
    """

    schedule: Schedule
    version: int = 3
    window: int = 128
    prefix: int = 128
    segments: int = 8
    order: str = "paper"
    seed: int = 0
    needs_scores: bool = field(default=True, init=False)

    def kept(self, held: Held, scores: Scorer) -> Positions:
        """As `Policy` says; fewer go than the schedule asks for where too few are eligible."""
        low, high = (self.prefix if self.version == 3 else 0), held.seen - self.window
        eligible = np.flatnonzero((held.positions >= low) & (held.positions < high))
        count = min(self.schedule.excess(len(held.positions), held.seen), len(eligible))
        if not count:
            return _all(held)
        noise = np.random.default_rng([self.seed, held.key, held.seen]).standard_normal(len(held.positions))
        ranked = scores() * (-1.0 if self.order == "fork" else 1.0) + 1e-6 * noise
        gone = np.zeros(len(held.positions), np.bool_)
        if self.version > 1:
            stretch = (held.positions[eligible] - low) * self.segments // (high - low)
            for number in range(self.segments):
                members = eligible[stretch == number]
                share = count * len(members) // len(eligible)
                gone[members[np.argsort(ranked[members], kind="stable")[:share]]] = True
        rest = eligible[~gone[eligible]]
        gone[rest[np.argsort(ranked[rest], kind="stable")[: count - int(gone.sum())]]] = True
        return np.flatnonzero(~gone)


def refuse_combination(kv: KVConfig) -> None:
    """Nothing, where what is stored of a token depends neither on its place in storage nor on other tokens.

    Raises: KVUnsupportedError naming what cannot go with eviction.
    """
    if kv.get("evict") == "none":
        return
    for key, idle in _BY_PLACE.items():
        if kv.get(key) != idle:
            raise KVUnsupportedError(
                f"{kv}: {key}={kv.get(key)} counts places or learns from tokens, which eviction takes away",
                hint=f"leave {key} or evict out",
            )


def eviction_policy(kv: KVConfig) -> Policy | None:
    """The policy that `kv` names, None where it evicts nothing."""
    name = kv.get("evict").split(":")[0]
    if name == "none":
        return None
    keep, budget = float(kv.option("evict", "keep")), int(kv.option("evict", "budget"))
    if name == "recency":
        return Recency(schedule=Schedule(keep=keep, budget=budget), sink=int(kv.option("evict", "sink")))
    if name == "random":
        return Random(schedule=Schedule(keep=keep, budget=budget), seed=kv.seed)
    number = {key: int(kv.option("evict", key)) for key in ("v", "window", "prefix", "segments", "every", "warmup")}
    return TriAttention(
        schedule=Schedule(keep=keep, budget=budget, every=number["every"], warmup=number["warmup"]),
        version=number["v"],
        window=number["window"],
        prefix=number["prefix"],
        segments=number["segments"],
        order=kv.option("evict", "order"),
        seed=kv.seed,
    )
