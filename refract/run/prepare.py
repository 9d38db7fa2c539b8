"""Everything that happens before a model is loaded: every refusal, and every axis' plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from refract.axes.base import Answers, Axis, AxisPlan, PlanContext
from refract.engine import Capability, Engine, Identity, LoadSpec
from refract.errors import KVUnsupportedError, UsageError
from refract.kv import KVConfig
from refract.run.spec import RunSpec
from refract.work import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One configuration of a run: what to load, and what its answers are stored under."""

    load: LoadSpec
    identity: Identity

    @property
    def name(self) -> str:
        """The configuration's canonical text."""
        return str(self.load.kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run in which nothing is left to refuse. `not_run` gives the reason for each axis without a plan."""

    plans: Mapping[str, AxisPlan]
    not_run: Mapping[str, str]
    reference: Side
    candidates: tuple[Side, ...]

    def reference_requests(self) -> list[Request]:
        """The union of the axes' requests, duplicates merged, in the order of the plans."""
        return list(dict.fromkeys(request for plan in self.plans.values() for request in plan.reference()))

    def candidate_requests(self, reference: Answers) -> list[Request]:
        """The union of what the axes ask a candidate, given the reference's answers, duplicates merged."""
        return list(dict.fromkeys(request for plan in self.plans.values() for request in plan.candidate(reference)))


def prepare(spec: RunSpec, engine: Engine) -> Prepared:
    """The planned run. Loads nothing.

    Raises:
        UsageError: a candidate twice, no axis or none that can be measured, a plan longer than the model's context.
        KVUnsupportedError: the engine or the model cannot carry out one of the configurations, or cannot do under it
            what a required axis needs.
        CorpusError, PromptsError: an axis cannot be carried by its inputs.
        SetupError: the engine or the model is not usable here.
    """
    configurations = (spec.reference, *spec.candidates)
    _refuse_repetition(spec)
    for kv in configurations:
        engine.check_kv(spec.model, kv)
    lacking = {axis.name: _lacking(axis, configurations, engine) for axis in spec.axes}
    not_run = {name: reason for name, reason in lacking.items() if reason}
    if refused := sorted(spec.required & not_run.keys()):
        message = f"the axis {refused[0]} cannot be measured: {not_run[refused[0]]}"
        raise KVUnsupportedError(message, hint=f"leave {refused[0]} out of --axes")
    context = _context(spec, engine, configurations)
    plans = {axis.name: axis.plan(context) for axis in spec.axes if axis.name not in not_run}
    if not plans:
        raise UsageError(
            f"no axis can be measured: {'; '.join(f'{n}: {r}' for n, r in not_run.items()) or 'none given'}",
            hint="name another engine with --backend, or other axes with --axes",
        )
    _refuse_length(plans, context.context_length)
    max_tokens = max(plan.max_tokens for plan in plans.values())
    sides = [_side(spec, engine, kv, max_tokens) for kv in configurations]
    return Prepared(plans=plans, not_run=not_run, reference=sides[0], candidates=tuple(sides[1:]))


def _refuse_repetition(spec: RunSpec) -> None:
    if not spec.candidates and not spec.measure_floor:
        raise UsageError("there is no candidate", hint="name one with --candidate, or ask for --measure-floor")
    for what, names in (
        ("candidate", [str(kv) for kv in spec.candidates]),
        ("axis", [axis.name for axis in spec.axes]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"the {what} {name} is given {names.count(name)} times", hint="name each once")


def _lacking(axis: Axis, configurations: Sequence[KVConfig], engine: Engine) -> str:
    """Which needs of the axis the engine does not meet, and under what; empty when it meets all."""
    for kv in configurations:
        if missing := axis.needs - engine.capabilities(kv):
            needs = ", ".join(sorted(capability.value for capability in missing))
            return f"{engine.name} under {kv} lacks {needs}"
    return ""


def _context(spec: RunSpec, engine: Engine, configurations: Sequence[KVConfig]) -> PlanContext:
    capabilities: frozenset[Capability] = frozenset(Capability).intersection(*map(engine.capabilities, configurations))
    return PlanContext(
        tokenizer=engine.tokenizer(spec.model),
        prompts=spec.prompts,
        corpus=spec.corpus,
        n_predict=spec.n_predict,
        context_length=engine.context_length(spec.model),
        capabilities=capabilities,
        seed=spec.seed,
    )


def _refuse_length(plans: Mapping[str, AxisPlan], context_length: int) -> None:
    for name, plan in plans.items():
        if plan.max_tokens > context_length:
            raise UsageError(
                f"the axis {name} needs sequences of {plan.max_tokens} tokens, the model takes {context_length}",
                hint="ask for shorter windows, a smaller depth or fewer tokens to predict",
            )


def _side(spec: RunSpec, engine: Engine, kv: KVConfig, max_tokens: int) -> Side:
    load = LoadSpec(model=spec.model, kv=kv, max_tokens=max_tokens, options=spec.options)
    return Side(load=load, identity=engine.identify(load))
