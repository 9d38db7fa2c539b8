"""vLLM's KV types: which stands for what is asked, where each works, and what it takes.

vLLM has one type for keys and values together. A pair that it does not have under that name is carried out by the
nearest of its own, and the report shows both: requested → effective.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from refract.errors import KVUnsupportedError
from refract.formats import unsupported
from refract.kv import KVConfig

AUTO = "auto"  # the model's own type
_TYPES: Mapping[tuple[str, str], str] = {
    ("f16", "f16"): AUTO,
    ("bf16", "bf16"): "bfloat16",
    ("fp8_e4m3", "fp8_e4m3"): "fp8_e4m3",
    ("fp8_e5m2", "fp8_e5m2"): "fp8_e5m2",
    ("q8_0", "q8_0"): "fp8_e4m3",
    ("fp8_e4m3", "minmax4:g=head"): "turboquant_k8v4",
    ("fp8_e4m3", "turbo4"): "turboquant_k8v4",
    ("q8_0", "turbo4"): "turboquant_k8v4",
    ("turbo4", "minmax4:g=head"): "turboquant_4bit_nc",
    ("turbo4", "turbo4"): "turboquant_4bit_nc",
    ("turbo3", "minmax4:g=head"): "turboquant_k3v4_nc",
    ("turbo3", "turbo4"): "turboquant_k3v4_nc",
    ("turbo3", "minmax3:g=head"): "turboquant_3bit_nc",
    ("turbo3", "turbo3"): "turboquant_3bit_nc",
}
# Bits of keys (8: e4m3, without a norm) and of values, which have a scale and a zero point in fp16 each
_TURBOQUANT: Mapping[str, tuple[int, int]] = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
# On processors vLLM takes every other type without an error and computes garbage (perplexities of 74,000 and more).
_ON_PROCESSORS = (AUTO, "fp8_e4m3", "fp8_e5m2")
_BYTES: Mapping[str, float] = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_NAMES: Mapping[str, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def effective_type(kv: KVConfig) -> str:
    """vLLM's name of the type that carries out `kv`, whatever layers it spares.

    Raises: KVUnsupportedError for what no type of vLLM's stands for.
    """
    if reasons := unsupported(kv, "vllm"):
        raise KVUnsupportedError(f"{kv}: {reasons[0]}", hint="see: refract formats --backend vllm")
    name = _TYPES.get((str(kv.k), str(kv.v)))
    if name is None:
        raise KVUnsupportedError(
            f"{kv}: vLLM keeps keys and values in one type, and none of its types is this pair",
            hint="use one of " + ", ".join(f"ctk={k},ctv={v}" for k, v in _TYPES if k.startswith(("fp8", "turbo"))),
        )
    if set(map(str, kv.boundary_types)) != {"f16"} or kv.boundary[0] != kv.boundary[1]:
        raise KVUnsupportedError(
            f"{kv}: vLLM spares a layer's keys and values together, in the model's own type",
            hint="use boundary=N, without a type",
        )
    return name


def refuse_type(name: str, platform: str) -> None:
    """Nothing, where vLLM has the type on the platform, such as "cpu" or "cuda". Raises: KVUnsupportedError."""
    if platform == "cpu" and name not in _ON_PROCESSORS:
        raise KVUnsupportedError(
            f"vLLM has no {name} on processors: it would be taken without an error and computed as garbage",
            hint="on processors use " + ", ".join(_ON_PROCESSORS[1:]),
        )


def is_plain(name: str) -> bool:
    """Whether a type is one that models compute in, so that nothing is compressed."""
    return name == AUTO or name in _BYTES


def bytes_per_value(name: str, head_dim: int) -> float:
    """Mean bytes of a key's and a value's element as vLLM lays them out; 2 for the model's own type.

    Source: TurboQuantConfig.slot_size_aligned in vLLM 0.32.0.
    """
    if name in _TURBOQUANT:
        key_bits, value_bits = _TURBOQUANT[name]
        key = head_dim if key_bits == 8 else ceil(head_dim * key_bits / 8) + 2
        slot = key + ceil(head_dim * value_bits / 8) + 4
        return (slot + slot % 2) / (2 * head_dim)
    return 1.0 if name.startswith("fp8") else _BYTES.get(name, 2.0)


def reads_cache_in_prefill(name: str, platform: str) -> bool:
    """Whether the pass over a prompt attends to what the cache stores.

    On processors it does. On GPUs TurboQuant's first chunk attends to raw keys and values, and the fp8 kernels differ
    by attention backend; there everything is read token by token.
    """
    return platform == "cpu" or name == AUTO


def short_name(dtype: str) -> str:
    """The catalogue's name of a torch type: "float16" is f16; others keep theirs."""
    return _NAMES.get(dtype, dtype)
