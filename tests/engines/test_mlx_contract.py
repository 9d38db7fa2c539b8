"""The MLX engine passes what every engine must pass, on a real model, with no tolerance for batching."""

from __future__ import annotations

from pathlib import Path

import pytest

from refract.backends.mlx.engine import MLXEngine
from refract.kv import KVConfig, parse_kv
from refract.testing import EngineContract


@pytest.mark.usefixtures("mlx")
class TestMLXContract(EngineContract):
    """SmolLM2 from GGUF under turbo3/turbo3."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory: pytest.TempPathFactory) -> MLXEngine:
        """The engine, with a cache folder of its own."""
        return MLXEngine(cache_dir=Path(tmp_path_factory.mktemp("cache")))

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, smollm2: Path) -> str:
        """SmolLM2."""
        return str(smollm2)

    @pytest.fixture(scope="class")
    @classmethod
    def lossy_kv(cls) -> KVConfig:
        """Both sides compressed."""
        return parse_kv("ctk=turbo3,ctv=turbo3")

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        """Every layer a boundary layer: nothing would be compressed."""
        return parse_kv("ctk=q8_0,ctv=turbo3,boundary=15")
