"""How often 95 % intervals hold the truth, over simulated data shaped like real runs.

Each case draws many data sets from a law whose true score is known and counts. A count over D data sets has a standard
error of √(.05·.95/D): .005 at 2,000, .007 at 1,000. Seeds are fixed. Figures are printed for the log (pytest -s).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from refract.results import AxisResult, Link, Sample, Unit
from refract.stats.composite import composite, composite_difference, harmonic_mean
from refract.stats.estimate import mean, score
from refract.stats.paired import paired_log_ratio, paired_ratio_difference, paired_score_difference
from refract.stats.quantiles import quantiles
from refract.stats.rates import clustered_rate, wilson

F64 = npt.NDArray[np.float64]
LOW, HIGH = 0.93, 0.97
WINDOWS, POSITIONS = 32, 255


def ids(n: int, unit: str = "c") -> list[str]:
    return [f"{unit}{i:03}" for i in range(n)]


def check(name: str, held: Sequence[bool], *, low: float = LOW, high: float = HIGH) -> None:
    coverage = float(np.mean(held))
    print(f"{name}: {coverage:.3f} over {len(held)}")
    assert low <= coverage <= high, f"{name}: {coverage}"


def autocorrelated(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> F64:
    """Standard normal series along the last axis with lag-one correlation `rho`."""
    noise = rng.standard_normal(shape)
    noise[..., 1:] *= math.sqrt(1.0 - rho * rho)
    for i in range(1, shape[-1]):
        noise[..., i] += rho * noise[..., i - 1]
    return noise


def kl_windows(
    rng: np.random.Generator,
    sets: int,
    *,
    spread: float = 1.5,
    between: float = 0.5,
    rho: float = 0.4,
    mean_kl: float = 0.02,
) -> F64:
    """Sums of KL (sets, 32) over 255 positions: lognormal positions, autocorrelated, windows harder or easier."""
    out = np.empty((sets, WINDOWS))
    for start in range(0, sets, 250):
        part = out[start : start + 250]
        logs = spread * autocorrelated(rng, (len(part), WINDOWS, POSITIONS), rho)
        logs += between * rng.standard_normal((len(part), WINDOWS, 1)) - (spread**2 + between**2) / 2
        part[:] = mean_kl * np.exp(logs).sum(axis=2)
    return out


def prefix_shares(u: F64, whole: float, shape: float = 1.5) -> F64:
    """Shares p / L for uniform u: 1 with probability `whole`, else spread over 0 … 127 of 128 tokens."""
    return np.where(u >= 1.0 - whole, 1.0, np.floor(128.0 * np.minimum(u / (1.0 - whole), 1.0 - 1e-9) ** shape) / 128.0)


def true_share(whole: float, shape: float = 1.5) -> float:
    return float(prefix_shares((np.arange(400_000) + 0.5) / 400_000, whole, shape).mean())


@pytest.mark.parametrize(
    ("spread", "between", "rho", "mean_kl"),
    [(1.0, 0.3, 0.3, 0.004), (1.5, 0.5, 0.3, 0.02), (1.5, 0.5, 0.7, 0.02), (1.5, 0.8, 0.5, 0.7), (2.0, 0.5, 0.4, 0.02)],
)
def test_kl_score(spread: float, between: float, rho: float, mean_kl: float) -> None:
    sets = kl_windows(np.random.default_rng(1), 1000, spread=spread, between=between, rho=rho, mean_kl=mean_kl)
    truth, names = 100.0 * math.exp(-mean_kl), ids(WINDOWS)
    found = [score("100*exp(-r)", x, [float(POSITIONS)] * WINDOWS, names) for x in sets]
    assert {e.method for e in found} == {"cr1-log-t"}
    check(f"kl spread {spread} between {between} rho {rho}", [e.low <= truth <= e.high for e in found])


@pytest.mark.parametrize("prompts", [24, 60, 96])
@pytest.mark.parametrize(("whole", "shape"), [(0.5, 1.0), (0.4, 1.5), (0.1, 2.0), (0.7, 1.0)])
def test_trajectory_score(prompts: int, whole: float, shape: float) -> None:
    rng, truth = np.random.default_rng(2), 100.0 * true_share(whole, shape)
    names, ones = ids(prompts), [1.0] * prompts
    found = [score("100*r", prefix_shares(rng.random(prompts), whole, shape), ones, names) for _ in range(1000)]
    check(f"trajectory {prompts} prompts, {whole} whole", [e.low <= truth <= e.high for e in found])


@pytest.mark.parametrize("prompts", [12, 24, 60, 96])
@pytest.mark.parametrize(("whole", "shape"), [(0.98, 1.0), (0.95, 1.0), (0.9, 0.3), (0.9, 2.0), (0.85, 1.0)])
def test_trajectory_score_of_nearly_the_same_model(prompts: int, whole: float, shape: float) -> None:
    """Where the better half of all formats is. That none of the prompts diverges proves less than it seems."""
    rng, truth = np.random.default_rng(5), 100.0 * true_share(whole, shape)
    names, ones = ids(prompts), [1.0] * prompts
    found = [score("100*r", prefix_shares(rng.random(prompts), whole, shape), ones, names) for _ in range(1000)]
    held = [e.low <= truth <= e.high for e in found]
    check(f"trajectory {prompts} prompts, {whole} whole, shape {shape}", held, high=0.99)


@pytest.mark.parametrize("prompts", [12, 24, 60])
@pytest.mark.parametrize(("same", "excess"), [(0.98, 0.1), (0.95, 0.1), (0.9, 0.2), (0.8, 0.1)])
def test_plad_score_of_nearly_the_same_model(prompts: int, same: float, excess: float) -> None:
    """Most prompts drift exactly as the reference, others by a gamma law of mean `excess`."""
    rng, truth = np.random.default_rng(6), 100.0 * math.exp(-5.0 * (1.0 - same) * excess)
    names, ones, held = ids(prompts), [1.0] * prompts, []
    for _ in range(1000):
        e = rng.gamma(2.0, excess / 2.0, prompts) * (rng.random(prompts) >= same)
        found = score("100*exp(-5*|r|)", e, ones, names)
        held.append(found.low - 1e-9 <= truth <= found.high + 1e-9)
    check(f"plad {prompts} prompts, {same} the same, excess {excess}", held, high=1.0)


@pytest.mark.parametrize("prompts", [24, 60])
@pytest.mark.parametrize("excess", [0.0, 0.06, 0.15])
def test_plad_score(prompts: int, excess: float) -> None:
    """Five perturbations a prompt, many e exactly 0; between 0 and 2 SE the folding makes it 97.5 % by construction."""
    rng, truth = np.random.default_rng(3), 100.0 * math.exp(-5.0 * excess)
    names, ones = [c for c in ids(prompts) for _ in range(5)], [1.0] * (5 * prompts)
    held = []
    for _ in range(1000):
        shared = 0.06 * rng.standard_normal((prompts, 1))
        own = 0.12 * rng.standard_t(5, (prompts, 5)) * (rng.random((prompts, 5)) < 0.6)
        found = score("100*exp(-5*|r|)", (excess + shared + own).ravel(), ones, names)
        held.append(found.low - 1e-9 <= truth <= found.high + 1e-9)
    check(f"plad {prompts} prompts, excess {excess}", held)


@pytest.mark.parametrize(("trials", "rate"), [(18, 0.8), (30, 0.9), (60, 0.95)])
def test_retrieval_score(trials: int, rate: float) -> None:
    """Averaged exactly over the binomial law: Wilson's coverage jumps with n and p, so it is allowed a little more."""
    k = np.arange(trials + 1)
    held = [wilson(int(i), trials) for i in k]
    coverage = sum(stats.binom.pmf(i, trials, rate) for i, e in zip(k, held, strict=True) if e.low <= rate <= e.high)
    print(f"retrieval {trials} trials at {rate}: {coverage:.3f}")
    assert 0.93 <= coverage <= 0.985


