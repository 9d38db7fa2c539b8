"""Trajectory: identity, worst, hand-computed and monotone cases, and the ways such a score was fooled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.axes import AXES
from refract.axes.trajectory import Trajectory
from refract.engine import Capability
from refract.errors import PromptsError
from refract.results import AxisResult, Estimate
from refract.work import Failure, Generate, Generation

from .support import EOS, EVERYTHING, TWENTY, Model, SmallTokenizer, context, follow, generation, prompt_set, run

SAME = Model()


def scored(
    candidate: Model,
    *,
    reference: Model = SAME,
    prompts: tuple[str, ...] = TWENTY,
    n: int = 16,
    tokenizer: SmallTokenizer | None = None,
) -> AxisResult:
    plan = Trajectory().plan(context(tokenizer=tokenizer, prompts=prompt_set(*prompts), n_predict=n))
    return plan.score(*run(plan, reference, candidate))


def value(result: AxisResult) -> float:
    assert result.score is not None
    return result.score.value


def estimate(result: AxisResult, name: str) -> Estimate:
    found = result.statistics[name]
    assert isinstance(found, Estimate)
    return found


def keep(request: Generate, prefix: int, *, stop: str = "length") -> Generation:
    """The reference's first `prefix` tokens, then others or the end."""
    own = follow(request).tokens
    if stop == "eos":
        return generation(*own[:prefix], EOS, stop="eos")
    return generation(*own[:prefix], *(7 for _ in own[prefix:]))


def test_identity_is_100_with_an_interval() -> None:
    result = scored(SAME)
    assert (result.status, value(result)) == ("ok", 100.0)
    assert estimate(result, "identical_share").value == 1.0
    assert estimate(result, "hazard_per_1000").value == 0.0
    assert result.statistics["median_first_divergence"] is None
    assert result.findings == result.warnings == ()
    assert all(s.detail["divergence"] is None and s.detail["kind"] is None for s in result.samples)


def test_worst_is_0() -> None:
    result = scored(Model(generate=lambda r, _: keep(r, 0)))
    assert value(result) == 0.0
    assert result.statistics["median_first_divergence"] == 0
    assert estimate(result, "hazard_per_1000").value == 1000.0


def test_hand_computed_score_hazard_and_survival() -> None:
    """Two prompts: 4 of 16 tokens in common, and all 16."""
    result = scored(Model(generate=lambda r, i: keep(r, 4 if i == 0 else 16)), prompts=TWENTY[:2])
    assert value(result) == pytest.approx(100 * (4 / 16 + 1) / 2)
    assert estimate(result, "hazard_per_1000").value == pytest.approx(1000 * 1 / (5 + 16))
    survival = result.series["survival"]
    assert isinstance(survival, dict)
    assert (survival["time"], survival["survival"], survival["tau"]) == ([4, 16], [0.5, 0.5], 16)
    assert result.statistics["median_first_divergence"] == 4
    assert [row["category"] for row in result.series["categories"]] == ["qa", "code"]  # type: ignore[index, union-attr]


def test_a_longer_answer_divides_by_its_own_length() -> None:
    """Reference: 3 tokens and the end; candidate: the same 3 and 13 more. p = 3, L = 16."""
    ended = Model(generate=lambda r, _: keep(r, 3, stop="eos"))
    result = scored(SAME, reference=ended, prompts=TWENTY[:2])
    assert value(result) == pytest.approx(100 * 3 / 16)
    assert "run on to the token limit" in result.findings[0]


def test_the_end_of_sequence_counts_as_a_token() -> None:
    ended = Model(generate=lambda r, _: keep(r, 3, stop="eos"))
    assert value(scored(ended, reference=ended)) == 100.0


@pytest.mark.parametrize("kept", [1, 5])
def test_early_stop_does_not_score_100(kept: int) -> None:
    result = scored(Model(generate=lambda r, _: keep(r, kept, stop="eos")), n=128)
    assert value(result) == pytest.approx(100 * kept / 128)
    assert result.findings[0] == "20 of 20 candidate answers end after at most 5 tokens where the reference goes on"


def test_silence_scores_near_0_whether_the_end_is_a_token_or_not() -> None:
    for silent in (generation(EOS, stop="eos"), generation()):
        result = scored(Model(generate=lambda r, i, silent=silent: follow(r) if i == 0 else silent))  # type: ignore[misc]
        assert value(result) == pytest.approx(5.0)
        assert result.findings[0] == "19 of 20 candidate answers are empty where the reference answers"


