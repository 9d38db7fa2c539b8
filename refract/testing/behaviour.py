"""Ways in which a candidate can be broken, each taken from a real tool or engine."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from refract.testing.tokenizer import EOS
from refract.work import Answer, Failure, Request, TokenIds

if TYPE_CHECKING:
    from refract.testing.model import F64

Rewrite = Callable[[Request, Answer | Failure], Answer | Failure]

_FORCED = 60.0  # far above every logit of the model: the token it is added to is chosen with certainty
_JUNK = b"The quick brown fox jumps over the lazy dog. "
_STOP_AFTER = 1


class Behaviour(Enum):
    """What goes wrong in a candidate's session."""

    EARLY_STOP = "generations agree with the reference for one token, then end"
    EMPTY = "every generation ends at once"
    CONSTANT_JUNK = "the same text whatever the prompt, to the last token allowed"
    LOOP = "generations repeat one token"
    RUNAWAY = "generations never end"
    NAN_LOGITS = "logits are NaN at 99 of 100 positions"
    NAN_EVERYWHERE = "all logits are NaN"
    NEVER_COMPRESSED = "nothing is compressed, and the engine says so"
    SILENTLY_UNCOMPRESSED = "nothing is compressed, and the engine says it was"
    RETRIEVES_NOTHING = "what the model knows to answer is forgotten"
    TAIL_SHIFT = "probability moves between tokens outside the most probable ones, and to them"
    WRONG_SERVER = "the engine loads another configuration than it was asked for"

    @property
    def inactive(self) -> bool:
        """Whether the compressed cache is never read."""
        return self in (Behaviour.NEVER_COMPRESSED, Behaviour.SILENTLY_UNCOMPRESSED)

    def change(self, logits: F64, continuation: TokenIds, first: int) -> F64:
        """The broken `logits` (N, V) of the positions `first` … first+N-1 after a prompt."""
        change = _CHANGES.get(self)
        return logits if change is None else change(logits, continuation, first)


def _early_stop(logits: F64, continuation: TokenIds, first: int) -> F64:
    for row in range(len(logits)):
        if first + row >= _STOP_AFTER:
            logits[row, EOS] += _FORCED
    return logits


def _empty(logits: F64, continuation: TokenIds, first: int) -> F64:
    logits[:, EOS] += _FORCED
    return logits


def _junk(logits: F64, continuation: TokenIds, first: int) -> F64:
    for row in range(len(logits)):
        logits[row, _JUNK[(first + row) % len(_JUNK)]] += _FORCED
    return logits


def _loop(logits: F64, continuation: TokenIds, first: int) -> F64:
    for row in range(len(logits)):
        if first + row > 0:
            logits[row, continuation[0]] += _FORCED
    return logits


def _runaway(logits: F64, continuation: TokenIds, first: int) -> F64:
    logits[:, EOS] -= _FORCED
    return logits


def _nan(logits: F64, continuation: TokenIds, first: int) -> F64:
    for row in range(len(logits)):
        if (first + row) % 100 != 0:
            logits[row] = np.nan
    return logits


def _all_nan(logits: F64, continuation: TokenIds, first: int) -> F64:
    return np.full_like(logits, np.nan)


def _tail_shift(logits: F64, continuation: TokenIds, first: int) -> F64:
    """The order of everything below the 16 most probable tokens is reversed, and they lose to the most unlikely one."""
    order = np.argsort(-logits, axis=-1, kind="stable")
    head, tail = order[:, :16], order[:, 16:]
    out = logits.copy()
    rows = np.arange(len(logits))[:, None]
    out[rows, tail] = logits[rows, tail[:, ::-1]]
    out[rows, tail[:, -1:]] = logits[rows, head[:, :1]] - 0.5
    return out


_CHANGES: dict[Behaviour, Callable[[F64, TokenIds, int], F64]] = {
    Behaviour.EARLY_STOP: _early_stop,
    Behaviour.EMPTY: _empty,
    Behaviour.CONSTANT_JUNK: _junk,
    Behaviour.LOOP: _loop,
    Behaviour.RUNAWAY: _runaway,
    Behaviour.NAN_LOGITS: _nan,
    Behaviour.NAN_EVERYWHERE: _all_nan,
    Behaviour.TAIL_SHIFT: _tail_shift,
}