def test_hazard_of_prompts_with_rates_of_their_own() -> None:
    rng, names, held = np.random.default_rng(4), ids(60), []
    rates = np.random.default_rng(40).gamma(0.8, 0.02, 400_000)
    survived = (1.0 - np.minimum(rates, 1.0)) ** 128
    truth = 1000.0 * np.mean(1.0 - survived) / np.mean((1.0 - survived) / np.maximum(rates, 1e-12))
    for _ in range(1000):
        h = np.minimum(rng.gamma(0.8, 0.02, 60), 1.0)
        step = rng.geometric(np.maximum(h, 1e-9))
        found = clustered_rate((step <= 128).tolist(), np.minimum(step, 128).tolist(), names)
        held.append(found.low <= truth <= found.high)
    check("hazard", held)


@pytest.mark.parametrize(("spread", "between"), [(1.5, 0.5), (1.5, 1.0)])
def test_kl_quantiles(spread: float, between: float) -> None:
    rng, names = np.random.default_rng(5), [c for c in ids(WINDOWS) for _ in range(128)]
    truth = {p: math.exp(math.hypot(spread, between) * stats.norm.ppf(p)) for p in (0.5, 0.9, 0.99)}
    held: dict[float, list[bool]] = {p: [] for p in truth}
    for _ in range(1000):
        x = spread * autocorrelated(rng, (WINDOWS, 128), 0.4) + between * rng.standard_normal((WINDOWS, 1))
        for p, e in quantiles(np.exp(x).ravel(), names, list(truth)).items():
            assert e is not None
            held[p].append(e.low <= truth[p] <= e.high)
    for p, row in held.items():
        check(f"quantile {p}, between {between}", row)


