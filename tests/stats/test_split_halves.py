"""On a real run, the two halves of the samples agree as often as their 95 % intervals promise."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from refract.results import Link
from refract.stats.estimate import score

SPLITS = 400
REAL = Path(__file__).with_name("real_run.json")


def _interval(link: Link, samples: list[list[float]]) -> tuple[float, float]:
    """Value and standard error that the stated interval amounts to."""
    found = score(link, [s[0] for s in samples], [s[1] for s in samples], list(map(str, range(len(samples)))))
    return found.value, (found.high - found.low) / (2 * 1.96)


@pytest.mark.parametrize(("axis", "link"), [("trajectory", "100*r"), ("kld", "100*exp(-r)")])
def test_halves_of_a_real_run_agree_as_often_as_they_should(axis: str, link: Link) -> None:
    samples: list[list[float]] = json.loads(REAL.read_text())[axis]
    rng, agreed = random.Random(5), 0
    for _ in range(SPLITS):
        rng.shuffle(samples)
        half = len(samples) // 2
        (one, one_error), (other, other_error) = _interval(link, samples[:half]), _interval(link, samples[half:])
        agreed += abs(one - other) <= 1.96 * (one_error**2 + other_error**2) ** 0.5
    print(f"{axis}: halves agree in {agreed / SPLITS:.3f} of {SPLITS} splits")
    assert 0.93 <= agreed / SPLITS <= 0.985  # splits of one run overlap, so their spread is wider than a coin's
