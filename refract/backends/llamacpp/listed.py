"""Top-K lists of llama-server's answers, aligned by token id, and the divergence of two of them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refract.errors import EngineError
from refract.stats.divergence import kl_topk, log_tail
from refract.work import Distributions, Divergence, Floats, TokenIds

_LEAST_TAIL = np.log(1e-7)  # what sums of float32 log-probabilities can tell from no mass at all
BLOB_FORMAT = "llamacpp-listed/1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """What a server said along a sequence: the log-probability (N,) of each token, and the K most probable there."""

    tokens: TokenIds
    logprobs: Floats
    listed: Distributions


def read_listing(entries: Sequence[Mapping[str, Any]], tokens: TokenIds, count: int) -> Listing | None:
    """The lists at every one of `tokens`, `count` (K) each; None where the server left some out.

    It leaves entries out while its text ends in incomplete UTF-8, so the ids of those it gives must be those of
    `tokens`, one by one.

    Raises: EngineError for lists that are shorter than asked or hold no log-probabilities.
    """
    if [entry.get("id") for entry in entries] != list(tokens):
        return None
    ids = np.zeros((len(tokens), count), np.int32)
    logprobs = np.zeros((len(tokens), count), np.float32)
    own = np.zeros(len(tokens), np.float32)
    try:
        for row, entry in enumerate(entries):
            top = entry["top_logprobs"][:count]
            if len(top) != count:
                raise ValueError(f"{len(top)} tokens instead of {count}")
            ids[row] = [item["id"] for item in top]
            logprobs[row] = [_number(item["logprob"]) for item in top]
            own[row] = _number(entry["logprob"])
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"llama-server's lists of probable tokens are not as expected: {error}") from None
    tail = log_tail(logprobs).astype(np.float32)
    return Listing(tokens=tokens, logprobs=own, listed=Distributions(ids=ids, logprobs=logprobs, tail=tail))


def _number(value: object) -> float:
    """A log-probability; llama-server writes null for what is not finite."""
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]  # what is none raises


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


def narrowed(listing: Listing, count: int) -> Distributions:
    """The `count` most probable tokens of each list."""
    kept = listing.listed.logprobs[:, :count]
    tail = log_tail(kept).astype(np.float32) if count < listing.listed.ids.shape[1] else listing.listed.tail
    return Distributions(ids=listing.listed.ids[:, :count], logprobs=kept, tail=tail)


def pack(listing: Listing) -> bytes:
    """The listing as the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        tokens=np.array(listing.tokens, np.int32),
        logprobs=listing.logprobs,
        ids=listing.listed.ids,
        listed=listing.listed.logprobs,
        tail=listing.listed.tail,
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
    except (ValueError, KeyError, OSError) as error:
        raise EngineError(f"a stored reference cannot be read: {error}", hint="delete it and run again") from None


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
