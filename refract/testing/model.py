"""A "language model" in a few lines: logits that are a hash of the context, and noise where the cache is compressed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refract.kv import Format, KVConfig
from refract.testing.tokenizer import EOS, VOCAB_SIZE
from refract.work import TokenIds

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
Respond = Callable[[TokenIds], Sequence[int] | None]

HEAD_DIM = 128
_SPREAD = 2.0  # standard deviation of the logits
_FAVOURITE = 24.0  # the likeliest token stands out by up to this much, so that decisive and near-tie steps both occur
_TYPICAL_LENGTH = 40  # one context in so many ends the text
_END = 32.0
_UNLIKELY = -12.0  # offset of whatever is neither printable ASCII nor the end of the sequence
_KNOWN = 48.0  # how far a known response stands out
_MASK = (1 << 64) - 1
_ALLOWED = np.where(
    [32 <= token < 127 or token == EOS for token in range(VOCAB_SIZE)], 0.0, _UNLIKELY
)  # what generations are made of


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """Logits by context, the same on every machine and in every batch.

    `strength` scales the noise of a compressed cache, `jitter` that of kernels; `respond` gives the tokens the model
    knows to follow a prompt.
    """

    seed: int = 0
    strength: float = 0.0
    jitter: float = 0.0
    respond: Respond | None = None

    def initial(self) -> int:
        """The hash of the empty context."""
        return (self.seed * 0x9E3779B97F4A7C15 + 0x1234567) & _MASK

    def logits(self, contexts: Sequence[int]) -> F64:
        """Logits (N, V) of the tokens that follow the contexts with these hashes."""
        states = np.array(contexts, dtype=np.uint64)
        out = _SPREAD * _normal(states, stream=1) + _ALLOWED
        rows = np.arange(len(states))
        printable = 32 + (states >> np.uint64(33)) % np.uint64(95)
        out[rows, printable.astype(np.int64)] += _FAVOURITE * ((states & np.uint64(1023)) / 1023.0)
        out[(states >> np.uint64(20)) % np.uint64(_TYPICAL_LENGTH) == 0, EOS] += _END
        if self.strength:
            out += self.strength * _normal(states, stream=2)
        if self.jitter:
            out += self.jitter * _normal(states, stream=3)
        return out

    def with_response(self, logits: F64, prompt: TokenIds, continuation: TokenIds, first: int) -> F64:
        """`logits` of the positions `first` … after `prompt`, pulled to what the model knows to follow it."""
        known = self.respond(prompt) if self.respond else None
        for row in range(len(logits) if known else 0):
            place = first + row
            if known and place < len(known) and tuple(continuation[:place]) == tuple(known[:place]):
                logits[row, known[place]] += _KNOWN
        return logits


def absorb(context: int, tokens: Iterable[int]) -> Iterator[int]:
    """The hash of `context` after each of `tokens`."""
    for token in tokens:
        context = ((context ^ (token + 1)) * 0xBF58476D1CE4E5B9) & _MASK
        context ^= context >> 29
        yield context


def strength_of(kv: KVConfig) -> float:
    """How much noise a configuration adds: 0 for 16 bits, more the fewer bits, never quite the same for two formats."""
    if kv.is_reference_like:
        return 0.0
    sides = sum(_side_strength(side) for side in (kv.k, kv.v))
    return (sides + 0.05 * len(kv.options)) * (1.0 + 0.02 * _unit(str(kv)))


def _side_strength(side: Format) -> float:
    bits = side.bits_per_value(HEAD_DIM) or 4.0
    return float(1.2 * 2.0 ** -min(bits, 12.0)) if side.compressed else 0.0


def _unit(text: str) -> float:
    """A number in 0 … 1 that only depends on `text`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2.0**32


def _normal(states: U64, *, stream: int) -> F64:
    """Nearly normal numbers (N, V), mean 0 and variance 1, without a transcendental function: sums of four uniforms."""
    salt = np.uint64((stream * 0xD1342543DE82EF95) & _MASK)
    mixed = states[:, None] + salt + np.arange(1, VOCAB_SIZE + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    total = sum(((mixed >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.float64) for part in range(4))
    return np.asarray((total / 65535.0 - 2.0) * np.sqrt(3.0))
