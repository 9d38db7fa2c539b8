"""Arguments of vLLM's: which a user may give, and which the measurement keeps for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from refract.backends._source import ModelSource
from refract.backends.vllm.engine import _ours
from refract.backends.vllm.installation import OURS, Installation
from refract.engine import LoadSpec
from refract.errors import UsageError
from refract.kv import parse_kv

VLLM = Installation(
    python="python3", version="0.32.0", platform="cpu", arguments=frozenset({*OURS, "dtype", "block_size"})
)


def test_arguments_of_vllms_own() -> None:
    assert VLLM.check(["dtype", "block_size"]) is None  # type: ignore[func-returns-value]


def test_one_it_lacks() -> None:
    with pytest.raises(UsageError, match="has no argument 'blocksize'") as caught:
        VLLM.check(["blocksize"])
    assert caught.value.hint == "did you mean block_size?"


def test_whatever_the_measurement_sets_is_refused() -> None:
    source = ModelSource(
        name="m",
        path=Path("m"),
        files=(),
        architecture="llama",
        layers=2,
        head_dim=64,
        context_length=9,
        weights="bf16",
    )
    ours = _ours(source, LoadSpec(model="m", kv=parse_kv("ctk=f16,ctv=f16"), max_tokens=8), "auto")
    assert ours.keys() <= OURS.keys()
    for name in OURS:
        with pytest.raises(UsageError, match=f"{name} is not for --engine-arg"):
            VLLM.check([name])
