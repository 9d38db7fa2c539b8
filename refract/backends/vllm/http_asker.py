"""Generation and teacher forcing over a running vLLM server, token ids in and out, no cached prompt ever read."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from refract.backends._asking import Continued
from refract.backends._completions import (
    Entry,
    check_prompt,
    only_choice,
    read_entries,
    read_prompt_entries,
    to_listing,
    token_ids,
)
from refract.backends._http import Client
from refract.backends._listed import Listing
from refract.backends.vllm.http_facts import FORCED
from refract.engine import Tokenizer
from refract.errors import EngineError
from refract.work import TokenIds

_PATH = "/v1/completions"
_BIAS = 100.0  # vLLM clips logit_bias there
_NEUTRAL = {
    "temperature": 0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,  # a model's generation_config.json may say otherwise
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMAsker:
    """How a running vLLM is asked for `model`; fulfils `refract.backends._asking.Asker`.

    The log-probabilities that vLLM lists are the model's own, before bias and permitted tokens (its logprobs_mode
    raw_logprobs; a grammar would come before them). Every text has a salt of its own, so that none reads what another
    left in the prefix cache.
    """

    client: Client
    tokenizer: Tokenizer
    model: str
    forces: bool = False

    def generate(self, prompt: TokenIds, most: int, count: int) -> Continued:
        """The greedy continuation of up to `most` tokens, with `count` listed at each (0: none).

        Raises: RefusedError, IncompleteError, EngineError.
        """
        stops = sorted(self.tokenizer.eos_ids)
        choice = self._ask(prompt, most, count, cache_salt=secrets.token_hex(24), stop_token_ids=stops)
        tokens, entries = self._read(choice, count)
        ended = bool(tokens) and tokens[-1] in self.tokenizer.eos_ids
        if not ended and len(tokens) != most:
            raise EngineError(
                f"{self.client.name} stopped ({choice.get('finish_reason')}) after {len(tokens)} of {most} tokens,"
                " at no end of sequence",
                hint="check that --model is the model that the server runs",
            )
        listing = to_listing(entries, tokens, count, self.client.name) if count else None
        return Continued(tokens=tokens, ended=ended, listing=listing)

    def force(self, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        """What is listed at each of `tokens` when they are decoded after `prompt`, one by one.

        The first is listed after the prompt, as in a free run. Each other is the second token of a request whose first
        is forced too: its list comes from a decode step, which reads all of the compressed cache, where the pass over a
        prompt may attend to keys that are not compressed yet. The requests of one text share what they have cached.
        A server that `forces` writes all of them in one request.
        """
        salt = secrets.token_hex(24)
        if self.forces:
            forced = {"vllm_xargs": {FORCED: list(tokens)}, "ignore_eos": True}
            choice = self._ask(prompt, len(tokens), count, cache_salt=salt, **forced)
            return to_listing(self._forced(choice, tokens, count), tokens, count, self.client.name)
        entries = [self._single(prompt, tokens[0], count, salt)]
        for place in range(1, len(tokens)):
            entries.append(self._second((*prompt, *tokens[: place - 1]), tokens[place - 1], tokens[place], count, salt))
        return to_listing(entries, tokens, count, self.client.name)

    def read(self, tokens: TokenIds, start: int, count: int) -> Listing:
        """What is listed at `tokens[start:]` when they are prefilled as a prompt."""
        choice = self._ask(tokens, 1, 0, cache_salt=secrets.token_hex(24), prompt_logprobs=count)
        entries = read_prompt_entries(choice, tokens, self.client.name)
        return to_listing(entries[start - 1 :], tokens[start:], count, self.client.name)

    def _single(self, prompt: TokenIds, token: int, count: int, salt: str) -> Entry:
        """What is listed after `prompt` when only `token` is allowed there."""
        choice = self._ask(prompt, 1, count, cache_salt=salt, allowed_token_ids=[token])
        return self._forced(choice, (token,), count)[-1]

    def _second(self, prompt: TokenIds, first: int, second: int, count: int, salt: str) -> Entry:
        """What is listed where `second` stands, when `prompt` is followed by `first`.

        The bias of `second` is the larger, but it ends the sequence, and that may not be its first token (min_tokens).
        Nor may an end of the sequence be, which is made a part of the prompt.
        """
        if first in self.tokenizer.eos_ids:
            return self._single((*prompt, first), second, count, salt)
        forcing: dict[str, Any] = {"logit_bias": {str(first): _BIAS / 2, str(second): _BIAS}, "ignore_eos": True}
        if first != second:
            forcing |= {"stop_token_ids": [second], "min_tokens": 1}
        choice = self._ask(prompt, 2, count, cache_salt=salt, allowed_token_ids=[*{first, second}], **forcing)
        return self._forced(choice, (first, second), count)[-1]

    def _forced(self, choice: dict[str, Any], wanted: TokenIds, count: int) -> list[Entry]:
        """What is listed at each of the tokens that had to be written. Raises: EngineError where others were."""
        tokens, entries = self._read(choice, count)
        if tokens != wanted:
            raise EngineError(
                f"{self.client.name} gave the tokens {str(tokens)[:40]} where {str(wanted)[:40]} were forced",
                hint="use vLLM 0.11 or later, without speculative decoding",
            )
        return entries

    def _ask(self, prompt: TokenIds, most: int, count: int, **more: Any) -> dict[str, Any]:
        own = secrets.token_hex(16)
        body = {"model": self.model, "prompt": list(prompt), "max_tokens": most, "request_id": own}
        lists = {"logprobs": count} if count else {}
        answer = self.client.post(_PATH, _NEUTRAL | body | lists | more)
        choice = only_choice(answer, self.client.name)
        if own not in str(answer.get("id", own)):
            raise EngineError(f"{self.client.name} gave the answer to another request: {str(answer['id'])[:60]}")
        check_prompt(answer, prompt, self.client.name)
        return choice

    def _read(self, choice: dict[str, Any], count: int) -> tuple[TokenIds, list[Entry]]:
        """The ids of an answer and what is listed at each. Raises: EngineError where ids or lists are missing."""
        entries = read_entries(choice, self.client.name) if count else []
        tokens = token_ids(choice, None)
        if tokens is None or entries is None or (count and len(entries) != len(tokens)):
            raise EngineError(f"{self.client.name} answered without token ids", hint="use vLLM 0.11 or later")
        if not all(0 <= token < self.tokenizer.vocab_size for token in tokens):
            raise EngineError(f"{self.client.name} gave a token id outside the vocabulary")
        return tokens, entries
