"""Several reports side by side: ranked only where they measured the same thing, with what differs named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from refract.errors import ReportError
from refract.report.legacy import LegacyReport
from refract.report.ranking import Ranking, axis_of, difference, rank
from refract.results import CandidateResult, Estimate, Json, Report
from refract.stats.paired import holm, mcnemar_exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """Something the reports disagree on: each value with the reports that have it."""

    what: str
    values: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A candidate against the best of its group, paired on shared samples.

    `difference` is best minus this one in points, None where nothing can be paired (`note` says why). `mcnemar_p` is of
    the needles only one of the two found, adjusted for the number of candidates (Holm).
    """

    name: str
    difference: Estimate | None
    note: str
    mcnemar_p: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Reports of one methodology, one model and one engine: the only ones that are ranked together.

    Candidates in `ranking` are named "report: KV configuration". `sizes` are their references' bytes per token.
    """

    methodology: str
    model: str
    fingerprint: str
    engines: tuple[str, ...]
    reports: tuple[str, ...]
    ranking: Ranking
    sizes: Mapping[str, float]
    against: tuple[Against, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Groups of comparable reports, the largest first, and what differs between reports at all.

    `legacy` are reports of another program's methodology: listed, and in no group.
    """

    groups: tuple[Group, ...]
    differing: tuple[Differing, ...]
    legacy: tuple[LegacyReport, ...] = ()


def compare(reports: Sequence[tuple[str, Report]], legacy: Sequence[LegacyReport] = ()) -> Comparison:
    """The reports, each with a name, in groups of one methodology, one model and one engine.

    Raises: ReportError for no reports at all.
    """
    if not reports and not legacy:
        raise ReportError("there is nothing to compare", hint="name at least one report that --json-out wrote")
    named = list(zip(unique([name for name, _ in reports]), [report for _, report in reports], strict=True))
    keys: dict[tuple[str, str, str], list[tuple[str, Report]]] = {}
    for name, report in named:
        keys.setdefault(comparable(report), []).append((name, report))
    groups = sorted((_group(members) for members in keys.values()), key=lambda g: -len(g.reports))
    return Comparison(groups=tuple(groups), differing=differing(named), legacy=tuple(legacy))


def comparable(report: Report) -> tuple[str, str, str]:
    """What two reports must share to be ranked together: methodology, weights, and engine whatever its version.

    Another engine stores the same format in another way, and its kernels have noise of their own.
    """
    return report.methodology.id, report.model.fingerprint, report.model.engine.partition(" ")[0]


def unique(names: Sequence[str]) -> list[str]:
    """The names, those that occur several times numbered."""
    return [name if names.count(name) == 1 else f"{name} #{names[: i + 1].count(name)}" for i, name in enumerate(names)]


def _group(members: Sequence[tuple[str, Report]]) -> Group:
    first = members[0][1]
    labelled: list[CandidateResult] = []
    sizes: dict[str, float] = {}
    for name, report in members:
        names = unique([candidate.kv for candidate in report.candidates])
        for label, candidate in zip(names, report.candidates, strict=True):
            labelled.append(replace(candidate, kv=f"{name}: {label}" if len(members) > 1 else label))
            sizes[labelled[-1].kv] = report.reference.effective.bytes_per_token
    controls = [report.control for _, report in members if report.control is not None]
    ranking = rank(labelled, max(controls, key=lambda control: control.mean_kl_nats or 0.0, default=None))
    return Group(
        methodology=first.methodology.id,
        model=first.model.name,
        fingerprint=first.model.fingerprint,
        engines=tuple(dict.fromkeys(report.model.engine for _, report in members)),
        reports=tuple(name for name, _ in members),
        ranking=ranking,
        sizes=sizes,
        against=_against_best(ranking),
    )


def _against_best(ranking: Ranking) -> tuple[Against, ...]:
    ranked = [row.candidate for row in ranking.rows if row.rank is not None]
    if len(ranked) < 2:
        return ()
    best, others = ranked[0], ranked[1:]
    chances = [needles_p(best, other) for other in others]
    adjusted = iter(holm([p for p in chances if p is not None]))
    found = []
    for other, p in zip(others, chances, strict=True):
        measured, note = paired(best, other, ranking.basis)
        p_adjusted = None if p is None else next(adjusted)
        found.append(Against(name=other.kv, difference=measured, note=note, mcnemar_p=p_adjusted))
    return tuple(found)


def paired(
    a: CandidateResult, b: CandidateResult, basis: Sequence[str], *, level: float = 0.95
) -> tuple[Estimate | None, str]:
    """Score of `a` minus score of `b` on these axes over what both measured, or why there is no such difference."""
    try:
        with np.errstate(all="ignore"):
            return difference(a, b, basis, level=level), ""
    except (ValueError, ArithmeticError) as error:
        return None, str(error)


def needles_p(a: CandidateResult, b: CandidateResult) -> float | None:
    """p of McNemar's exact test on the needles that only one of the two found; None without needles on both sides."""
    left, right = axis_of(a, "rniah"), axis_of(b, "rniah")
    if left is None or right is None:
        return None
    hits = {s.id: s.numerator > 0.0 for s in right.samples if s.denominator > 0.0}
    pairs = [(s.numerator > 0.0, hits[s.id]) for s in left.samples if s.denominator > 0.0 and s.id in hits]
    if not pairs:
        return None
    return mcnemar_exact(sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs))


def differing(reports: Sequence[tuple[str, Report]]) -> tuple[Differing, ...]:
    """Everything that decides comparability and is not the same in all reports, with who has which value."""
    tables = [(name, dict(_identity(report))) for name, report in reports]
    found = []
    for what in dict.fromkeys(key for _, table in tables for key in table):
        holders: dict[str, list[str]] = {}
        for name, table in tables:
            holders.setdefault(table.get(what, "not set"), []).append(name)
        if len(holders) > 1:
            values = tuple((value, tuple(names)) for value, names in holders.items())
            found.append(Differing(what=what, values=values))
    return tuple(found)


def _identity(report: Report) -> Iterator[tuple[str, str]]:
    method, model = report.methodology, report.model
    yield "model", model.name
    yield "model fingerprint", model.fingerprint
    yield "engine", model.engine
    yield "reference", report.reference.kv
    yield "prompts", method.prompts or "none"
    yield "corpus", method.corpus or "none"
    yield "n_predict", str(method.n_predict)
    yield from _flat("parameters", dict(method.parameters))
    yield "methodology", method.id


def _flat(name: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _flat(f"{name}.{key}", value[key])
    else:
        yield name, json.dumps(value, ensure_ascii=False)
