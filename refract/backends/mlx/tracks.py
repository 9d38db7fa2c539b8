"""What a row of a decoding batch is doing: following its own argmax, or a given text."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from refract.backends._hidden import Hidden
from refract.backends._logits import Array, list_top, token_logprobs
from refract.work import Distributions, Generate, TokenIds

TopRow = tuple[Any, Any, Any]  # ids (K,), logprobs (K,), tail ()


class Track(Protocol):
    """One sequence being decoded. `owner` ties it to the request it belongs to."""

    owner: Any
    prompt: TokenIds
    needs_logits: bool

    @property
    def total(self) -> int:
        """The longest the sequence can become, in tokens."""

    def take(self, hidden: Hidden, logits: Array | None) -> int | None:
        """Notes one step's hidden state (width,) and logits (V,); returns the next token, None when finished."""


def _stack(rows: list[TopRow]) -> Distributions | None:
    if not rows:
        return None
    ids, logprobs, tails = zip(*rows, strict=True)
    return Distributions(ids=np.stack(ids), logprobs=np.stack(logprobs), tail=np.array(tails, np.float32))


def _top_row(logits: Array, count: int) -> TopRow:
    listed = list_top(logits[None], count)
    return listed.ids[0], listed.logprobs[0], listed.tail[0]


class GreedyTrack:
    """Follows the most probable token until an end-of-sequence token or the limit."""

    needs_logits = True

    def __init__(self, request: Generate, eos_ids: frozenset[int]) -> None:
        self.owner = request
        self.prompt = request.prompt
        self.tokens: list[int] = []
        self.stop: Literal["eos", "length"] = "length"
        self.hidden: list[Hidden] = []
        self._request, self._eos, self._listed = request, eos_ids, list[TopRow]()

    @property
    def total(self) -> int:
        """Prompt and continuation."""
        return len(self.prompt) + self._request.max_new_tokens

    def take(self, hidden: Hidden, logits: Array | None) -> int | None:
        """Appends the argmax; ties go to the lower id."""
        if logits is None:
            raise ValueError("greedy decoding needs logits")
        token = int(logits.argmax())
        self.tokens.append(token)
        if self._request.top_k:
            self._listed.append(_top_row(logits, self._request.top_k))
        if self._request.keep_base:
            self.hidden.append(hidden)
        if token in self._eos:
            self.stop = "eos"
            return None
        return token if len(self.tokens) < self._request.max_new_tokens else None

    @property
    def listed(self) -> Distributions | None:
        """The top-K list of every step, None when none was asked for."""
        return _stack(self._listed)


class ForcedTrack:
    """Follows tokens[start:], keeping the hidden state that predicts each of them, and its logits' figures if asked."""

    def __init__(self, owner: Any, tokens: TokenIds, start: int, *, top_k: int | None = None) -> None:
        """With `top_k` None only hidden states are kept; otherwise log-probabilities and `top_k` alternatives too."""
        self.owner = owner
        self.prompt = tokens[:start]
        self.forced = tokens[start:]
        self.needs_logits = top_k is not None
        self.hidden: list[Hidden] = []
        self.logprobs: list[np.float32] = []
        self._top_k, self._listed = top_k or 0, list[TopRow]()

    @property
    def total(self) -> int:
        """The whole text."""
        return len(self.prompt) + len(self.forced)

    def take(self, hidden: Hidden, logits: Array | None) -> int | None:
        """Notes the step and returns the text's own next token."""
        token = self.forced[len(self.hidden)]
        self.hidden.append(hidden)
        if logits is not None:
            self.logprobs.append(token_logprobs(logits[None], [token])[0])
            if self._top_k:
                self._listed.append(_top_row(logits, self._top_k))
        return token if len(self.hidden) < len(self.forced) else None

    @property
    def listed(self) -> Distributions | None:
        """The top-K list of every position, None when none was asked for."""
        return _stack(self._listed)
