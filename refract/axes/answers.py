"""Reading answers: the one of the expected type, or why there is none; and how many may be missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from refract.axes.base import Answers
from refract.results import Estimate, Json
from refract.work import Answer, Failure, Request

A = TypeVar("A", bound=Answer)

MISSING_SHARE = 0.1  # an axis of which more than this was not answered has failed
_SHOWN_REASONS = 3
_REASON_CHARS = 160


def answer_of(answers: Answers, request: Request, kind: type[A]) -> A | Failure:
    """The answer to `request`, or a Failure: the engine's own, or one that says it was never answered.

    Raises: TypeError for an answer of another type, which is a fault of the engine's adapter.
    """
    found = answers.get(request)
    if found is None:
        return Failure(kind="unanswered", message="the run holds no answer")
    if isinstance(found, (kind, Failure)):
        return found
    raise TypeError(f"{type(request).__name__} was answered with {type(found).__name__}, expected {kind.__name__}")


def too_many_missing(missing: int, total: int) -> bool:
    """Whether so much is missing that what is left may not speak for the whole: more than 10 %, or all of it."""
    return missing >= total or missing > MISSING_SHARE * total


def reasons(failures: Iterable[Failure]) -> str:
    """The failures in one line, the most frequent first: "5 × timeout: no answer in 60 s; 1 × …"."""
    counts = Counter(" ".join(f"{f.kind}: {f.message}".split())[:_REASON_CHARS] for f in failures).most_common()
    parts = [f"{count} × {text}" for text, count in counts[:_SHOWN_REASONS]]
    rest = len(counts) - _SHOWN_REASONS
    return "; ".join(parts) + (f"; and {rest} other kinds" if rest > 0 else "")


def interval_json(estimate: Estimate) -> dict[str, Json]:
    """{"value", "low", "high"} of an estimate, for tables in `series`."""
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def names(ids: Iterable[str], *, limit: int = 5) -> str:
    """The ids in one line, at most `limit` of them by name."""
    known = list(ids)
    rest = len(known) - limit
    return ", ".join(known[:limit]) + (f" and {rest} more" if rest > 0 else "")
