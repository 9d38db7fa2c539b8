"""The answers of /v1/completions, read by token id, in the forms in which servers write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refract.backends._listed import Listing, listing
from refract.errors import EngineError
from refract.work import TokenIds

_PREFIX = "token_id:"  # of tokens written as ids (vLLM and SGLang, return_tokens_as_token_ids)
_LEAST = -9999.0  # what vLLM writes where a log-probability is -inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One position: the token there with its log-probability, and the listed ones, most probable first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def only_choice(answer: Any, name: str) -> dict[str, Any]:
    """The one choice of an answer. Raises: EngineError when there is not exactly one."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError(f"{name} answered /v1/completions without the one choice that was asked for")
    return dict(choices[0])


def check_prompt(answer: Mapping[str, Any], tokens: TokenIds, name: str) -> None:
    """Nothing, when the answer is to a prompt of as many tokens as were sent, or does not say.

    Raises: EngineError for the answer to another request, and for a server that adds tokens to a prompt of ids.
    """
    usage = answer.get("usage")
    said = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if isinstance(said, int) and said != len(tokens):
        raise EngineError(
            f"{name} answered for a prompt of {said} tokens, {len(tokens)} were sent",
            hint="it answers another request, or adds a beginning of sequence of its own",
        )


def read_entries(choice: Mapping[str, Any], name: str) -> list[Entry] | None:
    """What a choice lists at each of its tokens; None where it lists nothing, or not by token id.

    Raises: EngineError for lists that hold something else than log-probabilities.
    """
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    try:
        if isinstance(logprobs.get("content"), list):
            return _by_content(logprobs["content"])
        if isinstance(logprobs.get("tokens"), list):
            return _by_name(logprobs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"{name}'s lists of probable tokens are not as expected: {error}") from None
    return None


def _by_content(content: Sequence[Mapping[str, Any]]) -> list[Entry] | None:
    """llama-server's form: a list of objects with an `id`."""
    if not all("id" in item for entry in content for item in (entry, *entry.get("top_logprobs", ()))):
        return None
    return [
        Entry(
            token=int(entry["id"]),
            logprob=_number(entry["logprob"]),
            top=_sorted([(int(item["id"]), _number(item["logprob"])) for item in entry.get("top_logprobs", ())]),
        )
        for entry in content
    ]


def _by_name(logprobs: Mapping[str, Any]) -> list[Entry] | None:
    """The form of the first OpenAI API, its tokens written as ids; its first entry may hold nothing (echo)."""
    tokens, own = logprobs["tokens"], logprobs["token_logprobs"]
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    if not all(isinstance(token, str) and token.startswith(_PREFIX) for token in tokens):
        return None
    return [
        Entry(
            token=_id(token),
            logprob=_number(value),
            top=_sorted([(_id(name), _number(number)) for name, number in (top or {}).items()]),
        )
        for token, value, top in zip(tokens, own, tops, strict=True)
    ]


def read_prompt_entries(choice: Mapping[str, Any], tokens: TokenIds, name: str) -> list[Entry]:
    """vLLM's `prompt_logprobs` from the second token on, where the first has nothing before it.

    Raises: EngineError when they are not those of `tokens`.
    """
    found = choice.get("prompt_logprobs")
    if not isinstance(found, list) or len(found) != len(tokens):
        raise EngineError(f"{name} gave no log-probabilities of the {len(tokens)} tokens of a prompt")
    entries = []
    try:
        for token, items in zip(tokens[1:], found[1:], strict=True):
            pairs = [(int(key), _number(item["logprob"])) for key, item in items.items()]
            entries.append(Entry(token=token, logprob=dict(pairs)[token], top=_sorted(pairs)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"{name}'s log-probabilities of a prompt are not as expected: {error!r}") from None
    return entries


def token_ids(choice: Mapping[str, Any], entries: Sequence[Entry] | None) -> TokenIds | None:
    """The generated ids: as the choice itself says, else those of its lists; None where it has neither."""
    own = choice.get("token_ids")
    if isinstance(own, list) and all(isinstance(token, int) for token in own):
        return tuple(own)
    return None if entries is None else tuple(entry.token for entry in entries)


def to_listing(entries: Sequence[Entry], tokens: TokenIds, count: int, name: str) -> Listing:
    """The entries as the lists at `tokens`, `count` (K) each. Raises: EngineError for shorter lists or other tokens."""
    if tuple(entry.token for entry in entries) != tokens:
        raise EngineError(f"{name} listed other tokens than those it was asked about")
    if short := [len(entry.top) for entry in entries if len(entry.top) < count]:
        raise EngineError(f"{name} listed {short[0]} tokens, {count} were asked for")
    try:
        ids = np.array([[pair[0] for pair in entry.top[:count]] for entry in entries], np.int32).reshape(-1, count)
    except OverflowError as error:
        raise EngineError(f"{name} listed what is no token id: {error}") from None
    values = np.array([[pair[1] for pair in entry.top[:count]] for entry in entries], np.float32).reshape(-1, count)
    return listing(tokens, [entry.logprob for entry in entries], ids, values)


def _sorted(pairs: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Most probable first; numbers that are none stand where they are."""
    if any(value != value for _, value in pairs):
        return tuple(pairs)
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))


def _id(text: str) -> int:
    return int(text.removeprefix(_PREFIX))


def _number(value: object) -> float:
    """A log-probability; null is what servers write for what is not finite."""
    if value is None:
        return float("nan")
    number = float(value)  # type: ignore[arg-type]  # what is no number raises
    return float("-inf") if number <= _LEAST else number
