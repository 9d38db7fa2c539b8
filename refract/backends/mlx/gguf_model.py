"""Builds an mlx-lm model from a GGUF file: llama, qwen2, qwen3 and gemma3 architectures.

Tensor names, the q/k permutation of llama files and the +1 of Gemma's norms are those of llama.cpp's
`convert_hf_to_gguf.py` (b11434), undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from refract.backends._gguf import GGUF, TensorInfo
from refract.errors import MissingPackageError, ModelError

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_SLIDING_PATTERN = 6  # every sixth layer attends globally (Gemma 3 report, §2)
_GEMMA_LOCAL_ROPE_BASE = 10_000.0


def _number(gguf: GGUF, key: str, default: float | None = None) -> float:
    value = gguf.get(key, default)
    if not isinstance(value, (int, float)):
        raise ModelError(
            f"{gguf.path.name}: metadata {gguf.architecture}.{key} is missing or not a number",
            hint="convert the model again with a current llama.cpp",
        )
    return float(value)


def _common_config(gguf: GGUF) -> dict[str, Any]:
    heads = int(_number(gguf, "attention.head_count"))
    width = int(_number(gguf, "embedding_length"))
    return {
        "hidden_size": width,
        "num_hidden_layers": int(_number(gguf, "block_count")),
        "intermediate_size": int(_number(gguf, "feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_number(gguf, "attention.head_count_kv", heads)),
        "head_dim": int(_number(gguf, "attention.key_length", width // heads)),
        "rms_norm_eps": _number(gguf, "attention.layer_norm_rms_epsilon"),
        "rope_theta": _number(gguf, "rope.freq_base", 10_000.0),
        "max_position_embeddings": int(_number(gguf, "context_length")),
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
    }


def _rope_scaling(gguf: GGUF) -> dict[str, float | str] | None:
    kind = gguf.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": _number(gguf, "rope.scaling.factor")}
    raise ModelError(
        f"{gguf.path.name} uses RoPE scaling {kind!r}; from GGUF only none, linear and llama3 factors are supported",
        hint="use the model's mlx-lm directory instead",
    )


def _llama(gguf: GGUF) -> dict[str, Any]:
    return _common_config(gguf) | {"model_type": "llama", "rope_scaling": _rope_scaling(gguf)}


def _qwen2(gguf: GGUF) -> dict[str, Any]:
    return _common_config(gguf) | {"model_type": "qwen2", "rope_scaling": _rope_scaling(gguf)}


def _qwen3(gguf: GGUF) -> dict[str, Any]:
    return _common_config(gguf) | {"model_type": "qwen3", "rope_scaling": _rope_scaling(gguf)}


def _gemma3(gguf: GGUF) -> dict[str, Any]:
    config = _common_config(gguf)
    return config | {
        "model_type": "gemma3_text",
        "rope_scaling": _rope_scaling(gguf),
        "query_pre_attn_scalar": config["head_dim"],
        "sliding_window": int(_number(gguf, "attention.sliding_window")),
        "sliding_window_pattern": _GEMMA_SLIDING_PATTERN,
        "rope_local_base_freq": _number(gguf, "rope.local.freq_base", _GEMMA_LOCAL_ROPE_BASE),
    }


ARCHITECTURES: Mapping[str, Callable[[GGUF], dict[str, Any]]] = {
    "llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gemma3": _gemma3,
}  # fmt: skip


def gguf_config(gguf: GGUF) -> dict[str, Any]:
    """The mlx-lm configuration of the model, as its config.json would say it.

    Raises: ModelError naming the architecture when it is not one of `ARCHITECTURES`.
    """
    if gguf.architecture not in ARCHITECTURES:
        raise ModelError(
            f"{gguf.path.name} has architecture {gguf.architecture!r}; from GGUF the mlx backend reads "
            + ", ".join(ARCHITECTURES),
            hint="use the model's mlx-lm directory instead, or --backend llamacpp",
        )
    if "expert_count" in {key.split(".", 1)[-1] for key in gguf.metadata}:
        raise ModelError(
            f"{gguf.path.name} is a mixture of experts, which the mlx backend does not read from GGUF",
            hint="use the model's mlx-lm directory instead, or --backend llamacpp",
        )
    return ARCHITECTURES[gguf.architecture](gguf)


def _dequantize(tensor: TensorInfo) -> np.ndarray[Any, np.dtype[np.float32]]:
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise MissingPackageError(
            "reading GGUF weights needs the package gguf", hint="pip install 'refract-kv[mlx]'"
        ) from None
    kind = GGMLQuantizationType[tensor.type_name]
    raw = np.memmap(tensor.path, np.uint8, "r", tensor.offset, (tensor.size_bytes,))
    rows = raw.reshape(-1, tensor.size_bytes // max(1, int(np.prod(tensor.shape[:-1]))))
    if tensor.type_name in ("F32", "F16"):
        return (
            raw.view(np.float32 if tensor.type_name == "F32" else np.float16).reshape(tensor.shape).astype(np.float32)
        )
    try:
        values: np.ndarray[Any, np.dtype[np.float32]] = dequantize(rows, kind).reshape(tensor.shape)
    except NotImplementedError:
        raise ModelError(
            f"tensor {tensor.name} is {tensor.type_name}, which the gguf package cannot dequantise",
            hint="requantise the model, for instance to Q8_0",
        ) from None
    return values


def _unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of `weight` back in the half-split RoPE order of the original checkpoint."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _model_name(gguf: GGUF, name: str) -> str | None:
    if name in _TOP:
        return _TOP[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None:
        return None
    names = _LAYER | (_GEMMA_LAYER if gguf.architecture == "gemma3" else {})
    return f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}" if match[2] in names else None


def _weights(gguf: GGUF, config: Mapping[str, Any], dtype: mx.Dtype) -> Iterator[tuple[str, mx.array]]:
    for tensor in gguf.tensors.values():
        name = _model_name(gguf, tensor.name)
        if name is None:
            if tensor.name == "rope_freqs.weight":
                continue
            raise ModelError(
                f"{gguf.path.name}: tensor {tensor.name} has no place in a {gguf.architecture} model",
                hint="use the model's mlx-lm directory instead",
            )
        value = _dequantize(tensor)
        if gguf.architecture == "llama" and ".self_attn.q_proj" in name:
            value = _unpermute(value, config["num_attention_heads"])
        if gguf.architecture == "llama" and ".self_attn.k_proj" in name:
            value = _unpermute(value, config["num_key_value_heads"])
        if gguf.architecture == "gemma3" and "norm" in name:
            value = value - 1.0
        yield name, mx.array(value).astype(dtype)


class _FactoredRoPE(nn.Module):  # type: ignore[misc]  # engines are typed as Any, see pyproject.toml
    """RoPE whose frequencies are divided by stored factors (Llama 3's long-context scaling as GGUF keeps it)."""

    def __init__(self, dims: int, base: float, factors: mx.array) -> None:
        super().__init__()
        self.dims = dims
        self._freqs = base ** (mx.arange(0, dims, 2) / dims) * factors

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        return mx.fast.rope(x, self.dims, traditional=False, base=None, scale=1.0, offset=offset, freqs=self._freqs)


def load_gguf_model(gguf: GGUF, dtype: mx.Dtype) -> tuple[nn.Module, dict[str, Any]]:
    """The mlx-lm model with its weights in `dtype`, and its configuration.

    Raises: ModelError when the architecture is unknown or the tensors are not those the configuration implies.
    """
    from mlx_lm.utils import _get_classes

    config = gguf_config(gguf)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    weights = dict(_weights(gguf, config, dtype))
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)  # also drops the output head of models that tie it to the embedding
    try:
        model.load_weights(list(weights.items()), strict=True)
    except ValueError as error:
        raise ModelError(f"{gguf.path.name}: {error}", hint="the file may be damaged; download it again") from None
    if (factors := gguf.tensors.get("rope_freqs.weight")) is not None:
        values = mx.array(_dequantize(factors))
        for layer in model.layers:
            layer.self_attn.rope = _FactoredRoPE(config["head_dim"], config["rope_theta"], values)
    model.eval()
    mx.eval(model.parameters())
    return model, config
