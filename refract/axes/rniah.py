"""Axis C: whether the candidate still retrieves the needles that the reference retrieves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from refract.axes.base import Answers, PlanContext
from refract.axes.needles import FAMILIES
from refract.axes.retrieval import Trials, cells, doubling, plan_trials
from refract.axes.rniah_result import rniah_result
from refract.data.corpus import Corpus
from refract.engine import Capability
from refract.errors import UsageError
from refract.results import AxisResult, Json
from refract.work import Request

SHORTEST = 64  # tokens: less holds no question


@dataclass(frozen=True, slots=True, kw_only=True)
class Rniah:
    """The axis: `trials` needles at each length and position; without `lengths` they double up to `up_to` tokens.

    Needles lie in `haystack`, or in the run's corpus.
    """

    name: ClassVar[str] = "rniah"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.GENERATE})

    up_to: int = 4096
    lengths: tuple[int, ...] = ()
    positions: tuple[float, ...] = (0.1, 0.5, 0.9)
    trials: int = 4
    answer_tokens: int = 64
    haystack: Corpus | None = None

    def plan(self, context: PlanContext) -> RniahPlan:
        """A plan, empty when no cell fits the model or the corpus. Raises: UsageError for knobs that mean nothing."""
        self._check()
        context = context if self.haystack is None else replace(context, corpus=self.haystack)
        trials = plan_trials(
            context,
            cells(self.tokens, self.positions),
            trials=self.trials,
            answer_tokens=self.answer_tokens,
        )
        return RniahPlan(knobs=self, context=context, trials=trials)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The lengths of its prompts."""
        return self.lengths or doubling(self.up_to)

    def _check(self) -> None:
        if min(self.lengths or (self.up_to,)) < SHORTEST or self.trials < 1 or self.answer_tokens < 1:
            raise UsageError(
                f"retrieval over {', '.join(map(str, self.tokens))} tokens, {self.trials} trials, answers of"
                f" {self.answer_tokens} tokens: expected at least {SHORTEST}, 1 and 1",
                hint=f"ask for lengths from {SHORTEST} up",
            )
        if not self.positions or not all(0.0 <= position <= 1.0 for position in self.positions):
            message = f"positions {self.positions}: expected one or more from 0 to 1"
            raise UsageError(message, hint="0 is the beginning of the text, 1 its end")
        for what, values in (("length", self.lengths), ("position", self.positions)):
            if len(set(values)) < len(values):
                message = f"a {what} is given twice: {', '.join(f'{value:g}' for value in values)}"
                raise UsageError(message, hint="name each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class RniahPlan:
    """Every trial asked of both sides, and where the engine can, its right answer forced and graded."""

    knobs: Rniah
    context: PlanContext
    trials: Trials

    @property
    def max_tokens(self) -> int:
        """The longest prompt and answer together; 1 when nothing is asked."""
        lengths = [len(t.ask.prompt) + max(t.ask.max_new_tokens, len(t.answer)) for t in self.trials.asked]
        return max(lengths, default=1)

    @property
    def parameters(self) -> Mapping[str, Json]:
        """Which cells, how many trials in each, and how they are made."""
        own = self.knobs.haystack
        haystack: dict[str, Json] = {} if own is None else {"haystack": f"{own.name}@{own.sha256[:12]}"}
        return haystack | {
            "lengths": list(self.knobs.tokens),
            "positions": list(self.knobs.positions),
            "trials": self.knobs.trials,
            "answer_tokens": self.knobs.answer_tokens,
            "families": list(FAMILIES),
            "seed": self.context.seed,
            "chat_template": self.context.tokenizer.has_chat_template,
        }

    @property
    def graded(self) -> bool:
        """Whether right answers are scored token by token as well."""
        return Capability.SCORE_TOKENS in self.context.capabilities

    def reference(self) -> Sequence[Request]:
        """Every question, and every right answer to be graded."""
        asked: list[Request] = [trial.ask for trial in self.trials.asked]
        return [*asked, *(trial.grade for trial in self.trials.asked)] if self.graded else asked

    def candidate(self, reference: Answers) -> Sequence[Request]:
        """The same, whatever the reference said: which trials inform is decided when scoring."""
        return self.reference()

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        """100 · candidate hits / reference hits over the trials in which the reference retrieved."""
        return rniah_result(self.trials, reference, candidate, tokenizer=self.context.tokenizer, graded=self.graded)
