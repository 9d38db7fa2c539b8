"""kld: identity, worst, hand-computed and monotone cases, and the ways a KL score was fooled."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.axes.kld import Kld, KldPlan
from refract.engine import Capability
from refract.errors import CorpusError, UsageError
from refract.results import AxisResult, Estimate
from refract.work import CompareBase, Divergence, Failure, Generate, Generation, WriteBase

from .support import EVERYTHING, Model, blob, context, corpus, divergence, prompt_set, prose, run

SAME = Model()
WINDOWS_ONLY = Kld(chunks=12, ctx=64, along_trajectories=0)
POSITIONS = 31  # of a window of 64 tokens


def plan(knobs: Kld = WINDOWS_ONLY, **changes: object) -> KldPlan:
    return knobs.plan(context(**changes))  # type: ignore[arg-type]


def scored(candidate: Model, *, reference: Model = SAME, knobs: Kld = WINDOWS_ONLY) -> AxisResult:
    made = plan(knobs)
    return made.score(*run(made, reference, candidate))


def constant(kl: float) -> Model:
    return Model(compare=lambda r, _: divergence([kl] * r.windows[0].positions))


def value(result: AxisResult) -> float:
    assert result.score is not None
    return result.score.value


def test_identity_is_100_and_has_every_figure() -> None:
    result = scored(SAME)
    assert (result.status, value(result), result.estimator, result.protocol) == ("ok", 100.0, "kl-exact", "prefill")
    mean = result.statistics["mean_kl_nats"]
    assert isinstance(mean, Estimate)
    assert (mean.value, mean.n, mean.clusters) == (0.0, 12 * POSITIONS, 12)
    assert result.statistics["perplexity_reference"] == pytest.approx(math.exp(2.0))
    assert result.statistics["positions"] == 12 * POSITIONS
    assert result.warnings == result.findings == ()


def test_worst_is_0_and_hand_computed_is_exact() -> None:
    assert value(scored(constant(40.0))) == pytest.approx(0.0, abs=1e-12)
    assert value(scored(constant(0.25))) == pytest.approx(100 * math.exp(-0.25))
    half = Model(compare=lambda r, i: divergence([0.1 if i < 6 else 0.3] * r.windows[0].positions))
    result = scored(half)
    assert value(result) == pytest.approx(100 * math.exp(-0.2))
    assert [s.id for s in result.samples] == [f"window-{i:03d}" for i in range(12)]
    assert result.samples[0].numerator == pytest.approx(0.1 * POSITIONS)
    assert result.samples[0].denominator == POSITIONS
    assert result.statistics["max_kl_nats"] == pytest.approx(0.3)


def test_windows_are_scored_as_llama_perplexity_does() -> None:
    made = plan(Kld(chunks=2, ctx=512, along_trajectories=0))
    request = made.reference()[0]
    assert isinstance(request, WriteBase)
    (window,) = request.windows
    assert (len(window.tokens), window.start, window.positions) == (512, 257, 255)
    assert made.max_tokens == 512


@pytest.mark.parametrize(
    ("capability", "protocol"), [(Capability.KL_PREFILL, "prefill"), (Capability.KL_DECODE, "decode")]
)
def test_the_protocol_is_what_reads_the_cache(capability: Capability, protocol: str) -> None:
    made = plan(capabilities=frozenset({capability}))
    assert {r.protocol for r in made.reference() if isinstance(r, WriteBase)} == {protocol}
    assert made.parameters["protocol"] == protocol
    with pytest.raises(UsageError, match="cannot measure KL"):
        plan(capabilities=frozenset({Capability.GENERATE}))


def test_quantiles_need_ten_positions_beyond() -> None:
    rng = np.random.default_rng(0)
    values = rng.exponential(0.01, (12, POSITIONS))
    result = scored(Model(compare=lambda r, i: divergence(list(values[i]))))
    stats = result.statistics
    pooled = values.astype(np.float32).astype(np.float64)
    for name, p in (("median_kl_nats", 0.5), ("p90_kl_nats", 0.9)):
        found = stats[name]
        assert isinstance(found, Estimate)
        assert found.value == pytest.approx(np.quantile(pooled, p))
    assert stats["p99_kl_nats"] is None
    assert stats["p999_kl_nats"] is None
    tail = result.series["kl_tail"]
    assert isinstance(tail, dict)
    assert isinstance(tail["above"], list)
    assert len(tail["above"]) == 60
    assert tail["above"] == sorted(tail["above"], reverse=True)  # type: ignore[type-var]
    assert tail["above"][-1] == 0.0


def test_signed_and_squared_figures_by_hand() -> None:
    def compare(request: CompareBase, index: int) -> Divergence:
        made = divergence([0.1] * POSITIONS)
        shift = np.full(POSITIONS, -0.5 if index % 2 else 0.1, dtype=np.float32)
        p = np.full(POSITIONS, 0.3 if index % 2 else -0.1, dtype=np.float32)
        return replace(made, token_nll_delta=shift, token_p_delta=p, same_top=np.arange(POSITIONS) > 0)

    stats = scored(Model(compare=compare)).statistics
    for name, expected in (
        ("mean_delta_nll_nats", -0.2),
        ("rms_delta_p", math.sqrt((0.09 + 0.01) / 2)),
        ("top1_agreement", 30 / 31),
        ("decisive_flip_share", 1 / 31),
    ):
        found = stats[name]
        assert isinstance(found, Estimate)
        assert found.value == pytest.approx(expected, rel=1e-6)
    assert stats["perplexity_candidate"] == pytest.approx(math.exp(1.8))


def test_perplexity_that_improves_does_not_raise_the_score() -> None:
    def compare(request: CompareBase, _: int) -> Divergence:
        return replace(divergence([1.74] * POSITIONS), token_nll_delta=np.full(POSITIONS, -0.54, dtype=np.float32))

    result = scored(Model(compare=compare))
    assert value(result) == pytest.approx(100 * math.exp(-1.74))
    assert result.statistics["perplexity_candidate"] < result.statistics["perplexity_reference"]  # type: ignore[operator]


@pytest.mark.parametrize("share", [0.01, 0.99, 1.0])
@pytest.mark.parametrize("what", [math.nan, math.inf])
def test_values_that_are_not_finite_fail_and_are_counted(share: float, what: float) -> None:
    def compare(request: CompareBase, _: int) -> Divergence:
        bad = math.ceil(share * POSITIONS)
        return divergence([what] * bad + [0.0] * (POSITIONS - bad))

    result = scored(Model(compare=compare))
    count = 12 * math.ceil(share * POSITIONS)
    assert (result.status, result.score) == ("failed", None)
    assert f"not finite at {count} of 372" in str(result.reason)
    assert result.statistics["candidate_not_finite"] == count


def test_a_reference_that_is_not_finite_is_told_apart() -> None:
    broken = Model(compare=lambda r, _: divergence([math.nan] * POSITIONS, reference_finite=False))
    result = scored(broken)
    assert result.status == "failed"
    assert str(result.reason).startswith("the reference is not finite at 372 of 372")
    assert result.statistics["candidate_not_finite"] == 0


def test_a_figure_that_is_not_finite_beside_a_finite_kl_is_left_out() -> None:
    nan = np.full(POSITIONS, np.nan, dtype=np.float32)
    result = scored(Model(compare=lambda r, _: replace(divergence([0.1] * POSITIONS), token_p_delta=nan)))
    assert result.status == "ok"
    assert result.statistics["rms_delta_p"] is None


def test_estimators_do_not_mix() -> None:
    mixed = Model(compare=lambda r, i: divergence([0.1] * POSITIONS, estimator="kl-exact" if i else "kl-top64"))
    result = scored(mixed)
    assert result.status == "failed"
    assert "kl-exact, kl-top64" in str(result.reason)


@pytest.mark.parametrize(("failing", "status"), [(1, "ok"), (2, "failed"), (12, "failed")])
def test_missing_windows(failing: int, status: str) -> None:
    lost = Failure(kind="killed", message="signal 9")
    broken = Model(compare=lambda r, i: lost if i < failing else divergence([0.1] * POSITIONS))
    result = scored(broken)
    assert result.status == status
    assert "candidate killed: signal 9" in " ".join((*result.warnings, result.reason or ""))
    halved = Model(base=lambda r, i: lost) if failing == 12 else SAME
    if halved is not SAME:
        made = plan()
        ours = halved.answer(made.reference())
        assert made.candidate(ours) == []
        assert made.score(ours, {}).status == "failed"


def test_an_answer_with_too_few_positions_is_a_failure() -> None:
    result = scored(Model(compare=lambda r, _: divergence([0.0] * 5)))
    assert result.status == "failed"
    assert "5 of 31 positions" in str(result.reason)


def test_one_window_has_no_interval_worth_the_name() -> None:
    result = scored(constant(0.1), knobs=Kld(chunks=1, ctx=64, along_trajectories=0))
    assert result.score is not None
    assert (result.score.method, result.score.low, result.score.high) == ("one-cluster", 0.0, 100.0)
    assert result.statistics["mean_kl_nats"] == pytest.approx(0.1)
    assert result.statistics["median_kl_nats"] == pytest.approx(0.1)


def test_a_repetitive_corpus_counts_each_window_once_and_says_so() -> None:
    made = plan(Kld(chunks=4, ctx=64, along_trajectories=0), text=corpus(a="abcd" * 4000))
    assert len(made.reference()) == 1
    assert "3 of 4 windows repeat" in made.score(*run(made, SAME, SAME)).warnings[0]


def test_sizes_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="the model's context has"):
        plan(Kld(ctx=8192))
    for knobs in (Kld(chunks=0), Kld(ctx=4)):
        with pytest.raises(UsageError, match="expected at least"):
            plan(knobs)
    with pytest.raises(CorpusError):
        plan(text=corpus(a="ten bytes."))


def test_categories_and_margins() -> None:
    made = plan(text=corpus(code=prose(3000, seed=3), wiki=prose(3000, seed=4)))
    uneven = Model(compare=lambda r, i: divergence([0.1 if i % 2 else 0.3] * POSITIONS, same_top=bool(i % 2)))
    result = made.score(*run(made, SAME, uneven))
    rows = result.series["categories"]
    assert isinstance(rows, list)
    assert [(r["category"], r["windows"], r["top1_agreement"]) for r in rows] == [("code", 6, 0.0), ("wiki", 6, 1.0)]  # type: ignore[index, call-overload]
    margins = result.series["margins"]
    assert isinstance(margins, list)
    assert sum(r["positions"] for r in margins) == 372  # type: ignore[index, call-overload, misc]
    assert [r["flips"] for r in margins] == [0, 0, 0, 186, 0, 0]  # type: ignore[index, call-overload]


ALONG = Kld(chunks=12, ctx=64, along_trajectories=20)


def test_along_trajectories_the_reference_base_is_reused() -> None:
    made = plan(ALONG)
    ours = SAME.answer(made.reference())
    requests = [r for r in made.candidate(ours) if isinstance(r, CompareBase) and r.protocol == "decode"]
    anchors = [r for r in made.reference() if isinstance(r, Generate)]
    assert len(requests) == len(anchors) == 20
    answer = ours[anchors[3]]
    assert isinstance(answer, Generation)
    assert requests[3].base == answer.base == blob("g3")
    assert requests[3].windows[0].tokens == (*anchors[3].prompt, *answer.tokens)
    assert requests[3].windows[0].start == len(anchors[3].prompt)


def test_along_trajectories_stands_beside_the_score() -> None:
    def compare(request: CompareBase, _: int) -> Divergence:
        return divergence([0.5 if request.protocol == "decode" else 0.1] * request.windows[0].positions)

    result = scored(Model(compare=compare), knobs=ALONG)
    assert value(result) == pytest.approx(100 * math.exp(-0.1))
    found = result.statistics["trajectory_mean_kl_nats"]
    assert isinstance(found, Estimate)
    assert (found.value, found.clusters, found.n) == (pytest.approx(0.5), 20, 320)
    by_position = result.series["trajectory_kl"]
    assert by_position == {"from": [0], "positions": [320], "mean_kl_nats": [pytest.approx(0.5)]}
    assert len(result.samples) == 12


def test_nan_along_trajectories_fails_too() -> None:
    def compare(request: CompareBase, _: int) -> Divergence:
        return divergence([math.nan if request.protocol == "decode" else 0.1] * request.windows[0].positions)

    result = scored(Model(compare=compare), knobs=ALONG)
    assert result.status == "failed"
    assert "along the reference's continuations" in str(result.reason)


def test_an_engine_that_keeps_no_base_leaves_trajectories_out_with_a_note() -> None:
    made = plan(ALONG, capabilities=EVERYTHING - {Capability.KEEP_BASE})
    assert all(isinstance(r, WriteBase) for r in made.reference())
    result = made.score(*run(made, SAME, SAME))
    assert "keeps no distributions" in result.warnings[0]
    assert "trajectory_mean_kl_nats" not in result.statistics


def test_prompts_that_do_not_fit_leave_trajectories_out_with_a_note() -> None:
    made = plan(ALONG, prompts=prompt_set("w" * 900), context_length=100)
    assert "none of the 1 prompts" in made.score(*run(made, SAME, SAME)).warnings[0]


def test_silent_continuations_and_failed_ones_are_left_out() -> None:
    made = plan(ALONG, prompts=prompt_set("one prompt", "two prompts", "three prompts"))
    silent = Model(
        generate=lambda r, i: Generation(tokens=(), stop="length") if i else Failure(kind="oom", message="no memory")
    )
    result = made.score(*run(made, silent, SAME))
    assert result.status == "ok"
    assert "1 of 1 continuations are missing (p0): 1 × reference oom: no memory" in result.warnings


@settings(max_examples=25, deadline=None)
@given(kl=st.lists(st.floats(0, 5), min_size=12, max_size=12), which=st.integers(0, 11), more=st.floats(0.01, 3))
def test_more_divergence_never_scores_more(kl: list[float], which: int, more: float) -> None:
    worse = [v + more * (i == which) for i, v in enumerate(kl)]
    made = plan()
    results = [
        made.score(*run(made, SAME, Model(compare=lambda r, i, v=v: divergence([v[i]] * POSITIONS))))  # type: ignore[misc]
        for v in (kl, worse)
    ]
    assert value(results[1]) < value(results[0])
    score = results[0].score
    assert score is not None
    assert 0 <= score.low <= score.value <= score.high <= 100


DEEP = Kld(chunks=12, ctx=64, along_trajectories=0, depth=2000, deep_chunks=2)
LONG = corpus(a=prose(12000, seed=8), b=prose(12000, seed=9))


def deep(shallow: float, at_depth: float) -> AxisResult:
    made = plan(DEEP, text=LONG)

    def compare(request: CompareBase, index: int) -> Divergence:
        (window,) = request.windows
        scale = 1.0 + 0.01 * (index % 3)
        return divergence([scale * (at_depth if window.start >= 2000 else shallow)] * window.positions)

    return made.score(*run(made, SAME, Model(compare=compare)))


def test_deep_windows_stand_beside_the_score() -> None:
    made = plan(DEEP, text=LONG)
    starts = [r.windows[0].start for r in made.reference() if isinstance(r, WriteBase)]
    assert starts == [33] * 12 + [1024] * 2 + [2000] * 2
    assert {r.windows[0].positions for r in made.reference()[12:] if isinstance(r, WriteBase)} == {256}
    assert made.max_tokens == 2256
    assert made.parameters == plan(WINDOWS_ONLY, text=LONG).parameters
    result = deep(0.01, 0.01)
    assert len(result.samples) == 12
    rows = result.series["depths"]
    assert isinstance(rows, list)
    assert [(r["depth"], r["windows"], r["positions"]) for r in rows] == [(1024, 2, 512), (2000, 2, 512)]  # type: ignore[index, call-overload]
    assert result.findings == ()


def test_kl_that_grows_with_depth_is_a_finding() -> None:
    assert "KL grows with the depth of the cache: 0.0101 nats" in deep(0.01, 0.5).findings[0]
    assert value(deep(0.01, 0.5)) == pytest.approx(value(deep(0.01, 0.01)))
    assert deep(0.01, math.nan).status == "failed"


def test_depths_beyond_the_context_are_refused() -> None:
    with pytest.raises(UsageError, match="--depth 4000 needs 4256 tokens") as caught:
        plan(Kld(ctx=64, depth=4000))
    assert caught.value.hint == "use --depth 3840 or less"
    with pytest.raises(UsageError):
        plan(Kld(ctx=64, depth=-1))
