from __future__ import annotations

import pytest

from refract.report import words
from refract.report.plain import ascii_only, clipped, visible
from refract.report.ranking import pareto
from refract.report.svg import Scale
from refract.results import Estimate
from refract.work import EffectiveKV

from .builder import report


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (83.14, "score", "83.1"),
        (0.97251, "share", "97.3 %"),
        (1234567, "count", "1,234,567"),
        (1234567, "plain", "1,234,567"),
        (0.01768, "nats", "0.0177"),
        (0.00209, "nats", "0.00209"),
        (6.8629, "nats", "6.86"),
        (17.5, "nats", "17.5"),
        (217.7, "nats", "218"),
        (0.0000123, "nats", "1.23e-05"),
        (0.0, "nats", "0"),
        (10813.0, "perplexity", "10,813.00"),
    ],
)
def test_figures(value: float, kind: words.Kind, shown: str) -> None:
    assert words.figure(value, kind) == shown


def test_intervals_are_as_fine_as_their_value() -> None:
    estimate = Estimate(value=0.0021, low=-0.0004, high=0.0046, n=9, clusters=3, method="cr1-t")
    assert words.statistic(estimate, "nats") == "0.00210 [-0.00040, 0.00460]"
    assert words.statistic(None, "nats") == "not known"


@pytest.mark.parametrize(
    ("ours", "shown"), [(8370.0, "2.8× smaller"), (23040.0, "same size"), (46080.0, "2.0× larger")]
)
def test_sizes(ours: float, shown: str) -> None:
    reference = report().reference.effective
    assert words.size_words(_sized(ours), reference) == shown


def test_unknown_sizes_are_not_guessed() -> None:
    assert words.size_words(_sized(0.0), report().reference.effective) is None


def _sized(size: float) -> EffectiveKV:
    return EffectiveKV(k="x", v="x", layers=1, layers_compressed=1, bytes_per_token=size)


def test_unknown_statistics_are_named_after_themselves() -> None:
    assert words.label_of("tail_share") == words.Label("tail share", "share")
    assert words.label_of("ppl_candidate").kind == "perplexity"


def test_visible_spells_out_what_terminals_act_on() -> None:
    assert visible("a\x1b[31m\x9b\u202e\ud800\n\U000e0001") == r"a\x1b[31m\x9b\u202e\ud800\n\U000e0001"
    assert visible("a\n\tb", keep="\n\t") == "a\n\tb"
    assert visible("é漢👩\u200d💻\u00a0") == "é漢👩\u200d💻\u00a0"


def test_clipped_says_how_much_is_missing() -> None:
    assert clipped("abcdef", 4) == "abcd… (2 more characters not shown)"
    assert clipped("abcd", 4) == "abcd"


def test_ascii() -> None:
    assert ascii_only("2.6× → é") == r"2.6x -> \xe9"


def test_pareto_front() -> None:
    points = [(100.0, 90.0), (50.0, 95.0), (40.0, 60.0), (40.0, 50.0), (0.0, 99.0)]
    assert pareto(points) == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (Scale(0.0, 1.0, 0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (Scale(0.0, 128.0, 0.0, 1.0), [0.0, 50.0, 100.0]),
        (Scale(3.0, 3.0, 0.0, 1.0), [3.0]),
        (Scale(0.01, 20.0, 0.0, 1.0, True), [0.01, 0.1, 1.0, 10.0]),
        (Scale(0.011, 0.25, 0.0, 1.0, True), [0.02, 0.05, 0.1, 0.2]),
        (Scale(0.31, 0.32, 0.0, 1.0, True), [0.31, 0.32]),
    ],
)
def test_ticks(scale: Scale, ticks: list[float]) -> None:
    assert scale.ticks() == pytest.approx(ticks)
