"""What an answer must look like to be one of its request, and how requests are named in messages."""

from __future__ import annotations

from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenScores,
    WriteBase,
)

_ANSWERS: dict[type[Request], type[Answer]] = {
    Generate: Generation,
    ScoreTokens: TokenScores,
    WriteBase: Base,
    CompareBase: Divergence,
}


def describe(request: object) -> str:
    """The request in a few words."""
    if isinstance(request, Generate):
        return f"Generate after {len(request.prompt)} tokens"
    if isinstance(request, ScoreTokens):
        return f"ScoreTokens over {len(request.tokens)} tokens"
    if isinstance(request, WriteBase | CompareBase):
        return f"{type(request).__name__} over {len(request.windows)} windows in {request.protocol} protocol"
    return f"a {type(request).__name__}"


def complaint(request: Request, answer: object) -> str | None:
    """Why `answer` cannot be one to `request`; None when it can."""
    if isinstance(answer, Failure):
        return None
    if not isinstance(answer, _ANSWERS[type(request)]):
        return f"expected a {_ANSWERS[type(request)].__name__}, found a {type(answer).__name__}"
    expected, found = _lengths(request, answer)
    return None if found <= expected else f"expected {sorted(expected)} positions, found {sorted(found)}"


def _lengths(request: Request, answer: object) -> tuple[set[int], set[int]]:
    """The lengths an answer's parts may have, and those they have."""
    if isinstance(request, Generate) and isinstance(answer, Generation):
        count = len(answer.tokens)
        listed = set() if answer.listed is None else {len(answer.listed)}
        return {min(count, request.max_new_tokens)}, {count} | listed
    if isinstance(request, ScoreTokens) and isinstance(answer, TokenScores):
        listed = set() if answer.listed is None else {len(answer.listed)}
        return {len(request.tokens) - request.start}, {len(answer.logprobs)} | listed
    if isinstance(request, CompareBase) and isinstance(answer, Divergence):
        return {sum(window.positions for window in request.windows)}, {len(answer)}
    return set(), set()
