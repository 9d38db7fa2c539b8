"""Generation and teacher forcing over /v1/completions, token ids in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refract.backends._asking import Continued
from refract.backends._completions import Entry, check_prompt, only_choice, read_entries, to_listing, token_ids
from refract.backends._http import Client, RefusedError
from refract.backends._listed import Listing
from refract.backends.openai.dialects import Dialect, new_owner
from refract.errors import EngineError
from refract.work import TokenIds

_FORCE = 100.0  # the largest bias OpenAI's API takes
_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsAsker:
    """How a server with lists by token id is asked; fulfils `refract.backends._asking.Asker`.

    `plain` is a token that is whole text by itself; `eos_ids` end a sequence; `vocab_size` is the longest list.
    """

    client: Client
    dialect: Dialect
    model: str
    vocab_size: int
    eos_ids: frozenset[int]
    plain: int

    def generate(self, prompt: TokenIds, most: int, count: int) -> Continued:
        """The greedy continuation of up to `most` tokens, with `count` listed at each (0: none).

        Raises: RefusedError, IncompleteError, EngineError.
        """
        answer = self._ask(prompt, most, max(1, count), new_owner(), warm=False)
        choice = only_choice(answer, self.client.name)
        entries = read_entries(choice, self.client.name)
        tokens = self._whole(answer, choice, entries)
        if tokens is None:  # some are missing where the text so far is no whole character
            return self._walk(prompt, most, count)
        end = next((place for place, token in enumerate(tokens, 1) if token in self.eos_ids), None)
        kept, found = tokens[:end], list(entries or ())[:end]
        ended = end is not None or choice.get("finish_reason") == "stop"
        if ended and end is None:
            last = self._end((*prompt, *kept), max(1, count))
            kept, found = (*kept, last.token), [*found, last]
        if not ended and len(kept) != most:
            why = choice.get("finish_reason")
            raise EngineError(f"{self.client.name} stopped ({why}) after {len(kept)} of {most} tokens")
        listing = to_listing(found, kept, count, self.client.name) if count else None
        return Continued(tokens=kept, ended=ended, listing=listing)

    def force(self, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        """What is listed at each of `tokens` when they follow `prompt` whatever the model prefers.

        Where the server takes a grammar of token ids that is one request. Elsewhere it is one for each token: the
        prompt grows, and a bias on the next token, which does not change what is listed, makes the server write it. The
        token after that is listed in a decode step, which reads the whole cache; a pass over a prompt may not.
        """
        if self.dialect.grammar and self.eos_ids.isdisjoint(tokens):
            found = self._by_grammar(prompt, tokens, count)
            if found is not None:
                return found
        owner = new_owner()
        entries = [self._forced(prompt, tokens[0], count, owner, warm=False)]
        for place in range(1, len(tokens)):
            entries.append(
                self._second((*prompt, *tokens[: place - 1]), tokens[place - 1], tokens[place], count, owner)
            )
        return to_listing(entries, tokens, count, self.client.name)

    def read(self, tokens: TokenIds, start: int, count: int) -> Listing:
        """What `force` finds: this API has no one way to score a prompt."""
        return self.force(tokens[:start], tokens[start:], count)

    def _by_grammar(self, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing | None:
        """What one request gives whose grammar allows these tokens alone; None where it cannot be."""
        grammar = "root ::= " + " ".join(f"<[{token}]>" for token in tokens)
        try:
            answer = self._ask(prompt, len(tokens), count, new_owner(), warm=False, grammar=grammar)
        except RefusedError:  # a grammar cannot hold a bare continuation byte
            return None
        entries = read_entries(only_choice(answer, self.client.name), self.client.name)
        if entries is None or tuple(entry.token for entry in entries) != tokens:
            return None
        return to_listing(entries, tokens, count, self.client.name)

    def _walk(self, prompt: TokenIds, most: int, count: int) -> Continued:
        """A greedy continuation, one request for each token."""
        owner, entries = new_owner(), list[Entry]()
        while len(entries) < most and not (entries and entries[-1].token in self.eos_ids):
            sofar = (*prompt, *(entry.token for entry in entries))
            entries.append(_best(self._step(sofar, max(1, count), self.plain, owner, warm=bool(entries))))
        tokens = tuple(entry.token for entry in entries)
        listing = to_listing(entries, tokens, count, self.client.name) if count else None
        return Continued(tokens=tokens, ended=bool(tokens) and tokens[-1] in self.eos_ids, listing=listing)

    def _end(self, prompt: TokenIds, count: int) -> Entry:
        """The end of the sequence that the server saw after `prompt` and did not give.

        Raises: EngineError when it is not the most probable token there.
        """
        entry = _best(self._step(prompt, count, self.plain, new_owner(), warm=False))
        if entry.token not in self.eos_ids:
            raise EngineError(
                f"{self.client.name} ended a sequence where its most probable token is {entry.token}",
                hint="check that --model is the model that the server runs",
            )
        return entry

    def _second(self, prompt: TokenIds, first: int, second: int, count: int, owner: str) -> Entry:
        """What is listed where `second` stands, when `prompt` is followed by `first`, which the server writes."""
        answer = self._ask(prompt, 2, count, owner, warm=True, logit_bias={str(first): _FORCE})
        entries = read_entries(only_choice(answer, self.client.name), self.client.name) or []
        whole = len(entries) == 2 and entries[0].token == first and first not in self.eos_ids
        own = dict(entries[1].top).get(second) if whole else None
        if own is not None:
            return Entry(token=second, logprob=own, top=entries[1].top)
        alone = self._forced((*prompt, first), second, count, owner, warm=True)
        return Entry(token=second, logprob=alone.logprob, top=entries[1].top if whole else alone.top)

    def _forced(self, prompt: TokenIds, token: int, count: int, owner: str, *, warm: bool) -> Entry:
        """What is listed after `prompt`, with the log-probability of `token`, listed or not."""
        entry = self._maybe_step(prompt, count, token, owner, warm=warm)
        if entry is not None and entry.token == token:
            return entry
        entry = self._step(prompt, count, self.plain, owner, warm=warm)
        own = dict(entry.top).get(token)
        if own is None:  # not among the listed ones: the whole vocabulary is
            own = dict(self._step(prompt, self.vocab_size, self.plain, owner, warm=True).top).get(token)
        if own is None:
            raise EngineError(f"{self.client.name} lists no probability of token {token}")
        return Entry(token=token, logprob=own, top=entry.top)

    def _step(self, prompt: TokenIds, count: int, bias: int, owner: str, *, warm: bool) -> Entry:
        entry = self._maybe_step(prompt, count, bias, owner, warm=warm)
        if entry is None or not entry.top:
            raise EngineError(f"{self.client.name} listed no probabilities of a step")
        return entry

    def _maybe_step(self, prompt: TokenIds, count: int, bias: int, owner: str, *, warm: bool) -> Entry | None:
        """One token after `prompt`, chosen by a bias; None where the server leaves its list out."""
        answer = self._ask(prompt, 1, count, owner, warm=warm, logit_bias={str(bias): _FORCE})
        entries = read_entries(only_choice(answer, self.client.name), self.client.name)
        return entries[0] if entries is not None and len(entries) == 1 else None

    def _whole(
        self, answer: dict[str, Any], choice: dict[str, Any], entries: Sequence[Entry] | None
    ) -> TokenIds | None:
        """The generated ids when the answer holds all of them, and lists of each."""
        tokens = token_ids(choice, entries)
        usage = answer.get("usage")
        said = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if tokens is None or (entries is not None and len(entries) != len(tokens)):
            return None
        if not all(0 <= token < self.vocab_size for token in tokens):
            raise EngineError(f"{self.client.name} gave a token id outside the vocabulary of {self.vocab_size}")
        return tokens if said is None or said == len(tokens) or _ended(choice, said, tokens) else None

    def _ask(self, prompt: TokenIds, most: int, count: int, owner: str, *, warm: bool, **more: Any) -> dict[str, Any]:
        body = {"model": self.model, "prompt": list(prompt), "max_tokens": most, "logprobs": count}
        answer = self.client.post(_PATH, body | self.dialect.body(owner, warm=warm) | more)
        if not isinstance(answer, dict):
            raise EngineError(f"{self.client.name} answered {_PATH} with no object")
        check_prompt(answer, prompt, self.client.name)
        return answer


def _ended(choice: dict[str, Any], said: int, tokens: TokenIds) -> bool:
    """Whether what is missing is the end of the sequence, which some servers count and do not list."""
    return choice.get("finish_reason") == "stop" and said == len(tokens) + 1


def _best(entry: Entry) -> Entry:
    """The entry of the most probable token in its place."""
    token, logprob = entry.top[0]
    return Entry(token=token, logprob=logprob, top=entry.top)
