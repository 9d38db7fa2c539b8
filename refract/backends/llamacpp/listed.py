"""The top-K lists of llama-server's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refract.backends._listed import Listing, listing
from refract.errors import EngineError
from refract.work import TokenIds

BLOB_FORMAT = "llamacpp-listed/1"


def read_listing(entries: Sequence[Mapping[str, Any]], tokens: TokenIds, count: int) -> Listing | None:
    """The lists at every one of `tokens`, `count` (K) each; None where the server left some out.

    It leaves entries out while its text ends in incomplete UTF-8, so the ids of those it gives must be those of
    `tokens`, one by one.

    Raises: EngineError for lists that are shorter than asked or hold no log-probabilities.
    """
    ids = np.zeros((len(tokens), count), np.int32)
    logprobs = np.zeros((len(tokens), count), np.float32)
    own = np.zeros(len(tokens), np.float32)
    try:
        if [entry.get("id") for entry in entries] != list(tokens):
            return None
        for row, entry in enumerate(entries):
            top = entry["top_logprobs"][:count]
            if len(top) != count:
                raise ValueError(f"{len(top)} tokens instead of {count}")
            ids[row] = [item["id"] for item in top]
            logprobs[row] = [_number(item["logprob"]) for item in top]
            own[row] = _number(entry["logprob"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EngineError(f"llama-server's lists of probable tokens are not as expected: {error}") from None
    return listing(tokens, own, ids, logprobs)


def _number(value: object) -> float:
    """A log-probability; llama-server writes null for what is not finite."""
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]  # what is none raises
