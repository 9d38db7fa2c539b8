"""What servers take beside OpenAI's own fields: how each is asked for ids, raw probabilities and an empty cache."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_PLAIN = {"temperature": 0, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}
_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_NO_SAMPLER = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}  # over a model's generation_config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server. `name` is what its /v1/models says in `owned_by`.

    `fields` go with every request; `salt` and `reuse` are the names of the field that keeps cached prompts of different
    owners apart and of the one that allows to reuse one; `grammar` says whether a GBNF grammar may name tokens by id.
    """

    name: str
    title: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    salt: str = ""
    reuse: str = ""
    grammar: bool = False

    @property
    def cache_rule(self) -> str:
        """What is known of prompts that the server has cached."""
        if self.salt:
            return "no cached prompt is reused (cache_salt)"
        if self.reuse:
            return "no cached prompt is reused, but by the steps of one text"
        return "whether the server reuses cached prompts is not known: start it without prefix caching"

    def body(self, owner: str, *, warm: bool) -> dict[str, Any]:
        """The fields of a request of `owner`; a `warm` one may reuse what the same owner asked before."""
        own: dict[str, Any] = {**_PLAIN, **self.fields}
        if self.reuse:
            own[self.reuse] = warm
        if self.salt:
            own[self.salt] = owner
        return own


def new_owner() -> str:
    """A name that no cached prompt has yet."""
    return secrets.token_hex(16)


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        dialect.name: dialect
        for dialect in (
            Dialect(
                name="llamacpp",
                title="llama-server",
                fields={"samplers": ["temperature"]},
                reuse="cache_prompt",
                grammar=True,
            ),
            Dialect(name="vllm", title="vLLM", fields={**_IDS, **_NO_SAMPLER}, salt="cache_salt"),
            Dialect(name="sglang", title="SGLang", fields={**_IDS, **_NO_SAMPLER}, salt="cache_salt"),
        )
    }
)
UNKNOWN = Dialect(name="", title="the server", fields=_IDS)
BARE = Dialect(name="", title="the server")  # for one that refuses fields it does not know
