"""SGLang's KV types: what each configuration is called there, and what a server really keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refract.backends.sglang.facts import ServerFacts
from refract.errors import ConfigMismatchError, KVUnsupportedError
from refract.formats import unsupported
from refract.kv import KVConfig
from refract.work import EffectiveKV

# What --kv-cache-dtype is told. f16 stands for the engine's uncompressed cache, which has the model's own type.
FLAGS: Mapping[str, str] = {
    "f16": "auto",
    "f32": "auto",
    "bf16": "bf16",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}
_TYPES: Mapping[str, str] = {
    **{"float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "bf16": "bf16"},
    **{"fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"},
}
_BYTES: Mapping[str, int] = {"f32": 4, "f16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
_ROUNDING = 0.005 * (1 << 30)  # the server says its memory in units of 0.01 GiB
_SLACK = 0.25  # of what is expected: less than the step from one type to the next, more than any padding


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The layers of a model's cache, and the values of one token's K and V in one layer; 0 where they vary."""

    layers: int
    values: int
    dtype: str  # of the model's weights


def cache_shape(model: Path) -> CacheShape:
    """The shape that config.json gives."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text("utf-8"))
    text: Mapping[str, Any] = config.get("text_config") or config
    heads = int(text.get("num_attention_heads") or 1)
    width = int(text.get("head_dim") or int(text.get("hidden_size") or 0) // heads)
    varies = any(text.get(name) for name in ("kv_lora_rank", "sliding_window", "layer_types", "mamba_d_state"))
    return CacheShape(
        layers=int(text.get("num_hidden_layers") or 0),
        values=0 if varies else 2 * int(text.get("num_key_value_heads") or heads) * width,
        dtype=str(config.get("torch_dtype") or config.get("dtype") or text.get("torch_dtype") or ""),
    )


def check_supported(kv: KVConfig) -> None:
    """Raises: KVUnsupportedError for a configuration that no SGLang server can have."""
    if reasons := unsupported(kv, "sglang"):
        raise KVUnsupportedError(f"{kv}: {reasons[0]}", hint="see: refract formats --backend sglang")
    if kv.k != kv.v:
        raise KVUnsupportedError(
            f"{kv}: SGLang keeps keys and values in one type",
            hint=f"use ctk={kv.k},ctv={kv.k} or ctk={kv.v},ctv={kv.v}",
        )


def stored_type(facts: ServerFacts, shape: CacheShape) -> str:
    """The type a server keeps: "auto" is the model's own, which for float32 weights SGLang makes float16."""
    if facts.kv_type != "auto":
        return _TYPES.get(facts.kv_type, facts.kv_type)
    if facts.dtype != "auto":
        return _TYPES.get(facts.dtype, facts.dtype)
    return "f16" if shape.dtype in ("float32", "") else _TYPES.get(shape.dtype, shape.dtype)


def serves(kv: KVConfig, facts: ServerFacts, shape: CacheShape) -> bool:
    """Whether the server keeps what `kv` asks for; f16 is met by whatever "auto" is."""
    return (kv.k.name == "f16" and facts.kv_type == "auto") or stored_type(facts, shape) == kv.k.name


def effective_kv(kv: KVConfig, facts: ServerFacts, shape: CacheShape) -> EffectiveKV:
    """What the server keeps, its size as it says it itself.

    Raises: ConfigMismatchError where that size is another type's.
    """
    found = stored_type(facts, shape)
    expected = shape.layers * shape.values * _BYTES.get(found, 0)
    measured = _measured(facts)
    if expected and measured and _disagree(expected, measured, facts):
        raise ConfigMismatchError(
            f"the server's cache takes {measured:,.0f} bytes a token, and {found} should take {expected:,.0f}",
            hint="the model may bring its own KV type: start the server with --kv-cache-dtype and a type by name",
        )
    notes = [f"--kv-cache-dtype auto is the model's own type, {found}"] if facts.kv_type == "auto" else []
    if kv.k.compressed and not facts.arguments.get("quantization_param_path"):
        notes.append("no scales of keys and values are given: SGLang takes 1.0 unless the model brings its own")
    return EffectiveKV(
        k=found,
        v=found,
        layers=shape.layers,
        layers_compressed=shape.layers if _BYTES.get(found, 1) < 2 else 0,
        bytes_per_token=float(expected or measured),
        notes=tuple(notes),
    )


def _measured(facts: ServerFacts) -> float:
    """Bytes a token as the server says them; 0 where it says nothing or each of its ranks keeps a part."""
    tokens = int(facts.cache_tokens)
    whole = all(facts.arguments.get(name, "1") == "1" for name in ("tp_size", "pp_size"))
    return int(facts.cache_bytes) / tokens if tokens > 0 and whole else 0.0


def _disagree(expected: int, measured: float, facts: ServerFacts) -> bool:
    tolerance = _SLACK * expected + _ROUNDING / int(facts.cache_tokens)
    return abs(measured - expected) > tolerance