def test_constant_junk_is_a_finding() -> None:
    result = scored(Model(generate=lambda r, _: generation(*range(50, 66))))
    assert value(result) < 5
    assert "one and the same text in 20 of 20" in " ".join(result.findings)


def test_both_silent_is_a_failure_not_an_agreement() -> None:
    silent = Model(generate=lambda r, _: generation(EOS, stop="eos"))
    result = scored(silent, reference=silent)
    assert (result.status, result.score) == ("failed", None)
    assert result.reason is not None
    assert "both sides gave an empty answer" in result.reason


@pytest.mark.parametrize(("failing", "status"), [(2, "ok"), (3, "failed"), (20, "failed")])
def test_more_than_a_tenth_unanswered_fails(failing: int, status: str) -> None:
    broken = Model(generate=lambda r, i: Failure(kind="timeout", message="60 s") if i < failing else follow(r))
    result = scored(broken)
    assert result.status == status
    told = " ".join((*result.warnings, result.reason or ""))
    assert f"{failing} of 20 prompts" in told
    assert "candidate timeout: 60 s" in told
    assert len(result.samples) == 20 - failing


def test_an_answer_that_was_never_given_is_a_failure() -> None:
    plan = Trajectory().plan(context())
    result = plan.score({}, {})
    assert result.status == "failed"


@pytest.mark.parametrize(
    ("margin", "kind", "decisive"), [(0.05, "near-tie", 0.0), (0.1, "decisive", 200.0), (0.6, "decisive", 200.0)]
)
def test_divergences_are_told_apart_by_the_reference_margin(margin: float, kind: str, decisive: float) -> None:
    tokens = tuple(range(40, 56))
    margins = [0.7] * 4 + [margin + 1e-6] + [0.7] * 11
    reference = Model(generate=lambda r, _: generation(*tokens, margins=margins))
    result = scored(Model(generate=lambda r, _: generation(*tokens[:4], *range(90, 102))), reference=reference)
    assert {s.detail["kind"] for s in result.samples} == {kind}
    assert result.samples[0].detail["margin"] == pytest.approx(margin, abs=1e-4)
    assert estimate(result, "decisive_hazard_per_1000").value == pytest.approx(decisive)
    assert estimate(result, "near_tie_share").value == (1.0 if kind == "near-tie" else 0.0)


def test_without_listings_margins_are_unknown() -> None:
    bare = Model(generate=lambda r, _: Generation(tokens=follow(r).tokens, stop="length"))
    result = scored(Model(generate=lambda r, _: keep(r, 2)), reference=bare)
    assert {s.detail["kind"] for s in result.samples} == {"unknown"}
    assert result.statistics["decisive_hazard_per_1000"] is None
    assert result.statistics["near_tie_share"] is None


def test_texts_have_one_piece_a_token_and_whole_characters() -> None:
    tokenizer = SmallTokenizer()
    ids = tokenizer.encode("naïve 👩‍🚀 שלום")
    both = Model(generate=lambda r, _: generation(*ids))
    result = scored(both, reference=both, prompts=TWENTY[:2], n=len(ids), tokenizer=tokenizer)
    side = result.samples[0].detail["reference"]
    assert isinstance(side, dict)
    texts = side["texts"]
    assert isinstance(texts, list)
    assert len(texts) == len(ids)
    assert "".join(map(str, texts)) == "naïve 👩‍🚀 שלום"
    assert result.findings == ()


def test_a_character_cut_at_the_limit_is_no_finding_but_one_in_the_middle_is() -> None:
    tokenizer = SmallTokenizer()
    whole = tokenizer.encode("caf" + "é")
    cut = Model(generate=lambda r, _: generation(*whole[:-1]))
    assert "invalid UTF-8" not in " ".join(scored(cut, n=5, tokenizer=tokenizer).findings)
    broken = Model(generate=lambda r, _: generation(*whole[:-1], *tokenizer.encode(" ok")))
    assert "20 of 20 candidate answers hold broken characters" in " ".join(
        scored(broken, n=8, tokenizer=tokenizer).findings
    )


