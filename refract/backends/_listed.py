"""Top-K lists of probable tokens along a sequence, aligned by token id, and the divergence of two of them."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from refract.backends._logits import join
from refract.errors import EngineError
from refract.stats.divergence import kl_topk, log_tail
from refract.work import Distributions, Divergence, Floats, TokenIds, Window

_LEAST_TAIL = np.log(1e-7)  # what sums of float32 log-probabilities can tell from no mass at all
BLOB_FORMAT = "listed/1"  # what `pack` writes
_DAMAGE = (ValueError, KeyError, TypeError, OSError, EOFError, MemoryError, RuntimeError, BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """What an engine said along a sequence: the log-probability (N,) of each token, and the K most probable there."""

    tokens: TokenIds
    logprobs: Floats
    listed: Distributions


def listing(tokens: TokenIds, own: npt.ArrayLike, ids: npt.ArrayLike, logprobs: npt.ArrayLike) -> Listing:
    """A listing of log-probabilities `own` (N,) of `tokens` and of the most probable tokens `ids` (N, K), best first.

    The mass outside the K is what they leave. Raises: ValueError where shapes disagree or a value is no number.
    """
    values = np.asarray(logprobs, np.float32)
    tail = log_tail(values).astype(np.float32)
    listed = Distributions(ids=np.asarray(ids, np.int32), logprobs=values, tail=tail)
    mine = np.asarray(own, np.float32)
    if mine.shape != (len(tokens),) or len(listed) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens, log-probabilities {mine.shape}, lists {values.shape}")
    return Listing(tokens=tokens, logprobs=mine, listed=listed)


def joined(parts: Sequence[Listing]) -> Listing:
    """The listings one after the other."""
    return Listing(
        tokens=tuple(token for part in parts for token in part.tokens),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        listed=Distributions(
            ids=np.concatenate([part.listed.ids for part in parts]),
            logprobs=np.concatenate([part.listed.logprobs for part in parts]),
            tail=np.concatenate([part.listed.tail for part in parts]),
        ),
    )


def stretch(whole: Listing, start: int, stop: int) -> Listing:
    """The positions `start … stop-1` of a listing."""
    part = slice(start, stop)
    return Listing(
        tokens=whole.tokens[part],
        logprobs=whole.logprobs[part],
        listed=Distributions(
            ids=whole.listed.ids[part], logprobs=whole.listed.logprobs[part], tail=whole.listed.tail[part]
        ),
    )


def narrowed(whole: Listing, count: int) -> Distributions:
    """The `count` most probable tokens of each list."""
    kept = whole.listed.logprobs[:, :count]
    tail = log_tail(kept).astype(np.float32) if count < whole.listed.ids.shape[1] else whole.listed.tail
    return Distributions(ids=whole.listed.ids[:, :count], logprobs=kept, tail=tail)


def pack(whole: Listing) -> bytes:
    """The listing as the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        tokens=np.array(whole.tokens, np.int32),
        logprobs=whole.logprobs,
        ids=whole.listed.ids,
        listed=whole.listed.logprobs,
        tail=whole.listed.tail,
    )
    return buffer.getvalue()


def unpack(data: bytes) -> Listing:
    """The listing that `pack` wrote. Raises: EngineError when the bytes are something else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            return Listing(
                tokens=tuple(int(token) for token in found["tokens"]),
                logprobs=found["logprobs"],
                listed=Distributions(ids=found["ids"], logprobs=found["listed"], tail=found["tail"]),
            )
    except _DAMAGE as error:
        raise EngineError(f"a stored reference cannot be read: {error}", hint="delete it and run again") from None


def scored_tokens(windows: Sequence[Window]) -> TokenIds:
    """The tokens that are scored, of all windows in order: what a base over them lists."""
    return tuple(token for window in windows for token in window.tokens[window.start :])


def compare_windows(reference: Listing, windows: Sequence[Window], candidate: Sequence[Listing]) -> Divergence:
    """The divergence over `windows`, each under its number; `reference` holds all their scored positions, in order.

    Raises: EngineError when the reference is of other windows.
    """
    if reference.tokens != scored_tokens(windows):
        raise EngineError("the stored reference is of another window")
    parts, start = [], 0
    for number, (window, own) in enumerate(zip(windows, candidate, strict=True)):
        stop = start + window.positions
        parts.append(compare_listings(stretch(reference, start, stop), own, window=number))
        start = stop
    return join(parts)


def compare_listings(reference: Listing, candidate: Listing, *, window: int = 0) -> Divergence:
    """A lower bound of KL(reference ‖ candidate) at every token, from the tokens both sides list.

    Tokens that the candidate does not list join the rest of the vocabulary on both sides, which can only lose
    divergence (see `refract.stats.divergence.kl_topk`). Estimator `kl-top<K>`, K the length of the reference's lists.
    """
    rows = [_row(reference.listed, candidate.listed, row) for row in range(len(reference.tokens))]
    own, other = reference.logprobs.astype(np.float64), candidate.logprobs.astype(np.float64)
    top = np.exp(reference.listed.logprobs[:, :2].astype(np.float64))
    margin = top[:, 0] - top[:, 1] if top.shape[1] > 1 else top[:, 0]
    with np.errstate(invalid="ignore"):
        return Divergence(
            kl=np.array(rows, np.float32),
            same_top=reference.listed.ids[:, 0] == candidate.listed.ids[:, 0],
            reference_margin=margin.astype(np.float32),
            token_nll_delta=(own - other).astype(np.float32),
            token_p_delta=(np.exp(other) - np.exp(own)).astype(np.float32),
            reference_nll=(-own).astype(np.float32),
            reference_finite=np.isfinite(own) & np.isfinite(reference.listed.logprobs).all(axis=1),
            window=np.full(len(rows), window, np.int32),
            estimator=f"kl-top{reference.listed.ids.shape[1]}",
        )


def _row(reference: Distributions, candidate: Distributions, row: int) -> float:
    """KL at one position: both tails come from the same ids by the same sum, so that equal lists give exactly 0."""
    _, left, right = np.intersect1d(reference.ids[row], candidate.ids[row], assume_unique=True, return_indices=True)
    log_p, log_q = reference.logprobs[row, left][None], candidate.logprobs[row, right][None]
    tails = [np.maximum(log_tail(values), _LEAST_TAIL).astype(np.float32) for values in (log_p, log_q)]
    listed = Distributions(ids=reference.ids[row, left][None], logprobs=log_p, tail=tails[0])
    return float(kl_topk(listed, log_q, tails[1])[0])
