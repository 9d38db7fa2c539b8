"""A GGUF model as a Hugging Face directory: what vLLM and SGLang read, with the very weights the other engines run.

Weights are written in float32, so that nothing is rounded on the way: the three engines and transformers then compute
the same model, and their numbers can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from refract.backends._gguf import GGUF, read_gguf
from refract.backends._gguf_tokenizer import TokenizerFacts, tokenizer_facts, tokenizer_json

_NO_CONFIG = ("sliding_window_pattern",)


def write_hf_folder(path: Path, folder: Path) -> Path:
    """`folder`, holding the llama model of the GGUF file at `path`: configuration, float32 weights and tokenizer."""
    gguf = read_gguf(path)
    facts = tokenizer_facts(gguf)
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(gguf, facts)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": list(facts.eos_ids)})
    (folder / "tokenizer.json").write_text(tokenizer_json(gguf), "utf-8")
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(facts, config["max_position_embeddings"]))
    _write_safetensors(folder / "model.safetensors", dict(_weights(gguf, config)))
    return folder


def _config(gguf: GGUF, facts: TokenizerFacts) -> dict[str, Any]:
    from refract.backends.mlx.gguf_model import gguf_config

    if gguf.architecture != "llama":
        raise ValueError(f"only llama models are exported, {gguf.path.name} is {gguf.architecture}")
    common = {key: value for key, value in gguf_config(gguf).items() if key not in _NO_CONFIG}
    return common | {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": gguf.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(facts.eos_ids),
    }


def _tokenizer_config(facts: TokenizerFacts, longest: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": facts.bos,
        "eos_token": facts.eos,
        "add_bos_token": bool(facts.prefix),
        "chat_template": facts.template,
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    }


def _weights(gguf: GGUF, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.float32]]]]:
    from refract.backends.mlx.gguf_model import _dequantize, _model_name, _unpermute

    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for tensor in gguf.tensors.values():
        name = _model_name(gguf, tensor.name)
        if name is None:
            raise ValueError(f"{tensor.name} has no place in a llama model")
        value = _dequantize(tensor)
        projection = name.split(".")[-2]
        yield name, _unpermute(value, heads[projection]) if projection in heads else value


def _write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
    """Layout: 8 bytes little-endian length, JSON header, data (README of the safetensors repository)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [start, start + value.nbytes]}
        start += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value, np.float32).tobytes())


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), "utf-8")
