"""All axes over the fake engine: healthy candidates score by their noise, and no broken one is ok with a high score."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from refract.axes import AXES
from refract.axes.base import PlanContext
from refract.axes.kld import Kld
from refract.axes.plad import Plad
from refract.axes.rniah import Rniah, RniahPlan
from refract.axes.trajectory import Trajectory
from refract.engine import Capability
from refract.kv import parse_kv
from refract.results import AxisResult, CandidateResult
from refract.run.runner import RunResult, run
from refract.run.spec import RunSpec
from refract.run.store import AnswerStore
from refract.testing import Behaviour, FakeEngine, FakeTokenizer
from refract.testing.tokenizer import EOS
from refract.work import TokenIds

from .support import TWENTY, corpus, prompt_set, prose

N_PREDICT = 32
PROMPTS = prompt_set(*TWENTY[:12])
TEXT = corpus(one=prose(30000, seed=1), two=prose(30000, seed=2))
SMALL = (Trajectory(), Kld(chunks=8, ctx=64), Plad(prompts_limit=6), Rniah(up_to=2048, trials=1, answer_tokens=16))


@cache
def answers() -> dict[TokenIds, tuple[int, ...]]:
    """What the fake model knows: the right answer to every retrieval question."""
    context = PlanContext(
        tokenizer=FakeTokenizer(),
        prompts=PROMPTS,
        corpus=TEXT,
        n_predict=N_PREDICT,
        context_length=1 << 16,
        capabilities=frozenset(Capability),
    )
    made = SMALL[-1].plan(context)
    assert isinstance(made, RniahPlan)
    return {t.ask.prompt: (*t.answer, EOS) for t in made.trials.asked}


def known(prompt: TokenIds) -> Sequence[int] | None:
    """The right answer; to everything else a beginning, so that the reference is never silent."""
    return answers().get(prompt, (ord("A"),))


def measured(folder: Path, behaviour: Behaviour | None, *candidates: str, floor: bool = False) -> RunResult:
    spec = RunSpec(
        model="fake",
        reference=parse_kv("ctk=f16,ctv=f16"),
        candidates=tuple(map(parse_kv, candidates)),
        axes=SMALL,
        prompts=PROMPTS,
        corpus=TEXT,
        n_predict=N_PREDICT,
        measure_floor=floor,
    )
    with AnswerStore(folder) as store:
        return run(spec, FakeEngine(candidate_behaviour=behaviour, respond=known), store)


def by_name(result: CandidateResult) -> dict[str, AxisResult]:
    return {axis.axis: axis for axis in result.axes}


def test_the_floor_is_exact_and_noise_orders_the_scores(tmp_path: Path) -> None:
    found = measured(tmp_path, None, "ctk=q8_0,ctv=q8_0", "ctk=turbo2,ctv=turbo2", floor=True)
    assert found.loads == 3
    assert found.floor is not None
    assert {axis.axis for axis in found.floor.axes} == set(AXES)
    for axis in found.floor.axes:
        assert axis.score is not None, axis
        assert axis.score.value == 100.0
    near, far = map(by_name, found.candidates)
    for name in ("trajectory", "kld"):
        good, bad = near[name].score, far[name].score
        assert good is not None
        assert bad is not None
        assert bad.value < good.value <= 100.0


BROKEN = [
    Behaviour.EARLY_STOP,
    Behaviour.EMPTY,
    Behaviour.CONSTANT_JUNK,
    Behaviour.LOOP,
    Behaviour.NAN_LOGITS,
    Behaviour.NAN_EVERYWHERE,
    Behaviour.NEVER_COMPRESSED,
    Behaviour.SILENTLY_UNCOMPRESSED,
    Behaviour.RETRIEVES_NOTHING,
]
BLIND = {  # faults that an axis does not ask for, or that leave what it measures alone
    ("kld", Behaviour.RETRIEVES_NOTHING),
    ("trajectory", Behaviour.RETRIEVES_NOTHING),
    ("plad", Behaviour.RETRIEVES_NOTHING),
}


@pytest.mark.parametrize("behaviour", BROKEN)
def test_broken_candidates_are_never_ok_with_a_high_score(tmp_path: Path, behaviour: Behaviour) -> None:
    (result,) = measured(tmp_path, behaviour, "ctk=q8_0,ctv=q8_0").candidates
    for axis in result.axes:
        if (axis.axis, behaviour) in BLIND:
            continue
        high = axis.status == "ok" and axis.score is not None and axis.score.value >= 80.0
        print(f"{behaviour.name:22} {axis.axis:10} {axis.status:14} {axis.score and round(axis.score.value, 1)}")
        assert not high, f"{axis.axis} under {behaviour.name}: {axis.score}"
