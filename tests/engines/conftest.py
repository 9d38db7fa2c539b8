"""Real engines on real models. A test that cannot run says what is missing; `.ci/run` provides all of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refract.run.cache import cache_folder

if TYPE_CHECKING:
    from tests.engines.sglang_servers import Sessions

MODELS = {
    "smollm2": ("REFRACT_TEST_SMOLLM2", "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3": ("REFRACT_TEST_GEMMA3", "models/gemma3/gemma-3-270m-q4_k_m.gguf"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything here as needing an engine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


def model_file(name: str) -> Path:
    """The model's file, or a skip that says how to get it."""
    variable, place = MODELS[name]
    path = Path(os.environ[variable]) if variable in os.environ else cache_folder() / place
    if not path.is_file():
        missing(f"no {name} model here: run `refract fetch --model {name}` or set {variable}")
    return path


def missing(reason: str) -> None:
    """Skips with the reason, or fails where everything is said to be there (REFRACT_REQUIRE_ENGINES)."""
    if os.environ.get("REFRACT_REQUIRE_ENGINES"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 GGUF."""
    return model_file("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M base, Q4_K_M GGUF: sliding windows, head dimension 256, no chat template."""
    return model_file("gemma3")


@pytest.fixture(scope="session")
def mlx() -> None:
    """MLX on its fast BLAS; skips where MLX is not installed."""
    from refract.backends.mlx.blas import prepare_blas

    prepare_blas()
    if importlib.util.find_spec("mlx") is None:
        missing("MLX is not installed: pip install -e '.[mlx]'")


@pytest.fixture(scope="session")
def llamacpp() -> None:
    """llama.cpp's binaries; skips where there are none."""
    from refract.backends.llamacpp.find import find_binaries
    from refract.errors import SetupError

    try:
        find_binaries(None, cache_folder())
    except SetupError as error:
        missing(f"{error.message}: {error.hint}")


@pytest.fixture(scope="session")
def smollm2_f16(llamacpp: None, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 in F16 weights, on which last-bit changes stay last-bit changes."""
    from refract.backends.llamacpp.find import find_binaries

    quantize = find_binaries(None, cache_folder()).server.with_name("llama-quantize")
    file = tmp_path_factory.mktemp("f16") / "smollm2-f16.gguf"
    command = [str(quantize), "--allow-requantize", str(smollm2), str(file), "F16"]
    subprocess.run(command, check=True, capture_output=True)
    return file


@pytest.fixture(scope="session")
def smollm2_hf(mlx: None, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a Hugging Face folder with the weights of the GGUF file, as vLLM and SGLang read it."""
    from tests.engines.hf_model import write_hf_folder

    return write_hf_folder(smollm2, tmp_path_factory.mktemp("smollm2-hf"))


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has vLLM."""
    found = os.environ.get("REFRACT_TEST_VLLM_PYTHON", "")
    if not found:
        missing("no vLLM here: set REFRACT_TEST_VLLM_PYTHON to the interpreter of an environment that has it")
    return found


@pytest.fixture(scope="session")
def sglang_python() -> Iterator[str]:
    """The interpreter that has SGLang, and an environment in which its servers start on processors."""
    python = os.environ.get("REFRACT_TEST_SGLANG_PYTHON", "")
    if not python:
        missing("no SGLang here: set REFRACT_TEST_SGLANG_PYTHON to the interpreter of an environment that has it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("sglang_site")))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield python


@pytest.fixture(scope="session")
def sglang(sglang_python: str, smollm2_hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Sessions of SmolLM2 by KV type, each with a server of its own that is started when it is first needed."""
    from tests.engines.sglang_servers import sessions

    with sessions(sglang_python, smollm2_hf, tmp_path_factory.mktemp("sglang")) as made:
        yield made
