"""vLLM's types: which stands for what, where, and what it takes."""

from __future__ import annotations

import pytest

from refract.backends.vllm.kvtypes import (
    bytes_per_value,
    effective_type,
    is_plain,
    reads_cache_in_prefill,
    refuse_type,
    short_name,
)
from refract.errors import KVUnsupportedError
from refract.kv import parse_kv


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ctk=f16,ctv=f16", "auto"),
        ("ctk=bf16,ctv=bf16", "bfloat16"),
        ("ctk=fp8_e4m3,ctv=fp8_e4m3", "fp8_e4m3"),
        ("ctk=fp8_e5m2,ctv=fp8_e5m2,layers=0-3", "fp8_e5m2"),
        ("ctk=q8_0,ctv=q8_0", "fp8_e4m3"),
        ("vllm:k8v4", "turboquant_k8v4"),
        ("ctk=q8_0,ctv=turbo4,boundary=2", "turboquant_k8v4"),
        ("vllm:4bit_nc", "turboquant_4bit_nc"),
        ("ctk=turbo4,ctv=turbo4", "turboquant_4bit_nc"),
        ("ctk=turbo3,ctv=minmax4:g=head", "turboquant_k3v4_nc"),
        ("ctk=turbo3,ctv=turbo3", "turboquant_3bit_nc"),
    ],
)
def test_each_pair_has_the_type_that_carries_it_out(text: str, name: str) -> None:
    assert effective_type(parse_kv(text)) == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ctk=fp8_e4m3,ctv=f16", "none of its types is this pair"),
        ("ctk=turbo4,ctv=turbo3", "none of its types is this pair"),
        ("ctk=affine4,ctv=affine4", "affine4 does not exist on vllm"),
        ("ctk=fp8_e4m3,ctv=fp8_e4m3,rot=haar", "rot=haar does not exist on vllm"),
        ("ctk=fp8_e4m3,ctv=fp8_e4m3,boundary_k=2", "keys and values together"),
        ("ctk=fp8_e4m3,ctv=fp8_e4m3,boundary=2:type=q8_0", "boundary=2:type=q8_0 does not exist on vllm"),
    ],
)
def test_what_no_type_stands_for_is_refused(text: str, said: str) -> None:
    with pytest.raises(KVUnsupportedError, match=said):
        effective_type(parse_kv(text))


def test_processors_have_two_types_and_the_models_own() -> None:
    for name in ("auto", "fp8_e4m3", "fp8_e5m2"):
        refuse_type(name, "cpu")
    for name in ("float16", "bfloat16", "turboquant_k8v4"):
        refuse_type(name, "cuda")
        with pytest.raises(KVUnsupportedError, match=f"no {name} on processors"):
            refuse_type(name, "cpu")


@pytest.mark.parametrize(
    ("name", "head_dim", "slot"),
    [
        ("turboquant_k8v4", 128, 128 + 64 + 4),
        ("turboquant_4bit_nc", 128, 64 + 2 + 64 + 4),
        ("turboquant_k3v4_nc", 128, 48 + 2 + 64 + 4),
        ("turboquant_3bit_nc", 128, 48 + 2 + 48 + 4),
        ("turboquant_3bit_nc", 72, 27 + 2 + 27 + 4),
        ("turboquant_k3v4_nc", 72, 27 + 2 + 36 + 4 + 1),  # rounded up to an even number
    ],
)
def test_bytes_by_hand(name: str, head_dim: int, slot: int) -> None:
    """Of a key and a value together, worked out from the layout."""
    assert bytes_per_value(name, head_dim) * 2 * head_dim == slot


def test_bytes_of_types_of_one_width() -> None:
    assert [bytes_per_value(name, 64) for name in ("fp8_e4m3", "fp8", "auto", "bfloat16", "float32")] == [1, 1, 2, 2, 4]


def test_names_and_paths() -> None:
    assert is_plain("auto")
    assert is_plain("bfloat16")
    assert not is_plain("fp8_e4m3")
    assert (short_name("bfloat16"), short_name("uint8")) == ("bf16", "uint8")
    assert reads_cache_in_prefill("fp8_e4m3", "cpu")
    assert reads_cache_in_prefill("auto", "cuda")
    assert not reads_cache_in_prefill("turboquant_k8v4", "cuda")  # its first chunk attends to raw keys and values
