"""Requests that are refused before any engine sees them: an id outside the vocabulary ends some of them."""

from __future__ import annotations

from collections.abc import Iterator

from refract.work import Failure, Generate, Request, ScoreTokens, TokenIds


def refused(request: Request, vocab_size: int, max_tokens: int) -> Failure | None:
    """Why a request cannot be carried out by a session that holds `max_tokens`; None when it can."""
    for tokens, total in _sequences(request):
        if not tokens:
            return Failure(kind="empty-prompt", message="a request needs at least one token of context")
        if total > max_tokens:
            return Failure(kind="too-long", message=f"{total} tokens, the session holds {max_tokens}")
        if not all(0 <= token < vocab_size for token in tokens):
            return Failure(kind="invalid-token", message=f"a token id is outside the vocabulary of {vocab_size}")
    return None


def _sequences(request: Request) -> Iterator[tuple[TokenIds, int]]:
    """The token ids sent with a request, and how many there are in the end."""
    if isinstance(request, Generate):
        yield request.prompt, len(request.prompt) + request.max_new_tokens
    elif isinstance(request, ScoreTokens):
        yield request.tokens[: request.start] and request.tokens, len(request.tokens)
    else:
        yield from ((window.tokens, len(window.tokens)) for window in request.windows)
