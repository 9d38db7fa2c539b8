"""What an axis is: it plans requests, and turns their answers into a result without doing anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from refract.data.corpus import Corpus
from refract.data.prompts import PromptSet
from refract.engine import Capability, Tokenizer
from refract.results import AxisResult, Json
from refract.work import Answer, Failure, Request

Answers = Mapping[Request, Answer | Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """What an axis may look at while it plans: the inputs and the engine's limits, never an answer."""

    tokenizer: Tokenizer
    prompts: PromptSet
    corpus: Corpus
    n_predict: int
    context_length: int
    capabilities: frozenset[Capability]  # what both the reference's and every candidate's sessions can do
    seed: int = 0


class AxisPlan(Protocol):
    """An axis bound to its inputs. All methods are pure."""

    @property
    def max_tokens(self) -> int:
        """The longest sequence any request of this plan leads to, prompt and continuation together."""

    @property
    def parameters(self) -> Mapping[str, Json]:
        """What makes two results of this axis comparable; part of the methodology id."""

    def reference(self) -> Sequence[Request]:
        """The requests for the reference."""

    def candidate(self, reference: Answers) -> Sequence[Request]:
        """The requests for a candidate (or for the reference as its own candidate), given the reference's answers."""

    def score(self, reference: Answers, candidate: Answers) -> AxisResult:
        """The result; a function of the answers alone, so that stored answers can be scored again."""


class Axis(Protocol):
    """One measured surface, as a frozen value of its knobs."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> frozenset[Capability]: ...

    def plan(self, context: PlanContext) -> AxisPlan:
        """Raises: UsageError, CorpusError, PromptsError when the inputs cannot carry the axis."""
