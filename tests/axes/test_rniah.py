"""rniah: identity, worst, hand-computed, monotone; nobody retrieves; thinking models; cells that do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.axes.retrieval import Trial
from refract.axes.rniah import Rniah, RniahPlan
from refract.engine import Capability
from refract.errors import UsageError
from refract.results import AxisResult, Estimate
from refract.work import Failure, Generate, Generation, ScoreTokens, TokenScores

from .support import EOS, EVERYTHING, Model, SmallTokenizer, context, corpus, generation, prose, run

KNOBS = Rniah(up_to=2048, trials=4)
TOKENIZER = SmallTokenizer()
LONG = prose(80000, seed=5)


@lru_cache
def plan(knobs: Rniah = KNOBS, *, thinks: bool = False, context_length: int = 4096, grade: bool = True) -> RniahPlan:
    tokenizer = SmallTokenizer(thinks=True) if thinks else TOKENIZER
    capabilities = EVERYTHING if grade else EVERYTHING - {Capability.SCORE_TOKENS}
    text = corpus(one=LONG)
    return knobs.plan(context(tokenizer=tokenizer, text=text, context_length=context_length, capabilities=capabilities))


def answering(made: RniahPlan, says: Callable[[int, Trial], str | Failure], *, logprob: float = -1.0) -> Model:
    """A model that answers trial number i with the text `says(i, trial)`."""
    by_prompt = {trial.ask.prompt: (i, trial) for i, trial in enumerate(made.trials.asked)}

    def generate(request: Generate, _: int) -> Generation | Failure:
        text = says(*by_prompt[request.prompt])
        if isinstance(text, Failure):
            return text
        return generation(*made.context.tokenizer.encode(text), EOS, stop="eos")

    def score(request: ScoreTokens, _: int) -> TokenScores:
        return TokenScores(logprobs=np.full(len(request.tokens) - request.start, logprob, dtype=np.float32))

    return Model(generate=generate, score=score)


def right(_: int, trial: Trial) -> str:
    return f"The answer is {trial.needle.answer}."


def wrong(_: int, trial: Trial) -> str:
    return "I cannot find that in the text at all."


def first(count: int) -> Callable[[int, Trial], str]:
    return lambda i, trial: right(i, trial) if i < count else wrong(i, trial)


def scored(
    reference: Callable[[int, Trial], str | Failure], candidate: Callable[[int, Trial], str | Failure]
) -> AxisResult:
    made = plan()
    return made.score(*run(made, answering(made, reference), answering(made, candidate, logprob=-1.5)))


def value(result: AxisResult) -> float:
    assert result.score is not None
    return result.score.value


def test_identity_is_100_with_wilson_interval() -> None:
    result = scored(right, right)
    assert (result.status, value(result)) == ("ok", 100.0)
    assert result.score is not None
    assert (result.score.method, result.score.n, result.score.clusters) == ("wilson", 48, 48)
    assert result.score.low == pytest.approx(100 * 48 / (48 + 1.959964**2), abs=1e-3)
    assert result.statistics["informative"] == 48
    assert result.warnings == ()


def test_worst_is_0() -> None:
    result = scored(right, wrong)
    assert (result.status, value(result)) == ("ok", 0.0)
    assert "misses 48 of 48 needles" in result.findings[0]


def test_nobody_retrieves_is_no_measurement() -> None:
    for says in (wrong, lambda i, t: "yes"):
        result = scored(says, says)
        assert (result.status, result.score) == ("low-confidence", None)
        assert "the reference retrieved 0 of 48 needles" in str(result.reason)
    silent = scored(lambda i, t: "", lambda i, t: "")
    assert (silent.status, silent.score) == ("failed", None)


@pytest.mark.parametrize(("found", "status"), [(5, "low-confidence"), (6, "ok")])
def test_six_informative_trials_are_needed(found: int, status: str) -> None:
    result = scored(first(found), right)
    assert result.status == status
    assert (result.score is None) == (found < 6)
    retention = result.statistics["retention"]
    assert isinstance(retention, Estimate)
    assert (retention.value, retention.n) == (1.0, found)


def test_hand_computed_retention_ignores_what_the_reference_missed() -> None:
    """The reference finds trials 0 … 23, the candidate 12 … 47: 12 of 24."""
    result = scored(first(24), lambda i, t: right(i, t) if i >= 12 else wrong(i, t))
    assert value(result) == pytest.approx(50.0)
    stats = result.statistics
    assert (stats["reference_hits"], stats["candidate_hits"], stats["lost"], stats["gained"]) == (24, 12, 12, 24)
    assert [s.denominator for s in result.samples] == [1.0] * 24 + [0.0] * 24
    cells = result.series["cells"]
    assert isinstance(cells, list)
    assert [c["informative"] for c in cells] == [4] * 6 + [0] * 6  # type: ignore[index, call-overload]
    assert [c["candidate_hits"] for c in cells] == [0] * 3 + [4] * 3 + [0] * 6  # type: ignore[index, call-overload]
    assert "12 of 24 needles that the reference retrieves: 12 at 256 tokens" in result.findings[0]


def test_lengths_are_exact_and_needles_and_haystacks_distinct() -> None:
    asked = plan().trials.asked
    assert [len(t.ask.prompt) for t in asked] == [t.cell.length for t in asked]
    assert sorted({t.cell.length for t in asked}) == [256, 512, 1024, 2048]
    assert len({t.needle.facts for t in asked}) == len({t.haystack for t in asked}) == len(asked) == 48
    for cell in {t.cell for t in asked}:
        assert len({t.needle.family for t in asked if t.cell == cell}) == 4
    for trial in asked:
        text = TOKENIZER.decode(trial.ask.prompt)
        assert all(text.count(fact) == 1 for fact in trial.needle.facts)


def test_the_answer_is_graded_in_decode_protocol() -> None:
    made = plan()
    grades = [r for r in made.reference() if isinstance(r, ScoreTokens)]
    assert len(grades) == 48
    assert all(
        g.step == 1 and TOKENIZER.decode(g.tokens[g.start :]) == t.needle.answer
        for g, t in zip(grades, made.trials.asked, strict=True)
    )
    delta = scored(wrong, wrong).statistics["answer_nll_delta_nats"]
    assert isinstance(delta, Estimate)
    assert delta.value == pytest.approx(0.5)
    assert not any(isinstance(r, ScoreTokens) for r in plan(grade=False).reference())


def test_gradings_that_are_not_finite_are_counted_and_left_out() -> None:
    made = plan()
    result = made.score(*run(made, answering(made, right), answering(made, right, logprob=-math.inf)))
    assert result.statistics["answer_nll_delta_nats"] is None
    assert "48 of 48 right answers could not be graded" in result.warnings[0]


def test_a_needle_found_only_while_thinking_is_no_hit() -> None:
    result = scored(right, lambda i, t: f"<think>{t.needle.answer}</think>I do not know.")
    assert value(result) == 0.0


def test_a_budget_spent_thinking_is_reported_not_scored() -> None:
    made = plan(thinks=True)
    assert all(t.thinking for t in made.trials.asked)
    lost = answering(made, lambda i, t: f"The text says {t.needle.answer}, so")
    result = made.score(*run(made, lost, lost))
    assert (result.status, result.score) == ("low-confidence", None)
    assert "did not finish thinking in 48" in str(result.reason)
    done = answering(made, lambda i, t: f"Hm.</think>{t.needle.answer}")
    assert value(made.score(*run(made, done, done))) == 100.0
    some = answering(made, lambda i, t: "Hm, " if i < 4 else f"Hm.</think>{t.needle.answer}")
    few = made.score(*run(made, done, some))
    assert (few.status, value(few), few.statistics["informative"]) == ("ok", 100.0, 44)
    assert "the candidate spent its budget thinking in 4 of 48 trials" in few.warnings
    many = made.score(
        *run(made, done, answering(made, lambda i, t: "Hm, " if i < 24 else f"</think>{t.needle.answer}"))
    )
    assert many.status == "low-confidence"


def test_failures_are_not_misses() -> None:
    lost = Failure(kind="oom", message="no memory")
    few = scored(right, lambda i, t: lost if i < 4 else right(i, t))
    assert (few.status, value(few)) == ("ok", 100.0)
    assert "4 of 48 trials were not scored: 4 × candidate oom: no memory" in few.warnings
    assert scored(right, lambda i, t: lost if i < 5 else right(i, t)).status == "failed"
    assert plan().score({}, {}).status == "failed"


def test_cells_beyond_the_context_are_skipped_with_the_reason() -> None:
    made = plan(context_length=1200)
    assert {t.cell.length for t in made.trials.asked} == {256, 512, 1024}
    assert made.max_tokens <= 1200
    model = answering(made, right)
    result = made.score(*run(made, model, model))
    assert result.warnings == (
        "cells 2048@0.1, 2048@0.5, 2048@0.9 were skipped: 2048 + 64 tokens exceed the model's context of 1200",
    )
    cells = result.series["cells"]
    assert isinstance(cells, list)
    assert [c["skipped"] is not None for c in cells] == [False] * 9 + [True] * 3  # type: ignore[index, call-overload]


def test_nothing_that_fits_is_not_run() -> None:
    made = plan(context_length=100)
    assert (made.reference(), made.max_tokens) == ([], 1)
    result = made.score({}, {})
    assert (result.status, result.score) == ("not-run", None)


def test_a_corpus_too_short_for_a_cell_and_a_question_too_long_for_one() -> None:
    made = KNOBS.plan(context(tokenizer=SmallTokenizer(), text=corpus(a=prose(400))))
    assert {t.cell.length for t in made.trials.asked} == {256, 512}
    assert {reason for _, reason in made.trials.skipped} == {
        "the corpus has too little text for 2048 tokens",
        "the corpus has too little text for 1024 tokens",
    }
    tiny = Rniah(up_to=256).plan(context(tokenizer=SmallTokenizer(), text=corpus(one=LONG)))
    assert any("the question and the template alone need" in reason for _, reason in tiny.trials.skipped)


def test_needles_at_both_ends() -> None:
    made = Rniah(up_to=1024, trials=1, positions=(0.0, 1.0)).plan(
        context(tokenizer=SmallTokenizer(), text=corpus(one=LONG))
    )
    assert {t.depth for t in made.trials.asked} == {0.0, 1.0}


def test_trials_that_share_a_haystack_are_one_cluster() -> None:
    made = KNOBS.plan(context(tokenizer=SmallTokenizer(), text=corpus(a=prose(4000))))
    model = answering(made, right)
    result = made.score(*run(made, model, model))
    assert result.score is not None
    assert result.score.clusters < result.score.n
    assert {s.cluster for s in result.samples} == {t.haystack for t in made.trials.asked}


def test_named_lengths_stand_in_place_of_doubled_ones_and_those_beyond_the_context_are_skipped() -> None:
    made = Rniah(lengths=(512, 300, 1 << 20), trials=1).plan(context(tokenizer=SmallTokenizer(), text=corpus(one=LONG)))
    assert {t.cell.length for t in made.trials.asked} == {512, 300}
    assert made.parameters["lengths"] == [512, 300, 1 << 20]
    assert {cell.length for cell, reason in made.trials.skipped if "exceed the model's context" in reason} == {1 << 20}


@pytest.mark.parametrize(
    "knobs",
    [
        Rniah(lengths=(10,)),
        Rniah(lengths=(256, 256)),
        Rniah(up_to=10),
        Rniah(trials=0),
        Rniah(positions=(1.5,)),
        Rniah(positions=()),
    ],
)
def test_knobs_that_mean_nothing_are_refused(knobs: Rniah) -> None:
    with pytest.raises(UsageError):
        knobs.plan(context())


@settings(max_examples=25, deadline=None)
@given(found=st.integers(6, 47))
def test_more_hits_never_score_less(found: int) -> None:
    less, more = scored(right, first(found)), scored(right, first(found + 1))
    assert value(less) == pytest.approx(100 * found / 48)
    assert value(less) < value(more)
