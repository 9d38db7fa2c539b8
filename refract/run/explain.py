"""Attribution: which side of a compressed cache carries the loss, from a run of each side alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from refract.axes.base import AxisPlan
from refract.engine import Engine, LoadSpec
from refract.errors import EngineError, IncompleteError, UsageError
from refract.kv import KVConfig, parse_kv
from refract.results import BAND_FLOORS, CandidateResult, mean_kl_of
from refract.run.guards import Measured
from refract.run.prepare import Side
from refract.run.sessions import Answering

BOTH = 1.5  # the larger loss is less than so many times the smaller: both sides carry it

Opener = Callable[[Side], Answering]


def worth_explaining(kv: KVConfig, result: CandidateResult) -> bool:
    """Whether both sides are compressed and the candidate is below PASS; without a composite its kld score decides."""
    score = result.composite.score or next((a.score for a in result.axes if a.axis == "kld"), None)
    return kv.k.compressed and kv.v.compressed and score is not None and score.value < BAND_FLOORS["PASS"]


def explain(
    side: Side, result: CandidateResult, *, windows: AxisPlan, reference: Measured, engine: Engine, opened: Opener
) -> CandidateResult:
    """The result with a finding that says which side carries the loss, from up to two more sessions.

    Where a side cannot be run alone, the engine fails, or answers are missing and nothing may be loaded, the finding
    says so.

    Raises: StoreError.
    """
    losses: dict[str, float] = {}
    for name, kv in _halves(side.load.kv).items():
        try:
            losses[name] = _loss(_side(side, kv, engine), windows, reference, opened)
        except (UsageError, EngineError, IncompleteError, ValueError) as error:
            return _with(result, f"which side carries the loss is not known: {name} alone was not measured: {error}")
    return _with(result, attribution(losses["keys"], losses["values"]))


def attribution(keys: float, values: float) -> str:
    """Which side carries the loss, given the mean KL in nats of each side alone."""
    figures = f"ctk alone {keys:.2g} nats, ctv alone {values:.2g}"
    total = keys + values
    if total <= 0.0:
        return f"neither side alone loses anything: {figures}"
    name, share = ("keys", keys / total) if keys >= values else ("values", values / total)
    if max(keys, values) < BOTH * min(keys, values):
        return f"both sides carry the loss, {name} {100.0 * share:.0f} % of it: {figures}"
    return f"{name} carry {100.0 * share:.0f} % of the loss: {figures}"


def _halves(kv: KVConfig) -> dict[str, KVConfig | None]:
    """Keys alone and values alone, with the modifiers that can still act; None where there is no such configuration."""
    return {"keys": _half(kv, k=str(kv.k), v="f16"), "values": _half(kv, k="f16", v=str(kv.v))}


def _half(kv: KVConfig, *, k: str, v: str) -> KVConfig | None:
    """The configuration of one side, each modifier kept that does not refuse it."""
    text = f"ctk={k},ctv={v}"
    for key, value in kv.options:
        try:
            parse_kv(f"{text},{key}={value}")
        except UsageError:
            continue
        text = f"{text},{key}={value}"
    try:
        return parse_kv(text)
    except UsageError:
        return None


def _side(side: Side, kv: KVConfig | None, engine: Engine) -> Side:
    """Raises: UsageError where there is no such configuration, or the engine cannot run it."""
    if kv is None:
        raise UsageError("no such configuration")
    engine.check_kv(side.load.model, kv)
    load: LoadSpec = replace(side.load, kv=kv)
    return Side(load=load, identity=engine.identify(load))


def _loss(side: Side, windows: AxisPlan, reference: Measured, opened: Opener) -> float:
    """The mean KL of one side alone. Raises: ValueError where it could not be scored."""
    with opened(side) as session:
        answers = session.answer(windows.candidate(reference.answers), phase=side.name)
    result = windows.score(reference.answers, answers)
    loss = mean_kl_of((result,))
    if loss is None:
        raise ValueError(result.reason or "no mean")
    return loss


def _with(result: CandidateResult, finding: str) -> CandidateResult:
    return replace(result, findings=(*result.findings, finding))
