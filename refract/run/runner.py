"""One run: refuse, plan, ask the reference, ask each candidate, score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from refract.engine import PLACES, Engine
from refract.results import CandidateResult, Configuration, Json, ModelInfo
from refract.run.control import (
    CONTROL,
    Control,
    control_phase,
    control_scope,
    controlled,
    own_phase,
    plan_control,
    reference_noise,
    windows_only,
)
from refract.run.explain import explain, explain_layers, worth_explaining
from refract.run.guards import Measured
from refract.run.prepare import Prepared, Side, prepare
from refract.run.progress import Progress, RunEnded, RunStarted, silent
from refract.run.scoring import check_floor, score_candidate, score_run
from refract.run.scrub import model_name
from refract.run.sessions import Answering, Tally
from refract.run.spec import RunSpec
from refract.run.store import Store

REFERENCE, FLOOR = "reference", "floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run found and what it cost; everything but `loads`, `answers` and `seconds` is a function of the answers.

    `parameters` are the plans' own, by axis; `answers` counts those that were stored and those that were computed.
    """

    model: ModelInfo
    reference: Configuration
    candidates: tuple[CandidateResult, ...]
    floor: CandidateResult | None
    control: CandidateResult | None
    findings: tuple[str, ...]
    parameters: Mapping[str, Mapping[str, Json]]
    loads: int
    answers: Mapping[str, int]
    seconds: Mapping[str, float] = field(default_factory=dict)


def run(
    spec: RunSpec, engine: Engine, store: Store, *, progress: Progress = silent, allow_load: bool = True
) -> RunResult:
    """The scores of every candidate, from stored answers where there are any, with at most one load a configuration.

    With a control each configuration costs a second load, and one for each side of a candidate that is explained.

    Answers are stored as they come: after an exception, Ctrl-C or `kill -9` the same call continues. With `allow_load`
    false nothing is computed, which is what `refract rescore` needs.

    Raises:
        UsageError, SetupError: before any load; see `refract.run.prepare.prepare`.
        EngineError: the engine failed, or allocated or answered something else than it was asked.
        FloorError: the reference does not agree with itself.
        StoreError: the store is damaged or cannot be written.
        IncompleteError: an answer is missing and nothing may be loaded.
    """
    return _Run(spec, engine, store, progress, allow_load=allow_load).run()


