"""What the first divergences of many prompts say together: rates, survival, margins, categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refract.axes.answers import interval_json
from refract.axes.prefixes import Comparison
from refract.results import Json, Statistic
from refract.stats import estimate
from refract.stats.survival import kaplan_meier

PER_TOKENS = 1000.0


def statistics(compared: Sequence[Comparison]) -> dict[str, Statistic]:
    """Shares and rates over the prompts.

    `hazard_per_1000` counts divergences per 1,000 tokens at which one could have happened; the decisive hazard counts
    only those at which the reference had a margin of 0.1 or more, and is None when some margin is unknown.
    """
    diverged = [c for c in compared if c.divergence is not None]
    near = sum(c.kind == "near-tie" for c in diverged)
    known = near + sum(c.kind == "decisive" for c in diverged)
    return {
        "identical_share": estimate.wilson(len(compared) - len(diverged), len(compared)),
        "hazard_per_1000": _hazard(compared, {"near-tie", "decisive", "unknown"}),
        "decisive_hazard_per_1000": _hazard(compared, {"decisive"}) if known == len(diverged) else None,
        "median_first_divergence": median_divergence(compared),
        "near_tie_share": estimate.wilson(near, known) if known else None,
        "divergences": len(diverged),
        "divergences_near_tie": near,
        "divergences_decisive": known - near,
        "tokens_compared": sum(c.exposure for c in compared),
    }


def _hazard(compared: Sequence[Comparison], kinds: set[str]) -> Statistic:
    return estimate.clustered_rate(
        [float(c.kind in kinds) for c in compared],
        [float(c.exposure) for c in compared],
        [c.prompt.id for c in compared],
        per=PER_TOKENS,
    )


def median_divergence(compared: Sequence[Comparison]) -> int | None:
    """The index by which at least half of the prompts have diverged, None when fewer than half did."""
    indices = sorted(c.divergence for c in compared if c.divergence is not None)
    needed = (len(compared) + 1) // 2
    return indices[needed - 1] if len(indices) >= needed else None


def survival(compared: Sequence[Comparison], tau: int) -> dict[str, Json]:
    """The Kaplan–Meier curve of the first divergence within the budget `tau`; S is 1 before the first `time`.

    A prompt with identical continuations has survived the whole budget, also where both ended early.
    """
    times = [tau if c.divergence is None else c.divergence for c in compared]
    curve = kaplan_meier(times, [c.divergence is not None for c in compared])
    return {
        "tau": tau,
        "time": list(curve.time),
        "survival": list(curve.survival),
        "low": list(curve.low),
        "high": list(curve.high),
        "at_risk": list(curve.at_risk),
        "events": list(curve.events),
    }


def category_table(compared: Sequence[Comparison]) -> list[Json]:
    """One row for each category, in the order of the prompts: its score, prompts and identical completions."""
    groups: dict[str, list[Comparison]] = {}
    for c in compared:
        groups.setdefault(c.prompt.category, []).append(c)
    return [_row(category, members) for category, members in groups.items()]


def _row(category: str, members: Sequence[Comparison]) -> dict[str, Json]:
    ids = [c.prompt.id for c in members]
    score = estimate.score("100*r", [c.prefix / c.longest for c in members], [1.0] * len(members), ids)
    identical = sum(c.divergence is None for c in members)
    row: Mapping[str, Json] = {"category": category, "prompts": len(members), "identical": identical}
    return {**row, "score": interval_json(score)}
