"""Two small axes and a run over them; as a script (FOLDER AFTER HOW), the same run in a process of its own."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from refract.axes.base import Answers, Axis, PlanContext
from refract.data.corpus import Corpus, Section
from refract.data.promptset import Prompt, PromptSet, content_sha256
from refract.engine import Capability
from refract.kv import parse_kv
from refract.results import AxisResult, Estimate, Json, Report, Sample
from refract.run.provenance import build_report
from refract.run.runner import RunResult, run
from refract.run.spec import RunSpec
from refract.run.store import AnswerStore
from refract.testing import FakeEngine, Fault
from refract.work import (
    Base,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Message,
    Request,
    ScoreTokens,
    Window,
    WriteBase,
)

REFERENCE = "ctk=f16,ctv=f16"
CANDIDATES = ("ctk=q8_0,ctv=q8_0", "ctk=turbo3,ctv=turbo2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Axis: share of prompts whose continuation is the reference's; keeps a base and scores the reference's text."""

    name: str = "talk"
    needs: frozenset[Capability] = frozenset({Capability.GENERATE})

    def plan(self, context: PlanContext) -> TalkPlan:
        prompts = {
            prompt.id: context.tokenizer.render([Message(role=m.role, content=m.content) for m in prompt.messages])
            for prompt in context.prompts.prompts
        }
        asks = {
            name: Generate(prompt=ids, max_new_tokens=context.n_predict, top_k=3, keep_base=True)
            for name, ids in prompts.items()
        }
        return TalkPlan(asks=asks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkPlan:
    asks: Mapping[str, Generate]

    @property
    def max_tokens(self) -> int:
        return max(len(ask.prompt) + ask.max_new_tokens for ask in self.asks.values())

    @property
    def parameters(self) -> Mapping[str, Json]:
        return {"prompts": len(self.asks)}

    def reference(self) -> Sequence[Request]:
        return list(self.asks.values())

    def candidate(self, reference: Answers) -> Sequence[Request]:
        out: list[Request] = []
        for ask in self.asks.values():
            out.append(replace(ask, keep_base=False))
            own = reference[ask]
            if isinstance(own, Generation):
                out.append(ScoreTokens(tokens=(*ask.prompt, *own.tokens), start=len(ask.prompt), top_k=2))
        return out

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        samples = []
        for name, ask in self.asks.items():
            own, other = reference[ask], candidate[replace(ask, keep_base=False)]
            if isinstance(own, Generation) and isinstance(other, Generation):
                same = float(own.tokens == other.tokens)
                samples.append(Sample(id=name, cluster=name, numerator=same, denominator=1.0))
        return result("talk", samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Axis: mean divergence over two windows of the corpus."""

    name: str = "text"
    needs: frozenset[Capability] = frozenset({Capability.KL_PREFILL})

    def plan(self, context: PlanContext) -> TextPlan:
        ids = context.tokenizer.encode(context.corpus.text)
        windows = [Window(tokens=ids[at : at + 24], start=12) for at in (0, 24)]
        return TextPlan(windows=tuple(windows))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    windows: tuple[Window, ...]

    @property
    def max_tokens(self) -> int:
        return 24

    @property
    def parameters(self) -> Mapping[str, Json]:
        return {"ctx": 24}

    @property
    def bases(self) -> list[WriteBase]:
        return [WriteBase(windows=(window,), protocol="prefill") for window in self.windows]

    def reference(self) -> Sequence[Request]:
        return self.bases

    def candidate(self, reference: Answers) -> Sequence[Request]:
        return [
            CompareBase(windows=base.windows, protocol="prefill", base=answer.blob)
            for base in self.bases
            if isinstance(answer := reference[base], Base)
        ]

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        samples = []
        for number, request in enumerate(self.candidate(reference)):
            answer = candidate[request]
            if isinstance(answer, Divergence):
                total = float(answer.kl.sum(dtype="float64"))
                samples.append(Sample(id=f"{number}", cluster=f"{number}", numerator=total, denominator=len(answer)))
        return result("text", samples)


def result(axis: str, samples: Sequence[Sample]) -> AxisResult:
    """A score in proportion to the mean of the samples; none without samples."""
    if not samples:
        return AxisResult(axis=axis, status="failed", score=None, reason="no answers", link="100*r", unit="prompt")
    mean = sum(sample.numerator for sample in samples) / sum(sample.denominator for sample in samples)
    value = 100.0 * mean if axis == "talk" else 100.0 / (1.0 + max(mean, 0.0))
    score = Estimate(value=value, low=value, high=value, n=len(samples), clusters=len(samples), method="none")
    return AxisResult(
        axis=axis,
        status="ok",
        score=score,
        link="100*r",
        unit="prompt",
        protocol="decode",
        samples=tuple(samples),
    )


def prompt_set(*texts: str) -> PromptSet:
    prompts = tuple(
        Prompt(id=f"p{i}", category="c", tier="quick", messages=(Message(role="user", content=text),))  # type: ignore[arg-type,unused-ignore]
        for i, text in enumerate(texts)
    )
    return PromptSet(name="small", sha256=content_sha256(prompts), prompts=prompts)


def corpus(text: str) -> Corpus:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Corpus(name="small", sha256=digest, text=text, sections=(Section(category="", start=0, end=len(text)),))


def small_spec(**changes: object) -> RunSpec:
    """A run of two candidates over two prompts and two windows."""
    axes: tuple[Axis, ...] = (Talk(), Text())
    spec = RunSpec(
        model="fake",
        reference=parse_kv(REFERENCE),
        candidates=tuple(map(parse_kv, CANDIDATES)),
        axes=axes,
        prompts=prompt_set("Where is the harbour?", "Count to three."),
        corpus=corpus("It was a quiet town by the sea, and nobody in it had ever been in a hurry."),
        n_predict=6,
        measure_floor=True,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def essence(found: RunResult, spec: RunSpec) -> dict[str, object]:
    """Everything of the report that an interrupted run must agree on with an uninterrupted one."""
    report: Report = build_report(found, spec, "refract score")
    content = asdict(report)
    del content["created"]
    for cost in ("loads", "answers", "seconds"):
        del content["provenance"][cost]
    return content


def failures(found: Mapping[Request, object]) -> int:
    return sum(isinstance(answer, Failure) for answer in found.values())


if __name__ == "__main__":
    folder, after, how = sys.argv[1:]
    fault = None if how == "none" else Fault(after=int(after), how=how)  # type: ignore[arg-type]
    with AnswerStore(Path(folder)) as store:
        run(small_spec(), FakeEngine(fault=fault), store)
