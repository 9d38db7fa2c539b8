"""A fake model that answers its prompts and finds its needles, and runs of all four axes over candidates of it."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from axes.support import corpus, prompt_set, prose

from refract.axes.base import Axis, PlanContext
from refract.axes.kld import Kld
from refract.axes.plad import Plad
from refract.axes.rniah import Rniah, RniahPlan
from refract.axes.trajectory import Trajectory
from refract.data.corpus import Corpus
from refract.engine import Capability
from refract.kv import parse_kv
from refract.results import AxisResult, CandidateResult
from refract.run.runner import RunResult, run
from refract.run.spec import RunSpec
from refract.run.store import AnswerStore
from refract.testing import FakeEngine, FakeTokenizer
from refract.testing.tokenizer import ASSISTANT, BOS, EOS, TURN_END, USER
from refract.work import TokenIds

N_PREDICT = 48
REFERENCE, CANDIDATE = "ctk=f16,ctv=f16", "ctk=q8_0,ctv=q8_0"
SUBJECTS = (
    "bridges",
    "windmills",
    "violins",
    "glaciers",
    "compasses",
    "beehives",
    "locks",
    "tides",
    "kilns",
    "sundials",
    "radios",
    "clouds",
    "magnets",
    "looms",
    "ovens",
    "elevators",
    "lenses",
    "batteries",
    "rivers",
    "cameras",
    "bicycles",
    "volcanoes",
    "pianos",
    "harbours",
    "turbines",
    "comets",
    "gardens",
    "printers",
    "whistles",
    "canals",
)
PROMPTS = prompt_set(*(f"Explain how {subject} work and give one brief example." for subject in SUBJECTS))
TEXT = corpus(one=prose(30000, seed=1), two=prose(30000, seed=2))
RETRIEVAL = Rniah(up_to=4096, trials=1, answer_tokens=24)
AXES: tuple[Axis, ...] = (Trajectory(), Kld(chunks=8, ctx=64), RETRIEVAL, Plad(prompts_limit=12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What the fake model knows to say, and how: `needles` it finds, `steady` answers hardly change with a prompt's
    wording."""

    needles: Mapping[TokenIds, tuple[int, ...]]
    steady: bool = False

    def __call__(self, prompt: TokenIds) -> Sequence[int] | None:
        """The needle's answer, or what belongs to the subject of a request; None for plain text."""
        return self.needles.get(prompt) or self._spoken(prompt)

    def _spoken(self, prompt: TokenIds) -> Sequence[int] | None:
        if prompt[:2] != (BOS, USER) or prompt[-2:] != (TURN_END, ASSISTANT):
            return None
        text = bytes(prompt[2:-2]).decode("utf-8", "replace")
        subject = text.split()[2] if len(text.split()) > 2 else text
        wording = "" if self.steady else f" {_letters(text)[:8]}"
        return (*f"{subject} {_letters(subject)}{wording}".encode(), EOS)


def _letters(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digest.translate(str.maketrans("0123456789", "ghijklmnop"))


def planned(retrieval: Rniah = RETRIEVAL, text: Corpus = TEXT) -> RniahPlan:
    """The retrieval trials of every run here."""
    made = retrieval.plan(
        PlanContext(
            tokenizer=FakeTokenizer(),
            prompts=PROMPTS,
            corpus=text,
            n_predict=N_PREDICT,
            context_length=1 << 16,
            capabilities=frozenset(Capability),
        )
    )
    assert isinstance(made, RniahPlan)
    return made


NEEDLES = {trial.ask.prompt: (*trial.answer, EOS) for trial in planned().trials.asked}
KNOWS = Knowledge(needles=NEEDLES)


def spec(*candidates: str, **changes: object) -> RunSpec:
    """A run of all four axes."""
    made = RunSpec(
        model="fake",
        reference=parse_kv(REFERENCE),
        candidates=tuple(map(parse_kv, candidates)),
        axes=AXES,
        prompts=PROMPTS,
        corpus=TEXT,
        n_predict=N_PREDICT,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


class Bench:
    """Runs in a store of their own, each beginning with the answers that the reference gave once for all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._count = folder, 0
        with AnswerStore(folder / "reference") as store:
            run(spec(measure_floor=True), FakeEngine(respond=KNOWS), store)

    def run(self, engine: FakeEngine, asked: RunSpec, *, fresh: bool = False) -> RunResult:
        """The run; `fresh` where the reference is another one."""
        self._count += 1
        own = self.folder / f"run-{self._count}"
        if not fresh:
            shutil.copytree(self.folder / "reference", own)
        try:
            with AnswerStore(own) as store:
                return run(asked, engine, store)
        finally:
            shutil.rmtree(own, ignore_errors=True)


def axes_of(result: CandidateResult) -> dict[str, AxisResult]:
    """The axes by name."""
    return {axis.axis: axis for axis in result.axes}


def diagnosis(result: CandidateResult) -> str:
    """Everything that is said of a candidate in words, one sentence a line."""
    parts = [*result.findings, *result.effective.notes]
    for axis in result.axes:
        parts += [*axis.findings, *axis.warnings, axis.reason or ""]
    return "\n".join(dict.fromkeys(parts))


def says(result: CandidateResult, *patterns: str) -> None:
    """Asserts that each pattern occurs in the diagnosis."""
    text = diagnosis(result)
    for pattern in patterns:
        assert re.search(pattern, text), f"nothing like {pattern!r} in:\n{text}"


def high(axis: AxisResult) -> bool:
    """Whether a reader would take the axis for good."""
    return axis.status == "ok" and axis.score is not None and axis.score.value >= 80.0


def passes(result: CandidateResult) -> bool:
    """Whether a reader would take the candidate for good."""
    return result.composite.band in ("PASS", "EXCELLENT")


def summary(name: str, result: CandidateResult) -> str:
    """One line for the log: every axis' score or status, and the band."""
    cells = [f"{a.axis} {a.status if a.score is None else round(a.score.value, 1)}" for a in result.axes]
    return f"{name:34} {' | '.join(cells)} | {result.composite.band}"
