"""Axis B: KL(reference ‖ candidate) of next-token distributions over text both sides are forced through."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from refract.axes.anchors import Anchors, plan_anchors
from refract.axes.answers import answer_of
from refract.axes.base import Answers, PlanContext
from refract.axes.kld_result import kld_result
from refract.axes.measured import Place, read_divergences
from refract.axes.windows import TextWindow, cut_windows, distinct
from refract.engine import Capability
from refract.errors import UsageError
from refract.results import AxisResult, Json
from refract.work import Base, CompareBase, Failure, Generation, Protocol, Request, Window, WriteBase

SMALLEST_WINDOW = 8
OPENING_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Kld:
    """The axis: `chunks` windows of `ctx` tokens, and with `along_trajectories` the reference's own continuations."""

    name: ClassVar[str] = "kld"
    needs: ClassVar[frozenset[Capability]] = frozenset()  # KL_PREFILL or KL_DECODE, which `plan` asks for

    chunks: int = 32
    ctx: int = 512
    along_trajectories: bool = True

    def plan(self, context: PlanContext) -> KldPlan:
        """Raises: UsageError for sizes that mean nothing here; CorpusError when there is too little text."""
        self._check(context)
        windows, copies = distinct(cut_windows(context.corpus, context.tokenizer, count=self.chunks, size=self.ctx))
        notes: list[str] = []
        if copies:
            notes.append(
                f"{copies} of {self.chunks} windows repeat an earlier one and were left out: a repetitive corpus"
            )
        anchors = None
        if self.along_trajectories and {Capability.KEEP_BASE, Capability.GENERATE} <= context.capabilities:
            anchors = plan_anchors(context)
        elif self.along_trajectories:
            notes.append("not measured along the reference's continuations: this engine keeps no distributions of them")
        return KldPlan(knobs=self, context=context, windows=windows, anchors=anchors, notes=tuple(notes))

    def _check(self, context: PlanContext) -> None:
        if not {Capability.KL_PREFILL, Capability.KL_DECODE} & context.capabilities:
            raise UsageError("this engine cannot measure KL divergence", hint="leave kld out of --axes")
        if self.chunks < 1 or self.ctx < SMALLEST_WINDOW:
            raise UsageError(
                f"--chunks {self.chunks} --ctx {self.ctx}: expected at least 1 window of {SMALLEST_WINDOW} tokens"
            )
        if self.ctx > context.context_length:
            raise UsageError(
                f"--ctx {self.ctx} exceeds the model's context of {context.context_length} tokens",
                hint=f"use --ctx {context.context_length} or less",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KldPlan:
    """One request for each window, and one for each continuation whose distributions the reference kept."""

    knobs: Kld
    context: PlanContext
    windows: tuple[TextWindow, ...]
    anchors: Anchors | None
    notes: tuple[str, ...]

    @property
    def max_tokens(self) -> int:
        """The longest window or continuation."""
        return max(self.knobs.ctx, self.anchors.max_tokens if self.anchors else 0)

    @property
    def protocol(self) -> Protocol:
        """How windows are scored: prefill where the engine's prefill reads the compressed cache."""
        return "prefill" if Capability.KL_PREFILL in self.context.capabilities else "decode"

    @property
    def start(self) -> int:
        """The first position scored: as llama-perplexity, which reads the logits at ctx/2 … ctx-2."""
        return self.knobs.ctx // 2 + 1

    @property
    def parameters(self) -> Mapping[str, Json]:
        """Which positions of which windows, and by which protocol."""
        return {
            "chunks": self.knobs.chunks,
            "ctx": self.knobs.ctx,
            "scored_from": self.start,
            "protocol": self.protocol,
            "placement": "consecutive" if len(self.context.corpus.sections) == 1 else "spread over sections",
            "along_trajectories": self.anchors is not None,
        }

    def reference(self) -> Sequence[Request]:
        """The windows' bases, and the continuations whose bases are kept."""
        bases: list[Request] = [self._write(window) for window in self.windows]
        return [*bases, *(a.reference for a in self.anchors.items)] if self.anchors else bases

    def candidate(self, reference: Answers) -> Sequence[Request]:
        """A comparison for every base the reference has."""
        compared = (*self._window_requests(reference).values(), *self._trajectory_requests(reference).values())
        return [request for request in compared if isinstance(request, CompareBase)]

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        """100 · exp(−mean KL over the windows' positions in nats); what is seen along trajectories stands beside it."""
        result = kld_result(
            read_divergences(self._window_requests(reference), candidate),
            read_divergences(self._trajectory_requests(reference), candidate),
            protocol=self.protocol,
            notes=(*self.notes, *(self.anchors.warnings if self.anchors else ())),
            seed=self.context.seed,
        )
        return replace(result, series={**result.series, "windows": self._digest()})

    def _digest(self) -> dict[str, Json]:
        """How many windows there are and the sha256 of their token ids: equal texts must have given equal tokens."""
        ids = json.dumps([window.tokens for window in self.windows])
        return {"count": len(self.windows), "sha256": hashlib.sha256(ids.encode()).hexdigest()}

    def _opening(self, window: TextWindow) -> str:
        text = self.context.tokenizer.decode(window.tokens[:OPENING_TOKENS])
        return " ".join(text.split())

    def _write(self, window: TextWindow) -> WriteBase:
        return WriteBase(windows=(Window(tokens=window.tokens, start=self.start),), protocol=self.protocol)

    def _window_requests(self, reference: Answers) -> dict[Place, CompareBase | Failure]:
        """By window: the candidate's request, or why the reference leaves nothing to compare with."""
        found: dict[Place, CompareBase | Failure] = {}
        for index, window in enumerate(self.windows):
            request = self._write(window)
            base = answer_of(reference, request, Base)
            place = Place(id=f"window-{index:03d}", category=window.category, text=self._opening(window))
            found[place] = (
                base
                if isinstance(base, Failure)
                else CompareBase(windows=request.windows, protocol=request.protocol, base=base.blob)
            )
        return found

    def _trajectory_requests(self, reference: Answers) -> dict[Place, CompareBase | Failure]:
        """The same by prompt, for continuations that hold a token and a base."""
        found: dict[Place, CompareBase | Failure] = {}
        for anchor in self.anchors.items if self.anchors else ():
            place = Place(id=anchor.prompt.id, category=anchor.prompt.category)
            answer = answer_of(reference, anchor.reference, Generation)
            if isinstance(answer, Failure):
                found[place] = answer
            elif answer.tokens and answer.base is None:
                found[place] = Failure(kind="no base", message="the engine kept no distributions of this continuation")
            elif answer.tokens and answer.base is not None:
                window = Window(tokens=(*anchor.reference.prompt, *answer.tokens), start=len(anchor.reference.prompt))
                found[place] = CompareBase(windows=(window,), protocol="decode", base=answer.base)
        return found
