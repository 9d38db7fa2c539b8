"""How an SGLang server is asked: greedy continuations, prompts read at once, and prompts read one token at a time."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refract.backends._asking import Continued
from refract.backends._http import Client
from refract.backends._listed import Listing, joined, listing
from refract.errors import EngineError
from refract.work import TokenIds

# Every one is named: a server takes what a request leaves out from the model's generation_config.json.
_GREEDY: Mapping[str, float | int] = {
    **{"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "n": 1, "min_new_tokens": 0},
    **{"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
}
# Prompt lists as two arrays of bytes (SGLang from July 2026); older servers leave what they do not know unread.
_FLAT: Mapping[str, bool] = {"return_flat_raw_top_logprobs": True, "return_flat_raw_top_logprobs_b64": True}
_NO_STEPS = "start the server with --page-size 1 and without --disable-radix-cache"
_NO_SPACE = "the server does not keep the prompts of requests apart (extra_key): use a newer SGLang"


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangAsker:
    """Fulfils `refract.backends._asking.Asker`.

    Each request has a part of the server's prefix cache for itself (`extra_key`), so that it starts from an empty cache
    although the server keeps prefixes; how many tokens the server took from its cache is checked in every answer.
    """

    client: Client
    eos_ids: frozenset[int]
    vocab_size: int

    def generate(self, prompt: TokenIds, most: int, count: int) -> Continued:
        """The greedy continuation of up to `most` tokens, with `count` listed at each (0: none)."""
        stops = {"max_new_tokens": most, "stop_token_ids": sorted(self.eos_ids)}
        answer = self._asked(prompt, stops, {"top_logprobs_num": count} if count else None, _own_name(), cached=0)
        tokens, meta = self._tokens(answer), answer["meta_info"]
        ended = bool(tokens) and tokens[-1] in self.eos_ids
        if not ended and len(tokens) != most:
            why = _kind(meta.get("finish_reason"))
            raise EngineError(
                f"{self.client.name} stopped ({why}) after {len(tokens)} of {most} tokens, at no end of sequence"
            )
        found = None
        if count and tokens:
            own = [entry[0] for entry in _rows(meta, "output_token_logprobs", len(tokens))]
            found = _nested(tokens, own, _rows(meta, "output_top_logprobs", len(tokens)), count)
        return Continued(tokens=tokens, ended=ended, listing=found)

    def read(self, tokens: TokenIds, start: int, count: int) -> Listing:
        """What is listed at `tokens[start:]` when the whole prompt is read in one pass."""
        wanted = {"logprob_start_len": start - 1, "top_logprobs_num": count, **_FLAT}
        meta = self._asked(tokens, {"max_new_tokens": 0}, wanted, _own_name(), cached=0)["meta_info"]
        scored = tokens[start:]
        own = _rows(meta, "input_token_logprobs", len(scored) + 1)[1:]
        if tuple(entry[1] for entry in own) != scored:
            raise EngineError("the SGLang server listed other tokens than it was sent")
        if "input_top_logprobs_shape" in meta:
            ids, logprobs = _flat(meta, len(scored), count)
            return listing(scored, [entry[0] for entry in own], ids, logprobs)
        rows = _rows(meta, "input_top_logprobs", len(scored) + 1)[1:]
        return _nested(scored, [entry[0] for entry in own], rows, count)

    def force(self, prompt: TokenIds, tokens: TokenIds, count: int) -> Listing:
        """What is listed at each of `tokens`: step by step, all but the newest token from the cache.

        The prompt is put there first but for its last token, so that the first of `tokens` too is read from it.
        """
        space = _own_name()
        if len(prompt) > 1:
            self._asked(prompt[:-1], {"max_new_tokens": 1, "ignore_eos": True}, None, space, cached=0)
        return joined([self._step((*prompt, *tokens[:i]), token, count, space) for i, token in enumerate(tokens)])

    def _tokens(self, answer: Mapping[str, Any]) -> TokenIds:
        tokens = tuple(int(token) for token in answer["output_ids"])
        if not all(0 <= token < self.vocab_size for token in tokens):
            raise EngineError(f"{self.client.name} gave a token id outside the vocabulary of {self.vocab_size}")
        return tokens

    def _step(self, context: TokenIds, token: int, count: int, space: str) -> Listing:
        wanted = {"top_logprobs_num": count, "token_ids_logprob": [token]}
        once = {"max_new_tokens": 1, "ignore_eos": True}
        meta = self._asked(context, once, wanted, space, cached=len(context) - 1)["meta_info"]
        (own,) = _rows(meta, "output_token_ids_logprobs", 1)
        return _nested((token,), [own[0][0]], _rows(meta, "output_top_logprobs", 1), count)

    def _asked(
        self,
        ids: TokenIds,
        sampling: Mapping[str, Any],
        logprobs: Mapping[str, Any] | None,
        space: str,
        *,
        cached: int,
    ) -> Mapping[str, Any]:
        """The answer to one request, which must have taken `cached` tokens from the cache and no other number."""
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "sampling_params": {**_GREEDY, **sampling},
            "rid": _own_name(),
            "extra_key": space,
            "return_logprob": logprobs is not None,
            "return_text_in_logprobs": False,
            **(logprobs or {}),
        }
        answer: dict[str, Any] = self.client.post("/generate", body)
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(meta, dict) or not isinstance(answer.get("output_ids"), list):
            raise EngineError(
                "the SGLang server answered without token ids",
                hint="use SGLang 0.4.7 or newer, not started with --stream-output",
            )
        if (meta.get("id", body["rid"]), meta.get("prompt_tokens", len(ids))) != (body["rid"], len(ids)):
            raise EngineError(
                f"{self.client.name} gave the answer to another request, of {meta.get('prompt_tokens')} tokens where"
                f" {len(ids)} were sent",
                hint="a proxy or router may stand before it: give the address of the server itself",
            )
        found = meta.get("cached_tokens", 0)
        if found != cached:
            raise EngineError(
                f"the SGLang server took {found} tokens from its prefix cache where {cached} were expected",
                hint=_NO_STEPS if found < cached else _NO_SPACE,
            )
        return answer


def _own_name() -> str:
    """A name that no other request has, now or later."""
    return f"refract-{uuid.uuid4().hex}"


def _kind(finish_reason: object) -> str:
    """Why a generation ended, in the server's word, with what it says about it."""
    if not isinstance(finish_reason, dict):
        return str(finish_reason)
    message = finish_reason.get("message")
    return f"{finish_reason.get('type')}: {message}" if message else str(finish_reason.get("type"))


