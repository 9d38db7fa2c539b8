"""What was allocated is held against what was asked for, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from refract.backends.vllm.allocated import check_settings, effective_kv
from refract.errors import ConfigMismatchError, EngineError
from refract.kv import parse_kv
from refract.work import EffectiveKV

LAYERS, VALUES, HEAD_DIM = 4, 2 * 2 * 64, 64
E4M3 = "ctk=fp8_e4m3,ctv=fp8_e4m3"


def layer(number: int, asked: str = "fp8_e4m3", stored: str = "uint8", width: float = 1.0) -> dict[str, Any]:
    name = f"model.layers.{number}.self_attn.attn"
    return {"name": name, "asked": asked, "stored": stored, "bytes": VALUES * width, "window": None, "backend": "FA"}


def plain(number: int, width: float = 2.0) -> dict[str, Any]:
    return layer(number, "auto", "bfloat16" if width == 2.0 else "float32", width)


def facts(*layers: Mapping[str, Any], ranks: int = 1, **rest: Any) -> dict[str, Any]:
    settings = {"dtype": "bfloat16", "tensor_parallel_size": str(ranks)}
    return {"layers": layers, "prefix_caching": False, "platform": "cuda", "settings": settings, **rest}


def found(text: str, asked: str, said: Mapping[str, Any]) -> EffectiveKV:
    return effective_kv(parse_kv(text), asked, said, layers=LAYERS, values=VALUES, head_dim=HEAD_DIM)


def test_all_layers() -> None:
    kv = found(E4M3, "fp8_e4m3", facts(*map(layer, range(LAYERS))))
    assert (kv.k, kv.v, kv.layers, kv.layers_compressed) == ("fp8_e4m3", "fp8_e4m3", 4, 4)
    assert kv.bytes_per_token == LAYERS * VALUES
    assert kv.notes[0] == f"{E4M3} → fp8_e4m3, stored as uint8"


def test_the_models_own_type_is_named() -> None:
    kv = found("ctk=f16,ctv=f16", "auto", facts(*map(plain, range(LAYERS))))
    assert (kv.k, kv.layers_compressed, kv.bytes_per_token) == ("bf16", 0, 2.0 * LAYERS * VALUES)
    assert kv.notes[0] == "ctk=f16,ctv=f16 → auto, the model's own bf16"


def test_spared_layers_are_counted_and_ranks_summed() -> None:
    layers = [plain(0), layer(1), layer(2), plain(3)]
    halves = [{**each, "bytes": each["bytes"] / 2} for each in layers for _ in range(2)]
    kv = found(f"{E4M3},boundary=1", "fp8_e4m3", facts(*halves, ranks=2))
    assert (kv.layers, kv.layers_compressed, kv.bytes_per_token) == (4, 2, 6.0 * VALUES)
    assert "2 layers keep the model's own bf16" in kv.notes
    assert "2 ranks share the heads; bytes are their sum" in kv.notes


@pytest.mark.parametrize(
    ("text", "asked", "said", "words"),
    [
        (E4M3, "fp8_e4m3", facts(*map(plain, range(4))), "vLLM allocated the model's own type"),
        (E4M3, "fp8_e4m3", facts(*(layer(n, "fp8_e5m2") for n in range(4))), "vLLM allocated fp8_e5m2"),
        ("ctk=f16,ctv=f16", "auto", facts(*map(layer, range(4))), "vLLM allocated fp8_e4m3"),
        (E4M3, "fp8_e4m3", facts(plain(0), *map(layer, range(1, 4))), "spares no layer, vLLM spares layers 0"),
        (E4M3, "fp8_e4m3", facts(*(layer(n, width=2.0) for n in range(4))), "and its types should take 1,024"),
        (E4M3, "fp8_e4m3", facts(*map(layer, range(4)), prefix_caching=True), "keeps prefixes"),
    ],
)
def test_anything_else_than_asked_is_a_mismatch(text: str, asked: str, said: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigMismatchError, match=words):
        found(text, asked, said)


def test_no_cache_at_all() -> None:
    with pytest.raises(EngineError, match="no layer that keeps a KV cache"):
        found(E4M3, "fp8_e4m3", facts())


MADE = {"max_num_seqs": "1", "enforce_eager": "true", "dtype": "float16"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_num_seqs": "1", "enforce_eager": "true", "dtype": "float16"},
        {"dtype": "half"},
        {"dtype": "auto", "enforce_eager": "True", "block_size": "16"},
    ],
)
def test_settings_that_vllm_took(given: Mapping[str, str]) -> None:
    assert check_settings(given, MADE) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(("name", "value"), [("max_num_seqs", "8"), ("enforce_eager", "false"), ("dtype", "float")])
def test_a_setting_that_vllm_changed_is_a_mismatch(name: str, value: str) -> None:
    with pytest.raises(ConfigMismatchError, match=f"asked for {name}={value}, vLLM runs with {MADE[name]}"):
        check_settings({name: value}, MADE)
