"""What an SGLang server says of itself: how it keeps its cache, and what else decides its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from refract.backends._http import Client, RefusedError
from refract.errors import EngineError

# Attention backends whose prefill reads keys and values back from the cache, all of them, the current chunk's too
# (SGLang 0.5.15, srt/layers/attention/torch_native_backend.py: forward_extend). The others attend to the raw keys of
# the current chunk (triton, flashinfer without a cached prefix), or are not known.
READS_CACHE_IN_PREFILL = frozenset({"torch_native"})

# Server arguments besides the KV type that decide numbers (SGLang 0.5.15, ServerArgs).
_NUMERIC = (
    *("dtype", "quantization", "quantization_param_path", "load_format", "revision", "model_impl"),
    *("json_model_override_args", "context_length", "chunked_prefill_size", "page_size", "device"),
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend"),
    *("tp_size", "pp_size", "dp_size", "ep_size", "enable_deterministic_inference", "enable_fp32_lm_head"),
    *("speculative_algorithm", "speculative_num_steps", "lora_paths", "weight_version"),
)
_FREE = frozenset({"context_length"})  # numeric only in that rope scaling may follow it; shown, not compared
_VOLATILE = frozenset({"internal_states", "last_gen_throughput", "status", "kv_events"})
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """A server's settings as text. `kv_type` is as it was asked for, "auto" where nothing was.

    `settings` are the arguments that decide numbers, without the KV type; `cache_bytes` is what its cache takes of
    memory and `cache_tokens` what it holds, 0 where the server does not say; `instance` tells one server from another.
    """

    version: str
    kv_type: str
    dtype: str
    attention: str
    device: str
    page_size: str
    radix_cache: str
    model_path: str
    cache_bytes: str
    cache_tokens: str
    instance: str
    settings: str

    @property
    def prefill_reads_cache(self) -> bool:
        """Whether a prompt's own keys and values are read back from the cache before anything is computed of them."""
        return self.attention in READS_CACHE_IN_PREFILL

    @property
    def steps(self) -> bool:
        """Whether a prompt can be read one token at a time, what came before from the cache."""
        return self.radix_cache == "True" and self.page_size == "1"

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments that decide numbers, by name."""
        found: dict[str, str] = json.loads(self.settings)
        return found

    def as_text(self) -> dict[str, str]:
        """The facts as a mapping, for keeping."""
        return asdict(self)


def from_text(kept: Mapping[str, str] | None) -> ServerFacts | None:
    """The facts that `as_text` gave; None where they are not whole."""
    names = {field.name for field in fields(ServerFacts)}
    return ServerFacts(**kept) if kept is not None and kept.keys() == names else None


def ask_facts(client: Client) -> ServerFacts:
    """The facts of the server at the other end.

    Raises: IncompleteError when it is not there; EngineError when it is no SGLang server.
    """
    info = _asked(client, "/server_info", "/get_server_info")
    model = _asked(client, "/model_info", "/get_model_info")
    return read_facts(info, model)


def read_facts(info: Mapping[str, Any], model: Mapping[str, Any]) -> ServerFacts:
    """The facts in the answers to /server_info and /model_info.

    Raises: EngineError where they lack what every server since 0.4 says.
    """
    if "version" not in info or "kv_cache_dtype" not in info:
        raise EngineError(
            "the server says neither its version nor its KV type, which SGLang's does",
            hint="check the address; another engine's server is measured with --backend openai",
        )
    memory = _memory(info)
    attention = {str(info.get(name)) for name in ("prefill_attention_backend", "decode_attention_backend")} - {"None"}
    whole = str(info.get("attention_backend") or _UNKNOWN)
    settings = {name: str(info[name]) for name in _NUMERIC if info.get(name) not in (None, "", False)}
    return ServerFacts(
        version=str(info["version"]),
        kv_type=str(info["kv_cache_dtype"] or "auto"),
        dtype=str(info.get("dtype") or "auto"),
        attention="+".join(sorted(attention - {whole})) or whole,
        device=str(info.get("device") or _UNKNOWN),
        page_size=str(info.get("page_size") or 1),
        radix_cache=str(not info.get("disable_radix_cache", False)),
        model_path=str(model.get("model_path") or info.get("model_path") or ""),
        cache_bytes=str(memory[0]),
        cache_tokens=str(memory[1]),
        instance=_instance(info),
        settings=json.dumps(settings, sort_keys=True),
    )


def difference(one: ServerFacts, other: ServerFacts) -> str | None:
    """The first thing besides the KV type in which two servers differ and that moves numbers; None where none does."""
    left = {"version": one.version, **one.arguments}
    right = {"version": other.version, **other.arguments}
    for name in sorted(left.keys() | right.keys()):
        if name not in _FREE and left.get(name) != right.get(name):
            return f"{name} is {left.get(name, 'not set')} and {right.get(name, 'not set')}"
    return None


def _memory(info: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of the cache, as rounded by the server to 0.01 GiB, and the tokens it holds."""
    states = info.get("internal_states") or [{}]
    memory = states[0].get("memory_usage") or {}
    return round(float(memory.get("kvcache") or 0.0) * (1 << 30)), int(memory.get("token_capacity") or 0)


def _instance(info: Mapping[str, Any]) -> str:
    """A digest of every argument: seed and port are among them, so two servers of one machine differ."""
    kept = {name: value for name, value in info.items() if name not in _VOLATILE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _asked(client: Client, *paths: str) -> Mapping[str, Any]:
    """The object at the first of the paths that is there: newer servers have renamed them."""
    for path in paths:
        try:
            found = client.get(path)
        except RefusedError as error:
            if error.status != 404:
                raise
            continue
        if isinstance(found, dict):
            return found
        raise EngineError(f"{client.name} answered {path} with no object", hint="check that it is SGLang's server")
    raise EngineError(
        f"{client.name} has no {paths[0]}, which every SGLang server has",
        hint="check the address; another engine's server is measured with --backend openai",
    )