def _rows(meta: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    found = meta.get(name)
    if not isinstance(found, list) or len(found) != count:
        what = f"{len(found)} entries" if isinstance(found, list) else "none"
        raise EngineError(f"the SGLang server's {name} should have {count} entries, found {what}")
    return found


def _nested(tokens: TokenIds, own: Sequence[float | None], rows: Sequence[Any], count: int) -> Listing:
    """The listing of rows of [log-probability, id, text]; null where a log-probability is not finite."""
    try:
        if any(len(row) != count for row in rows):
            raise ValueError(f"{min(map(len, rows))} tokens are listed instead of {count}")
        ids = np.array([[entry[1] for entry in row] for row in rows], np.int32)
        logprobs = np.array([[entry[0] for entry in row] for row in rows], np.float32)
        return listing(tokens, np.array(own, np.float32), ids, logprobs)
    except (TypeError, ValueError, IndexError) as error:
        raise EngineError(f"the SGLang server's lists of probable tokens are not as expected: {error}") from None


def _flat(meta: Mapping[str, Any], positions: int, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids and log-probabilities (N, K) of the last `positions` of a prompt, from the server's flat arrays."""
    try:
        rows, width = meta["input_top_logprobs_shape"]
        known = rows - meta["input_top_logprobs_null_prefix"]
        names = ("input_top_logprobs_idx_flat", "input_top_logprobs_val_flat")
        ids, logprobs = (_array(meta, name).reshape(known, width) for name in names)
        if width != count or known < positions:
            raise ValueError(f"{known} positions of {width} tokens instead of {positions} of {count}")
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the SGLang server's flat lists are not as expected: {error}") from None
    return ids[known - positions :], logprobs[known - positions :]


def _array(meta: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    """A flat array, as base64 with its type beside it or as a list of numbers."""
    if f"{name}_b64" in meta:
        return np.frombuffer(base64.b64decode(meta[f"{name}_b64"]), np.dtype(meta[f"{name}_b64_dtype"]))
    return np.array(meta[name], np.int32 if "idx" in name else np.float32)
