"""Axis B: KL(reference ‖ candidate) of next-token distributions over text both sides are forced through."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from refract.axes.anchors import Anchors, choose_evenly, plan_anchors
from refract.axes.answers import answer_of
from refract.axes.base import Answers, PlanContext
from refract.axes.kld_result import kld_result
from refract.axes.kld_windows import DEEP_POSITIONS, DEEP_STEPS, PlacedWindow, deep_windows, scored_windows
from refract.axes.measured import Place, read_divergences
from refract.engine import Capability
from refract.errors import PromptsError, UsageError
from refract.results import AxisResult, Json
from refract.work import Base, CompareBase, Failure, Generation, Protocol, Request, Window, WriteBase

SMALLEST_WINDOW = 8

Compared = dict[Place, CompareBase | Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kld:
    """The axis: `chunks` windows of `ctx` tokens make the score.

    Beside it stand the reference's own continuations of `along_trajectories` prompts (0: of none) and, with
    `depth` > 0, `deep_chunks` windows at each of 1k, 4k, 16k … `depth` tokens of cache.
    """

    name: ClassVar[str] = "kld"
    needs: ClassVar[frozenset[Capability]] = frozenset()  # KL_PREFILL or KL_DECODE, which `plan` asks for

    chunks: int = 32
    ctx: int = 512
    along_trajectories: int = 8
    depth: int = 0
    deep_chunks: int = 4

    def plan(self, context: PlanContext) -> KldPlan:
        """Raises: UsageError for sizes that mean nothing here; CorpusError when there is too little text."""
        self._check(context)
        windows, copies = scored_windows(context, chunks=self.chunks, ctx=self.ctx)
        notes: list[str] = []
        if copies:
            notes.append(
                f"{copies} of {self.chunks} windows repeat an earlier one and were left out: a repetitive corpus"
            )
        anchors = self._anchors(context)
        if isinstance(anchors, str):
            notes.append(f"not measured along the reference's continuations: {anchors}")
            anchors = None
        positions = DEEP_POSITIONS if Capability.KL_DEEP in context.capabilities else DEEP_STEPS
        deep = deep_windows(context, depth=self.depth, each=self.deep_chunks, positions=positions)
        return KldPlan(knobs=self, context=context, windows=windows, deep=deep, anchors=anchors, notes=tuple(notes))

    def _anchors(self, context: PlanContext) -> Anchors | str | None:
        """The continuations to measure along, or why there are none; None when they are not wanted."""
        if not self.along_trajectories:
            return None
        if not {Capability.KEEP_BASE, Capability.GENERATE} <= context.capabilities:
            return "this engine keeps no distributions of them"
        try:
            anchors = plan_anchors(context)
        except PromptsError as error:
            return error.message
        return replace(anchors, items=choose_evenly(anchors.items, self.along_trajectories))

    def _check(self, context: PlanContext) -> None:
        if not {Capability.KL_PREFILL, Capability.KL_DECODE} & context.capabilities:
            raise UsageError("this engine cannot measure KL divergence", hint="leave kld out of --axes")
        if self.chunks < 1 or self.ctx < SMALLEST_WINDOW:
            raise UsageError(
                f"--chunks {self.chunks} --ctx {self.ctx}: expected at least 1 window of {SMALLEST_WINDOW} tokens",
                hint="raise --ctx or --chunks, or leave kld out of --axes",
            )
        if self.depth and not {Capability.KL_DEEP, Capability.KL_DECODE} & context.capabilities:
            raise UsageError("this engine cannot measure KL divergence behind a long cache", hint="leave --depth out")
        if self.depth < 0 or self.deep_chunks < 1:
            raise UsageError(
                f"--depth {self.depth} with {self.deep_chunks} windows each: expected 0 or more, and 1 or more",
                hint="leave --depth out",
            )
        deepest = self.depth + DEEP_POSITIONS if self.depth else 0
        for option, value, needed in (("--ctx", self.ctx, self.ctx), ("--depth", self.depth, deepest)):
            if needed > context.context_length:
                raise UsageError(
                    f"{option} {value} needs {needed} tokens, the model's context has {context.context_length}",
                    hint=f"use {option} {context.context_length - needed + value} or less",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class KldPlan:
    """One request for each window, and one for each continuation whose distributions the reference kept."""

    knobs: Kld
    context: PlanContext
    windows: tuple[PlacedWindow, ...]
    deep: tuple[PlacedWindow, ...]
    anchors: Anchors | None
    notes: tuple[str, ...]

    @property
    def max_tokens(self) -> int:
        """The longest window or continuation."""
        longest = max(len(placed.window.tokens) for placed in (*self.windows, *self.deep))
        return max(longest, self.anchors.max_tokens if self.anchors else 0)

    @property
    def protocol(self) -> Protocol:
        """How windows are scored: prefill where the engine's prefill reads the compressed cache."""
        return "prefill" if Capability.KL_PREFILL in self.context.capabilities else "decode"

    @property
    def deep_protocol(self) -> Protocol:
        """How deep windows are scored: prefill where the engine can score a few positions of a long prefill."""
        return "prefill" if Capability.KL_DEEP in self.context.capabilities else "decode"

    @property
    def parameters(self) -> Mapping[str, Json]:
        """Which positions of which windows, and by which protocol; what stands beside the score does not count."""
        return {
            "chunks": self.knobs.chunks,
            "ctx": self.knobs.ctx,
            "scored_from": self.windows[0].window.start,
            "protocol": self.protocol,
            "placement": "consecutive" if len(self.context.corpus.sections) == 1 else "spread over sections",
        }

    def reference(self) -> Sequence[Request]:
        """The windows' bases, and the continuations whose bases are kept."""
        bases: list[Request] = [self._write(placed) for placed in self.windows]
        bases += [self._write(placed, self.deep_protocol) for placed in self.deep]
        return [*bases, *(a.reference for a in self.anchors.items)] if self.anchors else bases

    def candidate(self, reference: Answers) -> Sequence[Request]:
        """A comparison for every base the reference has."""
        windows = self._window_requests(self.windows, reference)
        windows |= self._window_requests(self.deep, reference, self.deep_protocol)
        compared = (*windows.values(), *self._trajectory_requests(reference).values())
        return [request for request in compared if isinstance(request, CompareBase)]

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        """100 · exp(−mean KL over the windows' positions in nats); depths and trajectories stand beside it."""
        result = kld_result(
            read_divergences(self._window_requests(self.windows, reference), candidate),
            deep=read_divergences(self._window_requests(self.deep, reference, self.deep_protocol), candidate),
            trajectories=read_divergences(self._trajectory_requests(reference), candidate),
            protocol=self.protocol,
            notes=(*self.notes, *(self.anchors.warnings if self.anchors else ())),
            seed=self.context.seed,
        )
        return replace(result, series={**result.series, "windows": self._digest()})

    def _digest(self) -> dict[str, Json]:
        """How many windows there are and the sha256 of their token ids: equal texts must have given equal tokens."""
        ids = json.dumps([placed.window.tokens for placed in (*self.windows, *self.deep)])
        return {"count": len(self.windows), "sha256": hashlib.sha256(ids.encode()).hexdigest()}

    def _write(self, placed: PlacedWindow, protocol: Protocol | None = None) -> WriteBase:
        return WriteBase(windows=(placed.window,), protocol=protocol or self.protocol)

    def _window_requests(
        self, windows: Sequence[PlacedWindow], reference: Answers, protocol: Protocol | None = None
    ) -> Compared:
        """By window: the candidate's request, or why the reference leaves nothing to compare with."""
        found: Compared = {}
        for placed in windows:
            base = answer_of(reference, self._write(placed, protocol), Base)
            found[placed.place] = (
                base
                if isinstance(base, Failure)
                else CompareBase(windows=(placed.window,), protocol=protocol or self.protocol, base=base.blob)
            )
        return found

    def _trajectory_requests(self, reference: Answers) -> Compared:
        """The same by prompt, for continuations that hold a token and a base."""
        found: Compared = {}
        for anchor in self.anchors.items if self.anchors else ():
            place = Place(id=anchor.prompt.id, category=anchor.prompt.category)
            prompt, answer = anchor.reference.prompt, answer_of(reference, anchor.reference, Generation)
            if isinstance(answer, Failure):
                found[place] = answer
            elif answer.tokens and answer.base is None:
                found[place] = Failure(kind="no base", message="the engine kept no distributions of this continuation")
            elif answer.tokens and answer.base is not None:
                window = Window(tokens=(*prompt, *answer.tokens), start=len(prompt))
                found[place] = CompareBase(windows=(window,), protocol="decode", base=answer.base)
        return found
