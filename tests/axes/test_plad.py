"""plad: identity, worst, hand-computed cases, signed differences, and candidates that only look robust."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.axes.plad import Plad, PladPlan
from refract.axes.plad_result import drift
from refract.axes.trajectory import Trajectory
from refract.errors import PromptsError, UsageError
from refract.results import AxisResult, Estimate
from refract.work import Failure, Generate, Generation

from .support import EOS, TWENTY, Model, context, follow, generation, prompt_set, run

SAME = Model()
LENGTH = 16


def plan(texts: tuple[str, ...] = TWENTY, **knobs: int) -> PladPlan:
    return Plad(**knobs).plan(context(prompts=prompt_set(*texts)))


def moving(made: PladPlan, moved: int) -> Model:
    """Every answer is the prompt's own 16 tokens; after a change, the last `moved` of them are others."""
    own = {v.request.prompt: v.anchor.candidate.prompt for v in made.variants}

    def answer(request: Generate, _: int) -> Generation:
        anchor = own.get(request.prompt)
        base = follow(Generate(prompt=anchor or request.prompt, max_new_tokens=LENGTH)).tokens
        return generation(*base[: LENGTH - moved], *([77] * moved)) if anchor else generation(*base)

    return Model(generate=answer)


def scored(reference: int, candidate: int) -> AxisResult:
    made = plan()
    return made.score(*run(made, moving(made, reference), moving(made, candidate)))


def value(result: AxisResult) -> float:
    assert result.score is not None
    return result.score.value


def figure(result: AxisResult, name: str) -> Estimate:
    found = result.statistics[name]
    assert isinstance(found, Estimate)
    return found


def test_identity_is_100() -> None:
    made = plan()
    result = made.score(*run(made, SAME, SAME))
    assert (result.status, value(result)) == ("ok", 100.0)
    assert figure(result, "mean_drift_reference").value == figure(result, "mean_drift_candidate").value > 0.5
    assert figure(result, "mean_excess_drift").value == 0.0


@pytest.mark.parametrize(("ours", "theirs"), [(4, 8), (8, 4)])
def test_the_difference_is_signed_and_either_direction_counts(ours: int, theirs: int) -> None:
    result = scored(ours, theirs)
    assert figure(result, "mean_excess_drift").value == pytest.approx((theirs - ours) / LENGTH)
    assert value(result) == pytest.approx(100 * math.exp(-5 * 0.25))


def test_worst_is_near_0() -> None:
    assert value(scored(0, 16)) == pytest.approx(100 * math.exp(-5))


def test_noise_that_cancels_costs_nothing() -> None:
    """Half of the changed prompts drift by 4 tokens more, the other half by 4 less."""
    made = plan()
    more, less = moving(made, 8), moving(made, 0)
    odd = {v.request.prompt for i, v in enumerate(made.variants) if i % 2}
    mixed = Model(generate=lambda r, i: (more if r.prompt in odd else less).generate(r, i))
    result = made.score(*run(made, moving(made, 4), mixed))
    assert value(result) == pytest.approx(100.0)


def test_constant_junk_is_not_robust() -> None:
    junk = Model(generate=lambda r, _: generation(*range(50, 66)))
    for reference in (0, 1, 8):
        made = plan()
        result = made.score(*run(made, moving(made, reference), junk))
        assert (result.status, result.score) == ("failed", None)
        assert "20 of 20 prompts one and the same text" in str(result.reason)


def test_silence_is_not_robust() -> None:
    made = plan()
    result = made.score(*run(made, moving(made, 8), Model(generate=lambda r, _: generation(EOS, stop="eos"))))
    assert result.status == "failed"


def test_drift_by_hand() -> None:
    assert drift(generation(1, 2, 3, 4), generation(1, 3, 4)) == 0.25
    assert drift(generation(1, 2), generation(3, 4, 5)) == 1.0
    assert drift(generation(), generation(1)) == 1.0
    assert drift(generation(), generation()) == 0.0


def test_anchors_are_the_trajectory_requests() -> None:
    made = context(prompts=prompt_set(*TWENTY))
    ours, theirs = Plad().plan(made), Trajectory().plan(made)
    assert set(theirs.reference()) <= set(ours.reference())
    assert set(theirs.candidate({})) <= set(ours.candidate({}))
    assert len(ours.reference()) == 20 + len(ours.variants)


def test_prompts_are_limited_evenly_over_categories() -> None:
    made = plan(prompts_limit=5)
    chosen = dict.fromkeys(v.anchor.prompt.id for v in made.variants)
    assert list(chosen) == ["p0", "p1", "p2", "p3", "p4"]
    by_category = Plad(prompts_limit=4).plan(context(prompts=prompt_set(*TWENTY, categories=("a", "a", "a", "b"))))
    assert list(dict.fromkeys(v.anchor.prompt.id for v in by_category.variants)) == ["p0", "p1", "p3", "p7"]
    with pytest.raises(UsageError):
        plan(prompts_limit=0)


def test_applied_and_skipped_are_counted() -> None:
    made = plan(("Explain the river.", "Erkläre heute das Wetter"))
    result = made.score(*run(made, SAME, SAME))
    rows = result.series["perturbations"]
    assert isinstance(rows, list)
    assert [(r["perturbation"], r["applied"], r["skipped"]) for r in rows] == [  # type: ignore[index, call-overload]
        ("typo", 2, 0),
        ("case", 2, 0),
        ("punct", 2, 0),
        ("paraphrase", 1, 1),
        ("spacing", 2, 0),
    ]
    assert (result.statistics["applied"], result.statistics["skipped"]) == (9, 1)


def test_a_perturbation_that_never_applies_is_an_error_in_the_prompt_set() -> None:
    with pytest.raises(PromptsError, match="paraphrase applies to none of the 1 prompts"):
        plan(("Erkläre heute das Wetter.",))


def test_samples_say_what_was_changed() -> None:
    sample = plan().score(*run(plan(), SAME, SAME)).samples[0]
    assert (sample.id, sample.cluster, sample.denominator) == ("p0/typo", "p0", 1.0)
    assert sample.detail["perturbation"] == "typo"
    assert sorted(str(sample.detail["before"])) == sorted(str(sample.detail["after"]))


def test_a_lost_anchor_loses_its_changed_prompts() -> None:
    made = plan()
    lost = made.variants[0].anchor.candidate.prompt
    broken = Model(generate=lambda r, _: Failure(kind="oom", message="x") if r.prompt == lost else follow(r))
    result = made.score(*run(made, SAME, broken))
    assert result.status == "ok"
    assert "5 of 100 changed prompts were not scored: 5 × candidate oom: x" in result.warnings
    none = made.score({}, {})
    assert none.status == "failed"


@settings(max_examples=25, deadline=None)
@given(ours=st.integers(0, 8), theirs=st.integers(8, 15))
def test_drifting_further_than_the_reference_never_scores_more(ours: int, theirs: int) -> None:
    near, far = scored(ours, theirs), scored(ours, theirs + 1)
    assert value(far) < value(near)
    assert near.score is not None
    assert 0 <= near.score.low <= near.score.value <= near.score.high <= 100
