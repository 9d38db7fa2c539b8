"""The four bands of a score."""

from __future__ import annotations

from refract.results import BAND_FLOORS, Band

_DIGITS = 9  # a harmonic mean of equal scores may miss their common value by a rounding error


def band(score: float) -> Band:
    """The highest band whose floor the score reaches: EXCELLENT ≥ 90, PASS ≥ 80, DEGRADED ≥ 60, FAIL.

    Raises: ValueError outside 0 … 100.
    """
    if not 0.0 <= score <= 100.0:
        raise ValueError(f"scores run from 0 to 100, found {score}")
    rounded = round(score, _DIGITS)
    return next(name for name, floor in BAND_FLOORS.items() if rounded >= floor)
