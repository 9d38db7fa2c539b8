"""The fake engine passes the contract that every engine must pass."""

from __future__ import annotations

import pytest

from refract.kv import KVConfig, parse_kv
from refract.testing import EngineContract, FakeEngine


class TestFakeEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> FakeEngine:
        return FakeEngine()

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> str:
        return "any"

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        return parse_kv("ctk=fp8_e5m2,ctv=f16")
