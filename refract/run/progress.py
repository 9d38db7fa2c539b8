"""What happens during a run, as a stream of events, and how its work is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from refract.work import CompareBase, Generate, Request, ScoreTokens, Window

PREFILL_TOKEN_COST = (
    0.1  # a prompt token against a generated one: batched, it costs about a tenth on CPUs and GPUs alike
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run was planned; `phases`: the reference, the floor if asked, and each candidate's canonical text."""

    phases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """`requests` requests are needed, `stored` of them are known; the others cost `cost` (see `request_cost`)."""

    phase: str
    requests: int
    stored: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLoaded:
    """The model was loaded under `kv`, in `seconds`."""

    phase: str
    kv: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One request was answered and its answer kept; `failed` when the engine could not answer it."""

    phase: str
    kind: str
    cost: float
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded:
    """Every request of the phase has its answer."""

    phase: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something a reader of the report should know, found during the run."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Everything is measured and scored."""

    seconds: float
    loads: int
    stored: int
    computed: int


Event = RunStarted | PhaseStarted | SessionLoaded | Answered | PhaseEnded | Warned | RunEnded


class Progress(Protocol):
    """Whoever listens to a run."""

    def __call__(self, event: Event, /) -> None: ...


def silent(event: Event, /) -> None:
    """Listens and says nothing."""


def request_cost(request: Request) -> float:
    """The work in a request, in generated tokens' worth; prompt tokens count a tenth."""
    if isinstance(request, Generate):
        return len(request.prompt) * PREFILL_TOKEN_COST + request.max_new_tokens
    if isinstance(request, ScoreTokens):
        return _scored(len(request.tokens), request.start, one_by_one=request.step == 1)
    both = 2.0 if isinstance(request, CompareBase) else 1.0  # a comparison also recomputes the reference's logits
    return sum(_window_cost(window, decode=request.protocol == "decode") for window in request.windows) * both


def _window_cost(window: Window, *, decode: bool) -> float:
    return _scored(len(window.tokens), window.start, one_by_one=decode)


def _scored(length: int, start: int, *, one_by_one: bool) -> float:
    return start * PREFILL_TOKEN_COST + (length - start) * (1.0 if one_by_one else PREFILL_TOKEN_COST)