class _Run:
    """The effects of one run, in order."""

    def __init__(self, spec: RunSpec, engine: Engine, store: Store, progress: Progress, *, allow_load: bool) -> None:
        self.spec, self.engine, self.store, self.progress = spec, engine, store, progress
        self.allow_load = allow_load
        self.scope = control_scope(spec.control, engine)
        self.tally = Tally()
        self.control: Control | None = None
        self.seconds: dict[str, float] = {}

    def run(self) -> RunResult:
        started = perf_counter()
        prepared = prepare(self.spec, self.engine)
        self.control = plan_control(self.scope, self.engine, prepared, self._answering)
        self.progress(RunStarted(phases=tuple(self._phases(prepared))))
        reference, floor = self._reference(prepared)
        if floor is not None:
            check_floor(score_candidate(self.spec, prepared, reference, floor), self.spec.floor_minimum)
        changed = None if self.control is None else self._changed_reference(self.control, prepared, reference)
        candidates = [self._candidate(prepared, side, reference) for side in prepared.candidates]
        scoring = perf_counter()
        scores = score_run(self.spec, prepared, reference, candidates, floor)
        own, found = self._controlled(prepared, reference, changed, scores.candidates)
        self.seconds["scoring"] = perf_counter() - scoring
        found = self._explained(prepared, reference, found)
        self.seconds["total"] = perf_counter() - started
        self.progress(
            RunEnded(
                seconds=self.seconds["total"],
                loads=self.tally.loads,
                stored=self.tally.stored,
                computed=self.tally.computed,
            )
        )
        return RunResult(
            model=self._model(prepared.reference),
            reference=Configuration(kv=prepared.reference.name, effective=reference.effective),
            candidates=found,
            floor=scores.floor,
            control=own,
            findings=self._findings(),
            parameters={name: dict(plan.parameters) for name, plan in prepared.plans.items()},
            loads=self.tally.loads,
            answers={"stored": self.tally.stored, "computed": self.tally.computed},
            seconds=self.seconds,
        )

    def _reference(self, prepared: Prepared) -> tuple[Measured, Measured | None]:
        """The reference's answers and, if asked, those it gives as its own candidate, in the same session."""
        side, own = prepared.reference, None
        with self._answering(side) as session:
            started = perf_counter()
            answers = session.answer(prepared.reference_requests(), phase=REFERENCE)
            effective = session.effective(REFERENCE)
            self.seconds[REFERENCE] = perf_counter() - started
            if self.spec.measure_floor:
                started = perf_counter()
                own = session.answer(prepared.candidate_requests(answers), phase=FLOOR, salt="floor")
                self.seconds[FLOOR] = perf_counter() - started
        reference = Measured(kv=side.load.kv, effective=effective, answers=answers)
        return reference, None if own is None else Measured(kv=side.load.kv, effective=effective, answers=own)

    def _candidate(self, prepared: Prepared, side: Side, reference: Measured) -> Measured:
        """The candidate's answers; salted if it is the reference itself, whose own would otherwise be read back."""
        started = perf_counter()
        salt = "candidate" if side.identity.digest == prepared.reference.identity.digest else ""
        with self._answering(side) as session:
            answers = session.answer(prepared.candidate_requests(reference.answers), phase=side.name, salt=salt)
            effective = session.effective(side.name)
            if self.control is not None:
                self.control.keep_own(side, session)
        self.seconds[side.name] = perf_counter() - started
        if self.control is not None:
            self._changed_candidate(self.control, side)
        return Measured(kv=side.load.kv, effective=effective, answers=answers)

    def _changed_reference(self, control: Control, prepared: Prepared, reference: Measured) -> Measured:
        """The reference's answers under the engine's harmless change."""
        started = perf_counter()
        measured = control.reference(prepared, reference)
        self.seconds[CONTROL] = perf_counter() - started
        return measured

    def _changed_candidate(self, control: Control, side: Side) -> None:
        """Asks a candidate under the change."""
        started = perf_counter()
        control.candidate(side)
        self.seconds[control_phase(side)] = perf_counter() - started

    def _controlled(
        self,
        prepared: Prepared,
        reference: Measured,
        changed: Measured | None,
        candidates: tuple[CandidateResult, ...],
    ) -> tuple[CandidateResult | None, tuple[CandidateResult, ...]]:
        """The control's result, and the candidates with what it means for them."""
        if self.control is None or changed is None:
            return None, candidates
        scored = score_candidate(self.spec, prepared, reference, changed)
        own = reference_noise(scored, self.control.change(prepared.reference.name))
        return own, controlled(candidates, self.control, own)

    def _explained(
        self, prepared: Prepared, reference: Measured, candidates: tuple[CandidateResult, ...]
    ) -> tuple[CandidateResult, ...]:
        """The candidates, those that lost much with the side that did it."""
        windows = windows_only(prepared.plans)
        if windows is None or self.spec.explain == "none":
            return candidates
        started, found = perf_counter(), []
        for side, candidate in zip(prepared.candidates, candidates, strict=True):
            if worth_explaining(side.load.kv, candidate):
                for explained in (explain, explain_layers) if self.spec.explain == "layers" else (explain,):
                    candidate = explained(
                        side,
                        candidate,
                        windows=windows,
                        reference=reference,
                        engine=self.engine,
                        opened=self._answering,
                    )
                self.seconds["explain"] = perf_counter() - started
            found.append(candidate)
        return tuple(found)

    def _phases(self, prepared: Prepared) -> Iterator[str]:
        """What is known beforehand of the order of the run."""
        yield REFERENCE
        if self.spec.measure_floor:
            yield FLOOR
        if self.control is not None:
            yield CONTROL
        for side in prepared.candidates:
            yield side.name
            if self.control is not None and self.control.windows is not None:
                yield from (own_phase(side), control_phase(side))

    def _findings(self) -> tuple[str, ...]:
        """What concerns the run as a whole."""
        if self.scope != "none" and self.control is None:
            return (f"no control: the engine {self.engine.name} has no harmless change to run under",)
        return ()

    def _answering(self, side: Side) -> Answering:
        return Answering(self.engine, side, self.store, self.progress, self.tally, allow_load=self.allow_load)

    def _model(self, side: Side) -> ModelInfo:
        identity = side.identity
        details: dict[str, Json] = dict(self.engine.describe(self.spec.model))
        if options := {name: value for name, value in sorted(self.spec.options.items()) if name not in PLACES}:
            details["options"] = dict(options)
        return ModelInfo(
            name=model_name(self.spec.model),
            fingerprint=identity.model,
            engine=f"{identity.engine} {identity.build}".strip(),
            details=details,
        )
