"""The llama.cpp engine passes what every engine must pass, on real binaries and real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from refract.axes.windows import cut_windows
from refract.backends.llamacpp.engine import LlamaCppEngine
from refract.backends.llamacpp.logits_file import scored_start
from refract.data.corpus import load_corpus
from refract.engine import Tokenizer
from refract.kv import KVConfig, parse_kv
from refract.testing import EngineContract
from refract.work import Window


@pytest.mark.usefixtures("llamacpp")
class TestSmolLM2(EngineContract):
    """SmolLM2 with Q4_1 weights under q4_0/q4_0. Forced tokens come from the same steps as free ones."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory: pytest.TempPathFactory) -> LlamaCppEngine:
        """The engine, which finds the binaries that `refract engines build-llamacpp` made."""
        from refract.run.cache import cache_folder

        return LlamaCppEngine(cache_dir=cache_folder())

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, smollm2: Path) -> str:
        """SmolLM2."""
        return str(smollm2)

    @pytest.fixture(scope="class")
    @classmethod
    def refused_kv(cls) -> KVConfig:
        """A format llama.cpp does not have."""
        return parse_kv("ctk=affine4,ctv=f16")

    @pytest.fixture(scope="class")
    @classmethod
    def windows(cls, tokenizer: Tokenizer) -> tuple[Window, ...]:
        """Windows of which llama-perplexity scores all that is asked."""
        cut = cut_windows(load_corpus(None), tokenizer, count=3, size=64)
        return tuple(Window(tokens=window.tokens, start=scored_start(64)) for window in cut)


class TestSmolLM2InF16(TestSmolLM2):
    """The same with F16 weights, whose arithmetic goes through other kernels."""

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, smollm2_f16: Path) -> str:
        """SmolLM2 in F16."""
        return str(smollm2_f16)


class TestGemma3(TestSmolLM2):
    """Gemma 3: two caches, a begin-of-sequence token, head dimension 256, no chat template."""

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, gemma3: Path) -> str:
        """Gemma 3."""
        return str(gemma3)
