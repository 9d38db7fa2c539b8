"""The control: every configuration once more while the engine does the same arithmetic in another order.

Compressed caches are chaotic: the last bits of a matrix product decide single tokens. The reference under the change,
measured against the reference, says what a divergence is worth; a candidate under the change, measured against itself,
tells token-level noise from systematic loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from refract.axes.base import AxisPlan
from refract.axes.kld import KldPlan
from refract.engine import Engine
from refract.results import CONTROL_FACTOR, CandidateResult, SelfNoise, plain_number, within_noise
from refract.run.guards import Measured
from refract.run.prepare import Prepared, Side
from refract.run.sessions import Answering, Replies
from refract.run.spec import ControlScope

CONTROL = "control"

Opener = Callable[[Side], Answering]


@dataclass(slots=True)
class Control:
    """The control runs of one run, as far as they have come.

    `changes` are the options that differ, by configuration; one without any is not run again. `windows` is None where
    no candidate is: the axis kld is not measured, or only the reference is controlled. `own` are what candidates
    answered as their own reference, `changed` what they then answered under the change; both by the candidate's
    canonical text.
    """

    engine: Engine
    opened: Opener
    changes: Mapping[str, Mapping[str, str]]
    windows: KldPlan | None
    own: dict[str, Replies] = field(default_factory=dict)
    changed: dict[str, Replies] = field(default_factory=dict)

    def change(self, name: str) -> str:
        """The options that differ for a configuration, in words."""
        return ", ".join(f"{option} {value}" for option, value in sorted(self.changes[name].items()))

    def reference(self, prepared: Prepared, reference: Measured) -> Measured:
        """What the reference answers as its own candidate, under the change."""
        side = self._changed(prepared.reference)
        with self.opened(side) as session:
            requests = prepared.candidate_requests(reference.answers)
            answers = session.answer(requests, phase=CONTROL, salt=self._salt(side, prepared.reference))
            return Measured(kv=side.load.kv, effective=session.effective(CONTROL), answers=answers)

    def keep_own(self, side: Side, session: Answering) -> None:
        """Asks the candidate, in the session it already has, for what the same candidate is compared with later."""
        if self.windows is not None and side.name in self.changes:
            self.own[side.name] = session.answer(self.windows.reference(), phase=own_phase(side))

    def candidate(self, side: Side) -> None:
        """Asks the candidate under the change, in a session of its own."""
        if self.windows is None or side.name not in self.changes:
            return
        changed = self._changed(side)
        phase = control_phase(side)
        with self.opened(changed) as session:
            requests = self.windows.candidate(self.own[side.name])
            self.changed[side.name] = session.answer(requests, phase=phase, salt=self._salt(changed, side))

    def noise(self, name: str) -> SelfNoise | None:
        """What a candidate's own kernels do to it; None where it was not measured. Pure."""
        if self.windows is None or name not in self.changed:
            return None
        result = self.windows.score(self.own[name], self.changed[name])
        found = result.statistics
        return SelfNoise(
            change=self.change(name),
            mean_kl_nats=found.get("mean_kl_nats"),
            top1_agreement=found.get("top1_agreement"),
            positions=int(plain_number(found.get("positions")) or 0),
        )

    def _changed(self, side: Side) -> Side:
        load = replace(side.load, options={**side.load.options, **self.changes[side.name]})
        return Side(load=load, identity=self.engine.identify(load))

    @staticmethod
    def _salt(changed: Side, side: Side) -> str:
        """Keeps the control from reading back what it is to be compared with, should the identities not differ."""
        return CONTROL if changed.identity.digest == side.identity.digest else ""


def own_phase(side: Side) -> str:
    """The name of the phase in which a candidate answers as its own reference."""
    return f"{side.name} as reference"


def control_phase(side: Side) -> str:
    """The name of the phase in which a candidate is run under the change."""
    return f"{side.name} control"


def control_scope(asked: ControlScope | None, engine: Engine) -> ControlScope:
    """What is run again: what was asked for, or else the reference where the engine's kernels are noisy."""
    return asked or ("reference" if engine.control_by_default else "none")


def plan_control(scope: ControlScope, engine: Engine, prepared: Prepared, opened: Opener) -> Control | None:
    """The control of a run, none of it done yet; None where none is wanted or the engine has no harmless change."""
    if scope == "none":
        return None
    sides = [prepared.reference, *(prepared.candidates if scope == "all" else ())]
    found = {side.name: engine.control_options(side.load.options, side.load.kv) for side in sides}
    changes = {name: change for name, change in found.items() if change is not None}
    if prepared.reference.name not in changes:
        return None
    windows = windows_only(prepared.plans) if scope == "all" else None
    return Control(engine=engine, opened=opened, changes=changes, windows=windows)


def windows_only(plans: Mapping[str, AxisPlan]) -> KldPlan | None:
    """The plan of the axis kld without its depths and continuations: just the windows that make its score."""
    plan = plans.get("kld")
    return replace(plan, deep=(), anchors=None, notes=()) if isinstance(plan, KldPlan) else None


def reference_noise(result: CandidateResult, change: str) -> CandidateResult:
    """The control's result with its own noise stated, which is what it measured."""
    kld = next((axis for axis in result.axes if axis.axis == "kld"), None)
    found = {} if kld is None else kld.statistics
    noise = SelfNoise(
        change=change,
        mean_kl_nats=found.get("mean_kl_nats"),
        top1_agreement=found.get("top1_agreement"),
        positions=int(plain_number(found.get("positions")) or 0),
    )
    return replace(result, control=noise)


def controlled(
    candidates: Sequence[CandidateResult], control: Control, reference: CandidateResult
) -> tuple[CandidateResult, ...]:
    """The candidates with their own noise and what it means for them. Pure."""
    return tuple(_controlled(candidate, control.noise(candidate.kv), reference) for candidate in candidates)


def _controlled(candidate: CandidateResult, noise: SelfNoise | None, reference: CandidateResult) -> CandidateResult:
    findings = list(candidate.findings)
    mean, own = candidate.mean_kl_nats, None if noise is None else plain_number(noise.mean_kl_nats)
    if noise is not None and mean is not None and own is not None:
        findings.append(_separated(noise, mean, own))
    if within_noise(candidate, reference):
        findings.insert(0, _indistinct(candidate, reference))
    return replace(candidate, control=noise, findings=tuple(findings))


def _separated(noise: SelfNoise, mean: float, own: float) -> str:
    agreement = plain_number(noise.top1_agreement)
    flips = "" if agreement is None else f" and {100.0 * (1.0 - agreement):.1f} % other top tokens"
    return (
        f"systematic loss {mean:.3g} nats (mean KL against the reference); token-level noise"
        f" {own:.3g} nats{flips} (against itself under {noise.change})"
    )


def _indistinct(candidate: CandidateResult, control: CandidateResult) -> str:
    mean, noise = candidate.mean_kl_nats or 0.0, control.mean_kl_nats or 0.0
    return (
        f"not distinguishable from kernel noise: its mean KL of {mean:.3g} nats is within"
        f" {CONTROL_FACTOR:g} times the control's {noise:.3g}"
    )
