"""Hypothesis strategies for reports that nobody would write."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from refract.results import (
    AxisResult,
    Band,
    CandidateResult,
    Composite,
    Configuration,
    Estimate,
    Link,
    Methodology,
    ModelInfo,
    Provenance,
    Report,
    Sample,
    SelfNoise,
    Unit,
)
from refract.work import EffectiveKV

texts = st.text(max_size=12) | st.sampled_from(["\x1b[31mred\x1b[0m", "</script>", "\u202eabc", "x" * 200, "{{ 7*7 }}"])
sentences = st.lists(texts, max_size=2).map(tuple)
numbers = st.floats(allow_nan=False, allow_infinity=False)
small = st.integers(min_value=0, max_value=2**40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
details = st.dictionaries(texts, json_values, max_size=3)
reasons = st.text(min_size=1, max_size=40)


@st.composite
def estimates(draw: st.DrawFn, bounds: tuple[float, float] = (-1e9, 1e9)) -> Estimate:
    low, value, high = sorted(draw(st.lists(st.floats(*bounds), min_size=3, max_size=3)))
    clusters = draw(st.integers(1, 50))
    n = clusters * draw(st.integers(1, 50))
    return Estimate(value=value, low=low, high=high, n=n, clusters=clusters, method=draw(texts))


scores = estimates(bounds=(0.0, 100.0))
samples = st.builds(
    Sample,
    id=texts,
    cluster=texts,
    category=texts,
    numerator=st.floats(-1e6, 1e6),
    denominator=st.floats(0.0, 1e6),
    detail=details,
)
statistics = st.dictionaries(texts, estimates() | numbers | small | st.none(), max_size=3)


@st.composite
def axes(draw: st.DrawFn) -> AxisResult:
    scored = draw(st.booleans())
    return AxisResult(
        axis=draw(st.sampled_from(["trajectory", "kld", "kld.trajectory", "rniah", "plad"]) | texts),
        status=draw(st.sampled_from(["ok", "low-confidence"] if scored else ["low-confidence", "failed", "not-run"])),
        score=draw(scores) if scored else None,
        reason=None if scored else draw(reasons),
        link=draw(st.sampled_from(get_args(Link))),
        unit=draw(st.sampled_from(get_args(Unit))),
        protocol=draw(st.none() | texts),
        estimator=draw(st.none() | texts),
        statistics=draw(statistics),
        series=draw(details),
        samples=tuple(draw(st.lists(samples, min_size=int(scored), max_size=3))),
        warnings=draw(sentences),
        findings=draw(sentences),
    )


@st.composite
def composites(draw: st.DrawFn) -> Composite:
    if draw(st.booleans()):
        return Composite(score=None, reason=draw(reasons), axes=draw(sentences))
    share = draw(st.floats(0.0, 1.0))
    return Composite(
        score=draw(scores),
        band=draw(st.sampled_from(get_args(Band))),
        band_certain=draw(st.booleans()),
        band_probability={"EXCELLENT": 0.0, "PASS": share, "DEGRADED": 1.0 - share, "FAIL": 0.0},
        axes=draw(sentences),
    )


effective = st.builds(
    EffectiveKV,
    k=texts,
    v=texts,
    layers=small,
    layers_compressed=small,
    bytes_per_token=st.floats(0.0, 1e7),
    notes=sentences,
)
candidates = st.builds(
    CandidateResult,
    kv=texts,
    effective=effective,
    composite=composites(),
    axes=st.lists(axes(), max_size=3).map(tuple),
    findings=sentences,
    control=st.none()
    | st.builds(
        SelfNoise,
        change=texts,
        mean_kl_nats=estimates() | numbers | st.none(),
        top1_agreement=estimates() | numbers | st.none(),
        positions=small,
    ),
)
reports = st.builds(
    Report,
    schema=st.just("refract.report/1"),
    created=texts,
    methodology=st.builds(Methodology, id=texts, prompts=texts, corpus=texts, n_predict=small, parameters=details),
    model=st.builds(ModelInfo, name=texts, fingerprint=texts, engine=texts, details=details),
    reference=st.builds(Configuration, kv=texts, effective=effective),
    candidates=st.lists(candidates, max_size=3).map(tuple),
    floor=st.none() | candidates,
    control=st.none() | candidates,
    findings=sentences,
    provenance=st.builds(
        Provenance,
        command=texts,
        refract=texts,
        machine=details,
        packages=st.dictionaries(texts, texts, max_size=2),
        loads=small,
        answers=st.dictionaries(texts, small, max_size=2),
        seconds=st.dictionaries(texts, numbers, max_size=2),
    ),
)
