"""Generation and teacher forcing over a running vLLM server, token ids in and out, no cached prompt ever read."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from refract.backends._asking import Continued
from refract.backends._completions import (
    Entry,
    only_choice,
    read_entries,
    read_prompt_entries,
    to_listing,
    token_ids,
)
from refract.backends._http import Client, RefusedError
from refract.backends._listed import Listing
from refract.backends.vllm.http_forcing import Stretch, first_stretch, pieces
from refract.engine import Tokenizer
from refract.errors import EngineError
from refract.work import TokenIds

_PATH = "/v1/completions"
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

    The log-probabilities that vLLM lists are the model's own, before any bias or grammar (logprobs_mode raw_logprobs).
    Every request has a salt of its own, so that none reads what another left in the prefix cache.
    """

    client: Client
    tokenizer: Tokenizer
    model: str

    def generate(self, prompt: TokenIds, most: int, count: int) -> Continued:
        """The greedy continuation of up to `most` tokens, with `count` listed at each (0: none).

        Raises: RefusedError, IncompleteError, EngineError.
        """
        choice = self._ask(prompt, most, count, stop_token_ids=sorted(self.tokenizer.eos_ids))
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

        A grammar makes the server write their text and a bias write it in these tokens, a few hundred to a request.
        What cannot be written so (the end of a sequence, a part of a character) is a request of its own.
        """
        entries: list[Entry] = []
        texts = pieces(self.tokenizer, tokens)
        while len(entries) < len(tokens):
            done = len(entries)
            sofar, left = (*prompt, *tokens[:done]), tokens[done:]
            stretch = first_stretch(left, texts[done:], self.tokenizer.eos_ids)
            found = [] if stretch is None or stretch.count == 1 else self._written(sofar, left, stretch, count)
            entries += found or [self._single(sofar, left[0], count)]
        return to_listing(entries, tokens, count, self.client.name)

    def read(self, tokens: TokenIds, start: int, count: int) -> Listing:
        """What is listed at `tokens[start:]` when they are prefilled as a prompt."""
        choice = self._ask(tokens, 1, 0, prompt_logprobs=count)
        entries = read_prompt_entries(choice, tokens, self.client.name)
        return to_listing(entries[start - 1 :], tokens[start:], count, self.client.name)

    def _written(self, prompt: TokenIds, tokens: TokenIds, stretch: Stretch, count: int) -> list[Entry]:
        """What is listed while the server writes the stretch, as far as it does so in the right tokens."""
        try:
            choice = self._ask(
                prompt,
                stretch.count,
                count,
                structured_outputs={"choice": [stretch.text]},
                logit_bias={str(token): bias for token, bias in stretch.bias.items()},
            )
        except RefusedError:  # no grammar here, or one that this text is too much for
            return []
        written, entries = self._read(choice, count)
        same = next((i for i, (a, b) in enumerate(zip(written, tokens, strict=False)) if a != b), len(written))
        if same < len(written):  # listed before another token was chosen, so it is the right position's list
            top = dict(entries[same].top)
            if tokens[same] in top:
                wanted = tokens[same]
                return [*entries[:same], Entry(token=wanted, logprob=top[wanted], top=entries[same].top)]
        return entries[:same]

    def _single(self, prompt: TokenIds, token: int, count: int) -> Entry:
        """What is listed after `prompt` when only `token` is allowed there."""
        choice = self._ask(prompt, 1, count, allowed_token_ids=[token])
        tokens, entries = self._read(choice, count)
        if tokens != (token,):
            raise EngineError(f"{self.client.name} gave the tokens {tokens} where only {token} was allowed")
        return entries[0]

    def _ask(self, prompt: TokenIds, most: int, count: int, **more: Any) -> dict[str, Any]:
        body = {"model": self.model, "prompt": list(prompt), "max_tokens": most, "cache_salt": secrets.token_hex(24)}
        lists = {"logprobs": count} if count else {}
        return only_choice(self.client.post(_PATH, _NEUTRAL | body | lists | more), self.client.name)

    def _read(self, choice: dict[str, Any], count: int) -> tuple[TokenIds, list[Entry]]:
        """The ids of an answer and what is listed at each. Raises: EngineError where ids or lists are missing."""
        entries = read_entries(choice, self.client.name) if count else []
        tokens = token_ids(choice, None)
        if tokens is None or entries is None or (count and len(entries) != len(tokens)):
            raise EngineError(f"{self.client.name} answered without token ids", hint="use vLLM 0.11 or later")
        if not all(0 <= token < self.tokenizer.vocab_size for token in tokens):
            raise EngineError(f"{self.client.name} gave a token id outside the vocabulary")
        return tokens, entries
