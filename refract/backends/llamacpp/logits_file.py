"""The logits files of llama-perplexity, read a few rows at a time, and the exact divergence of two of them.

Layout (tools/perplexity/perplexity.cpp, b11434): `_logits_`; int32 n_ctx, n_vocab, n_chunk; n_chunk · n_ctx token ids;
then for each scored position float32 scale and minimum and n_vocab uint16 codes u, padded to an even count, with
log-probability = scale · u + minimum. Scored are the positions n_ctx/2 + 1 … n_ctx − 1 of each chunk. What is less
probable than e^−16 of the most probable token is coded as exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refract.backends._logits import join
from refract.errors import EngineError
from refract.work import Divergence, TokenIds, Window

MAGIC = b"_logits_"
BLOB_FORMAT = "llamacpp-logits/1"  # a logits file of one chunk
SMALLEST_LOGPROB = -16.0  # of the reference; what is not above it is left out of the sum, as by the tool
_HEADER_BYTES = 20
_SLICE_CODES = 200_000  # of either side at a time: arrays that stay in a processor's cache
_LARGEST = 1 << 24  # tokens of a window, words of a vocabulary: beyond, it is no such file

Array = npt.NDArray[Any]
Read = Callable[[int], bytes]  # exactly so many bytes, or EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a logits file."""

    n_ctx: int
    n_vocab: int
    n_chunk: int

    @property
    def positions(self) -> int:
        """Scored in each chunk."""
        return self.n_ctx - 1 - self.n_ctx // 2

    @property
    def row_codes(self) -> int:
        """16-bit words of a position: scale, minimum, codes and padding."""
        return 4 + 2 * ((self.n_vocab + 1) // 2)

    @property
    def slice_rows(self) -> int:
        """Positions to hold in memory at once."""
        return max(1, min(self.positions, _SLICE_CODES // self.row_codes))


def scored_start(n_ctx: int) -> int:
    """The first position of a window of `n_ctx` tokens that llama-perplexity scores."""
    return n_ctx // 2 + 1


def read_shape(read: Read) -> Shape:
    """The sizes at the head of a logits file. Raises: EngineError when it is none."""
    head = read(_HEADER_BYTES)
    n_ctx, n_vocab, n_chunk = (int(n) for n in np.frombuffer(head, "<i4", offset=len(MAGIC)))
    sound = 4 <= n_ctx < _LARGEST and 1 <= n_vocab < _LARGEST and 1 <= n_chunk < _LARGEST
    if not head.startswith(MAGIC) or not sound:
        raise EngineError(
            f"llama-perplexity's logits file begins with {head!r}, which is no such file",
            hint="the binary may be of an unknown version; b11434 is known to work",
        )
    return Shape(n_ctx=n_ctx, n_vocab=n_vocab, n_chunk=n_chunk)


def read_tokens(read: Read, count: int) -> TokenIds:
    """The next `count` token ids."""
    return tuple(int(i) for i in np.frombuffer(read(4 * count), "<i4"))


def read_rows(read: Read, shape: Shape, count: int) -> Array:
    """The next `count` positions, (count, row_codes) uint16, as they are coded."""
    return np.frombuffer(read(2 * shape.row_codes * count), "<u2").reshape(count, shape.row_codes)


def head_of(chunks: Sequence[Sequence[int]], n_vocab: int) -> bytes:
    """The head of a logits file over chunks of token ids, all of one length."""
    sizes = np.array([len(chunks[0]), n_vocab, len(chunks)], "<i4").tobytes()
    return MAGIC + sizes + np.array(chunks, "<i4").tobytes()


def compare_streams(reference: Read, candidate: Read, shape: Shape, window: Window) -> Divergence:
    """KL(reference ‖ candidate) of the next chunk of both, whose tokens are those of `window`. Raises: EngineError."""
    parts, scored, done = [], window.tokens[window.start :], 0
    if not all(0 <= token < shape.n_vocab for token in scored):
        raise EngineError(
            f"a window holds tokens outside the vocabulary of {shape.n_vocab} in llama-perplexity's logits file",
            hint="the file is damaged: delete the stored answer and run again",
        )
    while done < shape.positions:
        count = min(shape.slice_rows, shape.positions - done)
        rows = read_rows(reference, shape, count), read_rows(candidate, shape, count)
        parts.append(compare_rows(*rows, scored[done : done + count], n_vocab=shape.n_vocab))
        done += count
    return join(parts)


def compare_rows(reference: Array, candidate: Array, tokens: Sequence[int], *, n_vocab: int) -> Divergence:
    """KL(reference ‖ candidate) and its companions at N positions, from their codes (N, row_codes) uint16.

    KL = Σ p·(log p − log q) over the tokens of p > e^−16, as the tool sums it. Its terms are off by up to p · 2.4e-4
    either way from rounding to 16 bits, so that a small KL may come out at −1e-5. Equal codes give exactly 0; a
    position where either side is not finite gives NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        log_p, log_q = logprobs(reference, n_vocab), logprobs(candidate, n_vocab)
        kl = _kl(log_p, log_q)
        rows, ids = np.arange(len(tokens)), np.asarray(tokens)
        own_p, own_q = log_p[rows, ids].astype(np.float64), log_q[rows, ids].astype(np.float64)
        p_delta = np.exp(own_q) - np.exp(own_p)
        first, margin = _top_two(log_p)
        same_top = first == log_q.argmax(axis=1)
        finite_p, finite_q = np.isfinite(own_p), np.isfinite(own_q)
        return Divergence(
            kl=np.where(finite_p & finite_q, kl, np.nan).astype(np.float32),
            same_top=same_top,
            reference_margin=margin.astype(np.float32),
            token_nll_delta=(own_p - own_q).astype(np.float32),
            token_p_delta=p_delta.astype(np.float32),
            reference_nll=(-own_p).astype(np.float32),
            reference_finite=finite_p,
            window=np.zeros(len(tokens), np.int32),
            estimator="kl-exact",
        )


def logprobs(rows: Array, n_vocab: int) -> Array:
    """Log-probabilities (N, n_vocab) float32 of coded positions."""
    scale_and_minimum = np.ascontiguousarray(rows[:, :4]).view("<f4")
    values = rows[:, 4 : 4 + n_vocab].astype(np.float32)
    values *= scale_and_minimum[:, :1]
    values += scale_and_minimum[:, 1:]
    return values


def _kl(log_p: Array, log_q: Array) -> Array:
    terms = log_p - log_q
    terms *= np.exp(log_p)
    np.copyto(terms, 0.0, where=log_p <= SMALLEST_LOGPROB)
    total: Array = terms.sum(axis=1, dtype=np.float64)
    return total


def _top_two(log_p: Array) -> tuple[Array, Array]:
    """(index of the most probable token, its probability minus that of the second); changes `log_p`."""
    rows = np.arange(len(log_p))
    first = log_p.argmax(axis=1)
    largest = np.exp(log_p[rows, first].astype(np.float64))
    log_p[rows, first] = -np.inf
    return first, largest - np.exp(log_p.max(axis=1).astype(np.float64))
