"""Attribution: which side, or which layers, of a compressed cache carry the loss, from runs of each alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from refract.axes.base import AxisPlan
from refract.axes.kld import KldPlan
from refract.engine import Engine, LoadSpec
from refract.errors import EngineError, IncompleteError, UsageError
from refract.kv import KVConfig, parse_kv
from refract.results import BAND_FLOORS, CandidateResult, mean_kl_of
from refract.run.guards import Measured, never_acted
from refract.run.prepare import Side
from refract.run.sessions import Answering

BOTH = 1.5  # the larger loss is less than so many times the smaller: both sides carry it

Opener = Callable[[Side], Answering]


WINDOWS = 8  # of the corpus, that layers are compared over: there are many runs
BLOCKS = 8  # of layers, run alone first


def worth_explaining(kv: KVConfig, result: CandidateResult) -> bool:
    """Whether the candidate is compressed and below PASS; without a composite its kld score decides."""
    score = result.composite.score or next((a.score for a in result.axes if a.axis == "kld"), None)
    return (kv.k.compressed or kv.v.compressed) and score is not None and score.value < BAND_FLOORS["PASS"]


def explain(
    side: Side, result: CandidateResult, *, windows: AxisPlan, reference: Measured, engine: Engine, opened: Opener
) -> CandidateResult:
    """The result with a finding that says which side carries the loss, from up to two more sessions.

    A candidate with one compressed side is returned as it is.

    Where a side cannot be run alone, the engine fails, or answers are missing and nothing may be loaded, the finding
    says so.

    Raises: StoreError.
    """
    if not (side.load.kv.k.compressed and side.load.kv.v.compressed):
        return result
    losses: dict[str, float] = {}
    for name, kv in _halves(side.load.kv).items():
        try:
            losses[name] = _loss(_side(side, kv, engine), windows, reference, opened)
        except (UsageError, EngineError, IncompleteError, ValueError) as error:
            return _with(result, f"which side carries the loss is not known: {name} alone was not measured: {error}")
    return _with(result, attribution(losses["keys"], losses["values"]))


def explain_layers(
    side: Side, result: CandidateResult, *, windows: KldPlan, reference: Measured, engine: Engine, opened: Opener
) -> CandidateResult:
    """The result with a finding that says which layers carry the loss.

    Up to `BLOCKS` blocks of neighbouring layers are compressed alone, then each layer of the worst block, over up to
    `WINDOWS` windows of the corpus. What fails is said, as in `explain`.

    Raises: StoreError.
    """
    few = replace(windows, windows=windows.windows[:WINDOWS])
    try:
        layers = sorted(frozenset().union(*side.load.kv.own_layers(result.effective.layers)))
        blocks = {
            block: _loss(_side(side, _only(side.load.kv, block), engine), few, reference, opened)
            for block in cut_blocks(layers)
        }
        worst = max(blocks, key=lambda block: blocks[block])
        parts: list[tuple[int, ...]] = [(layer,) for layer in worst] if len(worst) > 1 else []
        single = {part: _loss(_side(side, _only(side.load.kv, part), engine), few, reference, opened) for part in parts}
    except (UsageError, EngineError, IncompleteError, ValueError) as error:
        return _with(result, f"which layers carry the loss is not known: {error}")
    return _with(_with(result, layer_shares("blocks of layers", blocks)), layer_shares("layers", single))


def cut_blocks(layers: Sequence[int]) -> list[tuple[int, ...]]:
    """The layers in order, in up to `BLOCKS` blocks whose sizes differ by one at most."""
    count = min(BLOCKS, len(layers))
    edges = [len(layers) * i // count for i in range(count + 1)]
    return [tuple(layers[start:end]) for start, end in pairwise(edges)]


def layer_shares(what: str, losses: Mapping[tuple[int, ...], float]) -> str:
    """What each part alone loses in nats, the worst first and with its share of all; empty without any."""
    if not losses:
        return ""
    total = sum(losses.values())
    ranked = sorted(losses.items(), key=lambda item: -item[1])
    figures = ", ".join(f"{_span(part)} {loss:.2g}" for part, loss in ranked)
    worst, most = ranked[0]
    if not most > 0.0:
        return f"{what} compressed alone lose nothing ({figures})"
    return (
        f"{what} compressed alone: {_span(worst)} carries {100.0 * most / total:.0f} % of {total:.2g} nats ({figures})"
    )


def _span(part: Sequence[int]) -> str:
    return str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}"


def _only(kv: KVConfig, layers: Sequence[int]) -> KVConfig:
    """The configuration in these layers alone."""
    others = "".join(f",{key}={value}" for key, value in kv.options if key != "layers")
    return parse_kv(f"ctk={kv.k},ctv={kv.v}{others},layers={'+'.join(map(str, layers))}")


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
        raise UsageError("no such configuration", hint="leave --explain out")
    engine.check_kv(side.load.model, kv)
    load: LoadSpec = replace(side.load, kv=kv)
    return Side(load=load, identity=engine.identify(load))


def _loss(side: Side, windows: AxisPlan, reference: Measured, opened: Opener) -> float:
    """The mean KL of one side alone. Raises: ValueError where it could not be scored."""
    with opened(side) as session:
        answers = session.answer(windows.candidate(reference.answers), phase=side.name)
        alone = Measured(kv=side.load.kv, effective=session.effective(side.name), answers=answers)
    if reason := never_acted(reference, alone):
        raise ValueError(reason)
    result = windows.score(reference.answers, answers)
    loss = mean_kl_of((result,))
    if loss is None:
        raise ValueError(result.reason or "no mean")
    return loss


def _with(result: CandidateResult, finding: str) -> CandidateResult:
    return replace(result, findings=(*result.findings, *filter(None, (finding,))))
