"""vLLM in a process of its own passes what every engine must pass, on processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from refract.backends.vllm.engine import VLLMEngine
from refract.engine import Engine
from refract.kv import KVConfig, parse_kv
from refract.testing import EngineContract


class TestSmolLM2(EngineContract):
    """SmolLM2 in float32 under e4m3. One sequence at a time: no answer depends on another."""

    forced_tolerance_nats = 1e-5

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
        """vLLM by the interpreter that has it."""
        return VLLMEngine({"python": vllm_python}, tmp_path_factory.mktemp("cache"))

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, smollm2_hf: Path) -> str:
        """SmolLM2 as a model folder."""
        return str(smollm2_hf)

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_kv(cls) -> KVConfig:
        """e4m3 on both sides."""
        return parse_kv("ctk=fp8_e4m3,ctv=fp8_e4m3")

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        """What vLLM would take on processors without an error, and compute garbage."""
        return parse_kv("ctk=fp8_e4m3,ctv=minmax4:g=head,boundary=2")