def test_mean_on_the_linear_scale() -> None:
    """Δ NLL and other signed means: autocorrelated positions, windows of their own."""
    rng, names = np.random.default_rng(6), ids(WINDOWS)
    found = [mean(rng.standard_t(4, WINDOWS) + 0.3, names) for _ in range(2000)]
    check("linear mean", [e.low <= 0.3 <= e.high for e in found])


def axis(name: str, link: Link, unit: Unit, values: F64, clusters: list[str]) -> AxisResult:
    ones = [1.0] * len(values)
    return AxisResult(
        axis=name,
        status="ok",
        score=score(link, values, ones, clusters),
        link=link,
        unit=unit,
        samples=tuple(
            Sample(id=str(i), cluster=c, numerator=float(v), denominator=1.0)
            for i, (c, v) in enumerate(zip(clusters, values, strict=True))
        ),
    )


def candidate(
    rng: np.random.Generator, kl: F64, prompts: int, whole: float, excess: float, luck: F64
) -> list[AxisResult]:
    """Trajectory, kld and plad of one candidate; `luck` (prompts,) is what all candidates share of a prompt's fate."""
    u = stats.norm.cdf(0.8 * luck + 0.6 * rng.standard_normal(prompts))
    drift = (
        excess
        - 0.05 * luck[:, None]
        + 0.05 * rng.standard_normal((prompts, 1))
        + 0.08 * rng.standard_normal((prompts, 5))
    )
    names = ids(prompts, "p")
    return [
        axis("trajectory", "100*r", "prompt", prefix_shares(u, whole), names),
        axis("kld", "100*exp(-r)", "window", kl / POSITIONS, ids(WINDOWS, "w")),
        axis("plad", "100*exp(-5*|r|)", "prompt", drift.ravel(), [n for n in names for _ in range(5)]),
    ]