def test_loops_of_the_candidate_alone_are_found() -> None:
    looping = Model(generate=lambda r, _: generation(*([8, 9] * 32)))
    assert "20 of 20 candidate answers end in a loop" in " ".join(scored(looping, n=64).findings)
    assert "loop" not in " ".join(scored(looping, reference=looping, n=64).findings)


def test_requests_are_shared_and_only_the_reference_keeps_its_base() -> None:
    plan = Trajectory().plan(context())
    ours, theirs = plan.reference(), plan.candidate({})
    assert all(isinstance(r, Generate) and r.keep_base and r.top_k == 2 for r in ours)
    assert all(isinstance(r, Generate) and not r.keep_base for r in theirs)
    assert [r.prompt for r in ours] == [r.prompt for r in theirs]  # type: ignore[union-attr]
    poor = Trajectory().plan(context(capabilities=frozenset({Capability.GENERATE})))
    assert poor.reference() == poor.candidate({})


def test_prompts_beyond_the_context_are_skipped_and_counted() -> None:
    plan = Trajectory().plan(context(prompts=prompt_set("short one", "w" * 900), context_length=100))
    assert len(plan.reference()) == 1
    assert plan.max_tokens <= 100
    assert plan.score(*run(plan, SAME, SAME)).warnings == (
        "1 of 2 prompts exceed the model's context and were skipped: p1",
    )
    with pytest.raises(PromptsError, match="none of the 1 prompts"):
        Trajectory().plan(context(prompts=prompt_set("w" * 900), context_length=100))


def test_repeated_prompts_count_once() -> None:
    plan = Trajectory().plan(context(prompts=prompt_set("the same", "the same", "another")))
    assert len(plan.reference()) == 2
    assert "repeat an earlier one" in plan.score(*run(plan, SAME, SAME)).warnings[0]


def test_a_base_model_and_a_doubled_begin_token_are_told() -> None:
    plain = Trajectory().plan(context(tokenizer=SmallTokenizer(chat=False)))
    assert "no chat template" in " ".join(plain.score(*run(plain, SAME, SAME)).warnings)
    assert plain.parameters["chat_template"] is False

    class Doubled(SmallTokenizer):
        def render(self, messages):  # type: ignore[no-untyped-def]
            return (0, *super().render(messages))

    doubled = Trajectory().plan(context(tokenizer=Doubled()))
    assert "begin with two begin-of-sequence tokens" in " ".join(doubled.score(*run(doubled, SAME, SAME)).warnings)


@pytest.mark.parametrize(
    "text", ["ends with a space ", "a newline\n", "zero\u200bwidth", "👩‍👩‍👧 family", "مرحبا بالعالم", "cut \u00e9"]
)
def test_awkward_prompts_are_asked_exactly(text: str) -> None:
    tokenizer = SmallTokenizer()
    plan = Trajectory().plan(context(tokenizer=tokenizer, prompts=prompt_set(text, "other")))
    request = plan.reference()[0]
    assert isinstance(request, Generate)
    assert tokenizer.decode(request.prompt) == f"<s><user>{text}<assistant>"
    assert value(plan.score(*run(plan, SAME, SAME))) == 100.0


@settings(deadline=None)
@given(prefixes=st.lists(st.integers(0, 15), min_size=20, max_size=20), which=st.integers(0, 19))
def test_a_longer_common_prefix_never_scores_less(prefixes: list[int], which: int) -> None:
    longer = list(prefixes)
    longer[which] += 1
    low, high = (scored(Model(generate=lambda r, i, p=p: keep(r, p[i]))) for p in (prefixes, longer))  # type: ignore[misc]
    assert value(low) < value(high)
    assert estimate(high, "hazard_per_1000").value <= estimate(low, "hazard_per_1000").value + 1e-9


@settings(deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_score_lies_in_its_interval_for_any_answers(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def any_answer(request: Generate, _: int) -> Generation:
        length = int(rng.integers(0, 17))
        own = follow(request).tokens[:length]
        return generation(*own, EOS, stop="eos") if rng.random() < 0.5 and length < 16 else generation(*own)

    result = scored(Model(generate=any_answer))
    assert result.score is not None
    assert 0 <= result.score.low <= result.score.value <= result.score.high <= 100


def test_the_axis_is_listed_under_its_name() -> None:
    assert AXES["trajectory"]().needs <= EVERYTHING
    assert all(name == factory().name for name, factory in AXES.items())
