"""The work behind `refract repeatability`: the same candidate answered anew N times, against one reference."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

from refract.backends import load_engine
from refract.cli import inputs
from refract.cli.output import STDOUT, check_outputs, emit, say
from refract.cli.progress import listener
from refract.cli.reporting import TextForm, text_form
from refract.cli.scoring import open_store, prepared_cache
from refract.cli.thresholds import MISSED
from refract.engine import Blobs, Capability, Check, Engine, Identity, LoadSpec, Session, Tokenizer
from refract.errors import UsageError
from refract.kv import KVConfig
from refract.report.output import write_text_atomic
from refract.report.pen import Pen
from refract.report.text import NARROWEST, printed
from refract.report.text_tables import table
from refract.results import CandidateResult, Estimate
from refract.run.runner import run

SCHEMA = "refract.repeatability/1"
HEALTHY, NOISY = 0.25, 1.0  # largest range as a share of the interval's width: beyond NOISY the interval is too small
Verdict = Literal["HEALTHY", "NOISY", "UNSTABLE", "not measured"]
_STYLES: Mapping[Verdict, str] = {"HEALTHY": "green", "NOISY": "yellow", "UNSTABLE": "bold red", "not measured": "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """An engine whose answers for one configuration belong to one repetition; it computes what the engine computes.

    The reference keeps its identity, so it is answered once for all repetitions.
    """

    engine: Engine
    repeated: KVConfig
    number: int

    @property
    def name(self) -> str:
        """The engine's."""
        return self.engine.name

    def identify(self, spec: LoadSpec) -> Identity:
        """The engine's identity; from the second repetition on, the repeated configuration gets its number."""
        identity = self.engine.identify(spec)
        if spec.kv != self.repeated or self.number == 0:
            return identity
        return replace(identity, options={**identity.options, "repetition": str(self.number)})

    def capabilities(self, kv: KVConfig) -> frozenset[Capability]:
        """The engine's."""
        return self.engine.capabilities(kv)

    def check(self, model: str) -> list[Check]:
        """The engine's."""
        return self.engine.check(model)

    def check_kv(self, model: str, kv: KVConfig) -> None:
        """The engine's."""
        self.engine.check_kv(model, kv)

    def tokenizer(self, model: str) -> Tokenizer:
        """The engine's."""
        return self.engine.tokenizer(model)

    def context_length(self, model: str) -> int:
        """The engine's."""
        return self.engine.context_length(model)

    def describe(self, model: str) -> Mapping[str, str | int]:
        """The engine's."""
        return self.engine.describe(model)

    @property
    def control_by_default(self) -> bool:
        """The engine's."""
        return self.engine.control_by_default

    def control_options(self, options: Mapping[str, str], kv: KVConfig) -> Mapping[str, str] | None:
        """The engine's."""
        return self.engine.control_options(options, kv)

    def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
        """The engine's."""
        return self.engine.load(spec, blobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One score over all repetitions; None where a repetition has none."""

    name: str
    scores: tuple[float | None, ...]
    interval: Estimate | None

    @property
    def range(self) -> float | None:
        """Largest less smallest score, when there is one in every repetition."""
        found = [score for score in self.scores if score is not None]
        return max(found) - min(found) if len(found) == len(self.scores) else None

    @property
    def verdict(self) -> Verdict:
        """How the range compares with the width of the first repetition's interval."""
        if all(score is None for score in self.scores):
            return "not measured"
        if self.range is None or self.interval is None:
            return "UNSTABLE"
        width = self.interval.high - self.interval.low
        if self.range <= HEALTHY * width:
            return "HEALTHY"
        return "NOISY" if self.range <= NOISY * width else "UNSTABLE"


def repeat(args: argparse.Namespace) -> int:
    """Runs, compares and reports; returns 0, or 10 when something is UNSTABLE."""
    check_outputs({"--json-out": args.json_out})
    cache = prepared_cache(args)
    spec = inputs.run_spec(args)
    if len(spec.candidates) != 1:
        raise UsageError("repeatability takes one candidate", hint="name one with --candidate")
    spec = replace(spec, model=inputs.model_place(spec.model, cache))
    engine = load_engine(args.backend, spec.options, cache)
    found: list[CandidateResult] = []
    with open_store(cache, keep=not args.no_cache) as store:
        for number in range(args.runs):
            repetition = Repetition(engine=engine, repeated=spec.candidates[0], number=number)
            with listener(args.progress) as progress:
                found += run(spec, repetition, store, progress=progress).candidates
    spreads = list(spreads_of(found))
    _report(str(spec.candidates[0]), spreads, args)
    return MISSED if any(spread.verdict == "UNSTABLE" for spread in spreads) else 0


def spreads_of(results: Sequence[CandidateResult]) -> Iterator[Spread]:
    """The spread of every axis, and of the composite where the first repetition has one."""
    for index, axis in enumerate(results[0].axes):
        scores = tuple(_value(result.axes[index].score) for result in results)
        yield Spread(name=axis.axis, scores=scores, interval=axis.score)
    first = results[0].composite
    if first.score is not None:
        scores = tuple(_value(result.composite.score) for result in results)
        yield Spread(name=first.name, scores=scores, interval=first.score)


def _value(score: Estimate | None) -> float | None:
    return None if score is None else score.value


def _report(candidate: str, spreads: Sequence[Spread], args: argparse.Namespace) -> None:
    document = json.dumps(_document(candidate, spreads), indent=1) + "\n"
    emit(document if args.json_out == STDOUT else _text(candidate, spreads, text_form()))
    if args.json_out not in (None, STDOUT):
        write_text_atomic(args.json_out, document)
        say(f"wrote {args.json_out}")


def _text(candidate: str, spreads: Sequence[Spread], form: TextForm) -> str:
    """The verdict on the whole, then a row for each score."""
    pen = Pen(ascii=form["ascii"], width=max(NARROWEST, form["width"]))
    whole = overall(spreads)
    runs = len(spreads[0].scores) if spreads else 0
    rows = []
    for spread in spreads:
        name, verdict, *cells = _row(spread)
        rows.append([pen.text(name), pen.text(verdict, _STYLES[spread.verdict]), *map(pen.text, cells)])
    columns = ("<score", "<verdict!", ">lowest!", ">highest!", ">range!", "<stated interval!")
    head = pen.flow((f"{candidate}: {whole}", f"{runs} runs"), _STYLES[whole])
    return printed(iter([head, "", table(pen, columns, rows, keep=24)]), pen.width, color=form["color"])


def overall(spreads: Sequence[Spread]) -> Verdict:
    """The worst verdict there is."""
    found = [spread.verdict for spread in spreads]
    order: tuple[Verdict, ...] = ("UNSTABLE", "NOISY", "HEALTHY")
    return next((verdict for verdict in order if verdict in found), "not measured")


def _row(spread: Spread) -> tuple[str, str, str, str, str, str]:
    found = [score for score in spread.scores if score is not None]
    low, high = (f"{min(found):.2f}", f"{max(found):.2f}") if found else ("-", "-")
    width = "-" if spread.range is None else f"{spread.range:.2f}"
    stated = "-" if spread.interval is None else f"{spread.interval.low:.2f} to {spread.interval.high:.2f}"
    return spread.name, spread.verdict, low, high, width, stated


def _document(candidate: str, spreads: Sequence[Spread]) -> dict[str, object]:
    rows = []
    for spread in spreads:
        stated = None if spread.interval is None else [spread.interval.low, spread.interval.high]
        row = {"score": spread.name, "verdict": spread.verdict, "values": list(spread.scores), "interval": stated}
        rows.append({**row, "range": spread.range})
    return {"schema": SCHEMA, "candidate": candidate, "verdict": overall(spreads), "spreads": rows}