@pytest.mark.parametrize(
    ("prompts", "whole", "mean_kl", "excess"),
    [(60, 0.4, 0.02, 0.03), (24, 0.4, 0.02, 0.05), (60, 0.4, 0.02, 0.0), (60, 0.1, 0.7, 0.1), (96, 0.7, 0.004, -0.02)],
)
def test_composite(prompts: int, whole: float, mean_kl: float, excess: float) -> None:
    rng = np.random.default_rng(7)
    truth = harmonic_mean([100 * true_share(whole), 100 * math.exp(-mean_kl), 100 * math.exp(-5 * abs(excess))])
    held = []
    for i, kl in enumerate(kl_windows(np.random.default_rng(70), 1000, mean_kl=mean_kl)):
        axes = candidate(rng, kl, prompts, whole, excess, rng.standard_normal(prompts))
        found = composite(axes, seed=i, replicates=300).score
        assert found is not None
        held.append(found.low <= truth <= found.high)
    check(f"composite {prompts} prompts, {whole} whole, kl {mean_kl}, excess {excess}", held)


def test_composite_difference() -> None:
    rng = np.random.default_rng(8)
    kl = kl_windows(np.random.default_rng(80), 1000)
    truths = [
        harmonic_mean([100 * true_share(w), 100 * math.exp(-k), 100 * math.exp(-5 * e)])
        for w, k, e in ((0.4, 0.02, 0.03), (0.3, 0.03, 0.06))
    ]
    truth, held = truths[0] - truths[1], []
    for i, x in enumerate(kl):
        luck = rng.standard_normal(60)
        a = candidate(rng, x, 60, 0.4, 0.03, luck)
        b = candidate(rng, 1.5 * x * np.exp(0.1 * rng.standard_normal(WINDOWS) - 0.005), 60, 0.3, 0.06, luck)
        found = composite_difference(a, b, seed=i, replicates=300)
        held.append(found.low <= truth <= found.high)
    check("composite difference", held)


@pytest.mark.parametrize("common", [0.5, 0.9])
def test_paired_kl(common: float) -> None:
    """Two candidates' KL over the same windows, lognormal with CV .5, correlated as `common`."""
    rng, names, ones = np.random.default_rng(9), ids(WINDOWS), [1.0] * WINDOWS
    linear, logs, points, spread = [], [], [], math.sqrt(math.log(1.25))
    truth = 100.0 * (math.exp(-0.05) - math.exp(-0.04))
    for i in range(1000):
        shared = math.sqrt(common) * rng.standard_normal(WINDOWS)
        own = math.sqrt(1 - common) * rng.standard_normal((2, WINDOWS))
        a, b = np.array([[0.05], [0.04]]) * np.exp(spread * (shared + own) - spread**2 / 2)
        e = paired_ratio_difference(a, ones, b, ones, clusters=names)
        linear.append(e.low <= 0.01 <= e.high)
        e = paired_log_ratio(a, ones, b, ones, clusters=names, replicates=300, seed=i)
        logs.append(e.low <= math.log(1.25) <= e.high)
        sides = [
            [Sample(id=n, cluster=n, numerator=float(v), denominator=1.0) for n, v in zip(names, x, strict=True)]
            for x in (a, b)
        ]
        e = paired_score_difference("100*exp(-r)", *sides, unit="window", replicates=300, seed=i)
        points.append(e.low <= truth <= e.high)
    check(f"paired difference of KL, {common} common", linear)
    check(f"paired log ratio of KL, {common} common", logs)
    check(f"paired difference of KL scores, {common} common", points)


@pytest.mark.parametrize("prompts", [24, 60])
def test_paired_trajectory(prompts: int) -> None:
    rng, names = np.random.default_rng(10), ids(prompts)
    truth, held = 100.0 * (true_share(0.4) - true_share(0.3)), []
    for i in range(1000):
        luck = rng.standard_normal(prompts)
        u = stats.norm.cdf(0.8 * luck + 0.6 * rng.standard_normal((2, prompts)))
        sides = [
            [Sample(id=n, cluster=n, numerator=float(v), denominator=1.0) for n, v in zip(names, x, strict=True)]
            for x in (prefix_shares(u[0], 0.4), prefix_shares(u[1], 0.3))
        ]
        e = paired_score_difference("100*r", *sides, replicates=300, seed=i)
        held.append(e.low <= truth <= e.high)
    check(f"paired trajectory, {prompts} prompts", held)
