"""What a running vLLM server says of itself: version, model, and in /metrics how it keeps its KV cache."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refract.backends._completions import only_choice, read_entries, token_ids
from refract.backends._http import Client, RefusedError
from refract.engine import Tokenizer
from refract.errors import ConfigMismatchError, EngineError, IncompleteError

_CACHE_LINE = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STARTED = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_LISTS = (100, 20)  # lengths to try when the one that is wanted is refused; vLLM's own limit is 20 unless told
FORCED = "refract_forced"  # as refract.backends.vllm.inside.forcing calls it, which imports vLLM
_TEXT = "The lighthouse keeper counted 17 ships."
_SERVE = "start it with vllm serve, and with metrics (they are on unless --disable-log-stats is given)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """A server of one configuration. `listed` is the longest list of probable tokens it gives.

    `cache_dtype` is --kv-cache-dtype as asked, `skipped` the layers that keep the model's own type. `blocks` of
    `block_size` tokens fit `memory_bytes`; 0 where the server does not say.
    """

    version: str
    model: str
    context: int
    cache_dtype: str
    skipped: tuple[str, ...] = ()
    prefix_caching: bool = False
    block_size: int = 0
    blocks: int = 0
    memory_bytes: int = 0
    started: str = ""
    listed: int = 0
    forces: bool = False  # has the logits processor of `refract.backends.vllm.inside.forcing`

    @property
    def lasting(self) -> dict[str, str]:
        """What is the same for every configuration of one build, as texts."""
        numbers = {"context": str(self.context), "listed": str(self.listed)}
        return {"version": self.version, **numbers, "forces": str(self.forces)}


def read_facts(client: Client, tokenizer: Tokenizer, *, model: str, wanted: int) -> ServerFacts:
    """The facts of a running server; `model` is the one to ask for ("": the only one), `wanted` the length of lists.

    Raises: EngineError when it is no vLLM or does not say how it keeps its cache; ConfigMismatchError for a server of
    another model.
    """
    entry = _served(client, model)
    cache = cache_config(client.text("/metrics"), client.name)
    version, prober = client.get("/version"), _Prober(client, tokenizer, str(entry["id"]))
    _compare_tokenizer(client, tokenizer, str(entry["id"]))
    return ServerFacts(
        version=str(version.get("version", "")) if isinstance(version, dict) else "",
        model=str(entry["id"]),
        context=_number(entry.get("max_model_len")),
        cache_dtype=cache["cache_dtype"],
        skipped=_names(cache.get("kv_cache_dtype_skip_layers", "[]")),
        prefix_caching=cache.get("enable_prefix_caching") == "True",
        block_size=_number(cache.get("block_size")),
        blocks=_number(cache.get("num_gpu_blocks")),
        memory_bytes=_number(cache.get("kv_cache_memory_bytes")),
        started=start_time(client) or "",
        listed=prober.longest(min(wanted, tokenizer.vocab_size)),
        forces=prober.forces(),
    )


def cache_config(metrics: str, name: str) -> dict[str, str]:
    """The labels of vllm:cache_config_info in the text of /metrics.

    Raises: EngineError without the line or the type in it, and for engines (data parallel ranks) of different types.
    """
    found = [dict(_LABEL.findall(line)) for line in _CACHE_LINE.findall(metrics)]
    if not found or not all("cache_dtype" in labels for labels in found):
        raise EngineError(f"{name} does not say in /metrics in what type it keeps its KV cache", hint=_SERVE)
    if len({(labels["cache_dtype"], labels.get("kv_cache_dtype_skip_layers")) for labels in found}) > 1:
        raise EngineError(f"{name} runs engines whose KV types differ")
    return found[0]


def start_time(client: Client) -> str | None:
    """When its process started, which two servers do not share; None where it does not say."""
    try:
        found = _STARTED.search(client.text("/metrics"))
    except (EngineError, IncompleteError):
        return None
    return found[1] if found else None


def _served(client: Client, model: str) -> Mapping[str, Any]:
    answer = client.get("/v1/models")
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or not all(isinstance(entry, dict) and "id" in entry for entry in data):
        raise EngineError(f"{client.name} lists no models at /v1/models", hint="is it a vLLM server?")
    named = [entry for entry in data if (entry["id"] == model if model else not entry.get("parent"))]
    if not named or (len(named) > 1 and model):
        raise EngineError(
            f"{client.name} does not serve {model or 'a model'}", hint="name one with --engine-arg served_model=ID"
        )
    if named[0].get("owned_by", "vllm") != "vllm":
        raise EngineError(
            f"{client.name} is no vLLM: its models are owned by {named[0]['owned_by']}",
            hint="use --backend openai for it",
        )
    return dict(named[0])  # several names of one model are one model


def _compare_tokenizer(client: Client, tokenizer: Tokenizer, model: str) -> None:
    found = client.post("/tokenize", {"model": model, "prompt": _TEXT, "add_special_tokens": False})
    ids, own = found.get("tokens") if isinstance(found, dict) else None, list(tokenizer.encode(_TEXT))
    if ids != own:
        raise ConfigMismatchError(
            f"{client.name} tokenises a text as {str(ids)[:40]}, the tokenizer of --model as {str(own)[:40]}",
            hint="give as --model the model that the server runs",
        )


class _Prober:
    """Asks for one token after a short text."""

    def __init__(self, client: Client, tokenizer: Tokenizer, model: str) -> None:
        self.client = client
        self.body = {"model": model, "prompt": list(tokenizer.encode(_TEXT, add_special=True)), "max_tokens": 1}
        self.body |= {"temperature": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
        self.unlikely = tokenizer.encode("a")[0]  # after a full stop

    def longest(self, wanted: int) -> int:
        """The longest list it gives, up to `wanted`. Raises: EngineError when it gives none by token id."""
        for listed in (wanted, *(length for length in _LISTS if length < wanted)):
            choice = self._choice(logprobs=listed)
            entries = read_entries(choice, self.client.name) if choice else None
            if choice and entries and token_ids(choice, entries) and len(entries[0].top) >= listed:
                return listed
        raise EngineError(f"{self.client.name} lists no probable tokens by id", hint="use vLLM 0.11 or later")

    def forces(self) -> bool:
        """Whether it writes the tokens that a request brings."""
        choice = self._choice(vllm_xargs={FORCED: [self.unlikely]})
        return choice is not None and token_ids(choice, None) == (self.unlikely,)

    def _choice(self, **more: Any) -> dict[str, Any] | None:
        """The one choice; None where the server refuses the request."""
        try:
            return only_choice(self.client.post("/v1/completions", self.body | more), self.client.name)
        except RefusedError as error:
            if error.status >= 500:
                raise
            return None


def _names(text: str) -> tuple[str, ...]:
    """The elements of a list as Python prints it."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list | tuple | set) else ()


def _number(value: object) -> int:
    """A whole number, written as one or as text; 0 for anything else."""
    text = str(value)
    return int(text) if text.isdecimal() else 0
