"""The SGLang engine passes what every engine must pass, on real servers that it starts itself, on processors."""

from __future__ import annotations

import pytest

from refract.engine import Engine, LoadSpec, Session
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.testing import EngineContract
from tests.engines.sglang_servers import Sessions


class TestSmolLM2(EngineContract):
    """SmolLM2 in float32 under e4m3. Forced tokens come from other kernels than free ones."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, sglang: Sessions) -> Engine:
        """The engine that starts the servers."""
        return sglang.engine

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, sglang: Sessions) -> str:
        """SmolLM2 as a model folder."""
        return str(sglang.model)

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_kv(cls) -> KVConfig:
        """e4m3 on both sides."""
        return parse_kv("ctk=fp8_e4m3,ctv=fp8_e4m3")

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        """Keys and values of two types."""
        return parse_kv("ctk=fp8_e4m3,ctv=f16")

    @pytest.fixture(scope="class")
    @classmethod
    def blobs(cls, sglang: Sessions) -> BlobFolder:
        """Where the sessions keep their bases."""
        return sglang.blobs

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, sglang: Sessions, reference_spec: LoadSpec) -> Session:
        """The session of the uncompressed cache."""
        return sglang("f16")

    @pytest.fixture(scope="class")
    @classmethod
    def lossy(cls, sglang: Sessions, lossy_spec: LoadSpec) -> Session:
        """The session of e4m3."""
        return sglang("fp8_e4m3")
