"""Generation and teacher forcing over llama-server's stock completion API, token ids in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refract.backends._asking import Continued
from refract.backends._http import RefusedError
from refract.backends._listed import Listing, joined, listing
from refract.backends.llamacpp.listed import read_listing
from refract.backends.llamacpp.server import Server
from refract.errors import EngineError
from refract.work import TokenIds

PROMPT_PROBS = "--prompt-probs"  # the flag of a server that lists tokens of its prompt, see llama-cpp-patches
_BIAS = 1e4  # on one plain token, so that a step's list is complete whatever the text before it ends in


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """How a model's server is asked.

    `plain` is a token that is whole text by itself; `eos_ids` end a sequence; `vocab_size` is the longest list.
    """

    vocab_size: int
    eos_ids: frozenset[int]
    plain: int

    def generate(self, server: Server, prompt: TokenIds, most: int, count: int) -> Continued:
        """The greedy continuation of up to `most` tokens, with `count` listed at each (0: none).

        Raises: RefusedError, IncompleteError, EngineError.
        """
        answer = server.complete(_body(prompt, most, count))
        tokens = tuple(int(token) for token in answer["tokens"])
        entries = answer.get("completion_probabilities") or []
        ended = answer.get("stop_type") == "eos"
        if ended and (not tokens or tokens[-1] not in self.eos_ids):
            tokens = (*tokens, self._end(server, prompt, tokens, entries))
        if not ended and len(tokens) != most:
            why = answer.get("stop_type")
            raise EngineError(
                f"llama-server stopped ({why}) after {len(tokens)} of {most} tokens, at no end of sequence"
            )
        if not count:
            return Continued(tokens=tokens, ended=ended, listing=None)
        listing = read_listing(entries, tokens, count) or self._stepped(server, prompt, tokens, count)
        return Continued(tokens=tokens, ended=ended, listing=listing)

    def force(self, server: Server, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        """What is listed at each of `tokens` when they follow `prompt` whatever the model prefers.

        A grammar that allows these tokens alone costs one request and gives the bits of a free run. It cannot force an
        end of the sequence or a bare continuation byte: from there on each token is a request of its own.
        """
        if self.eos_ids.isdisjoint(tokens):
            grammar = "root ::= " + " ".join(f"<[{token}]>" for token in tokens)
            try:
                answer = server.complete({**_body(prompt, len(tokens), count), "grammar": grammar})
            except RefusedError:
                return self._stepped(server, prompt, tokens, count)
            if tuple(answer["tokens"]) == tokens:
                found = read_listing(answer.get("completion_probabilities") or [], tokens, count)
                if found is not None:
                    return found
        return self._stepped(server, prompt, tokens, count)

    def read(self, server: Server, tokens: TokenIds, start: int, count: int) -> Listing:
        """What is listed at `tokens[start:]` in one prefill of all, by a server that runs with PROMPT_PROBS."""
        body = {**_body(tokens, 1, 0), "n_prompt_probs": count, "prompt_probs_from": start}
        entries = server.complete(body).get("prompt_probabilities") or []
        if [entry["position"] for entry in entries] != list(range(start, len(tokens))):
            raise EngineError(
                f"llama-server listed {len(entries)} positions of a prompt, expected {len(tokens) - start}",
                hint="build it again: refract engines build-llamacpp --patched",
            )
        own, ids, logprobs = ([entry[name] for entry in entries] for name in ("logprob", "ids", "logprobs"))
        if (found := tuple(int(entry["id"]) for entry in entries)) != tokens[start:]:
            raise EngineError(f"llama-server listed the prompt {found[:4]}…, expected {tokens[start : start + 4]}…")
        return listing(tokens[start:], own, ids, logprobs)

    def _end(self, server: Server, prompt: TokenIds, tokens: TokenIds, entries: Sequence[dict[str, Any]]) -> int:
        """The end-of-sequence token that ended a continuation without being in it."""
        if len(entries) == len(tokens) + 1 and entries[-1].get("id") in self.eos_ids:
            return int(entries[-1]["id"])
        entry = self._step(server, (*prompt, *tokens), 1, warm=False)
        token = int(entry["top_logprobs"][0]["id"])
        if token not in self.eos_ids:
            raise EngineError(f"llama-server ended a sequence where its most probable token is {token}")
        return token

    def _stepped(self, server: Server, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        parts = []
        for index, token in enumerate(tokens):
            sofar = (*prompt, *tokens[:index])
            entry = self._step(server, sofar, count, warm=index > 0)
            found = _own(entry, token, count)
            if found is None:  # not among the listed ones: the whole vocabulary is
                found = _own(self._step(server, sofar, self.vocab_size, warm=True), token, count)
            if found is None:
                raise EngineError(f"llama-server lists no probability of token {token}")
            parts.append(found)
        return joined(parts)

    def _step(self, server: Server, prompt: TokenIds, count: int, *, warm: bool) -> dict[str, Any]:
        """What is listed after `prompt`; with `warm` its cache may be that of the step before."""
        body = {**_body(prompt, 1, count), "cache_prompt": warm, "logit_bias": [[self.plain, _BIAS]]}
        entries = server.complete(body).get("completion_probabilities") or []
        if len(entries) != 1:
            raise EngineError("llama-server listed no probabilities of a step", hint="use a build near b11434")
        return dict(entries[0])


def _own(entry: dict[str, Any], token: int, count: int) -> Listing | None:
    """A step's list with the log-probability of `token`; None where it is not among the listed."""
    own = next((item["logprob"] for item in entry["top_logprobs"] if item["id"] == token), None)
    if own is None:
        return None
    return read_listing([{**entry, "id": token, "logprob": own}], (token,), count)


def _body(prompt: TokenIds, most: int, count: int) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "n_predict": most,
        "temperature": 0,
        "samplers": ["temperature"],
        "n_probs": count,
        "return_tokens": True,
        "cache_prompt": False,
    }
