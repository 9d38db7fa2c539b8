"""Models read from GGUF against transformers in float32, whose top-20 log-probabilities are recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from refract.backends._gguf import GGUF, read_gguf
from refract.backends._logits import list_top
from refract.errors import ModelError

pytestmark = pytest.mark.usefixtures("mlx")
FIXTURES = Path(__file__).parent / "fixtures"


def check(model_path: Path, fixture: str, *, mean_tolerance: float, most: float) -> None:
    """Top-20 log-probabilities at every position equal the recorded ones, and KL over them is as small."""
    import mlx.core as mx

    from refract.backends.mlx.gguf_model import load_gguf_model

    recorded = np.load(FIXTURES / fixture)
    model, _ = load_gguf_model(read_gguf(model_path), mx.float32)
    logits = np.array(model(mx.array(recorded["tokens"][None]))[0])
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    ours = np.take_along_axis(logprobs, recorded["ids"], axis=1)
    difference = np.abs(ours - recorded["logprobs"])
    print(f"{fixture}: mean |Δ log p| {difference.mean():.2e}, largest {difference.max():.2e}")
    assert difference.mean() < mean_tolerance
    assert difference.max() < most
    assert (list_top(logits, 1).ids[:, 0] == recorded["ids"][:, 0]).mean() > 0.99


def test_smollm2_equals_transformers(smollm2: Path) -> None:
    check(smollm2, "smollm2_transformers-5.24.0_torch-2.13.0_float32.npz", mean_tolerance=1e-4, most=1e-3)


def test_gemma3_equals_transformers(gemma3: Path) -> None:
    check(gemma3, "gemma3_transformers-5.24.0_torch-2.13.0_float32.npz", mean_tolerance=5e-3, most=0.2)


def test_an_unsupported_architecture_is_named(smollm2: Path) -> None:
    from refract.backends.mlx.gguf_model import gguf_config

    gguf = GGUF(path=smollm2, metadata={"general.architecture": "mamba"}, tensors={})
    with pytest.raises(ModelError, match=r"'mamba'.*llama, qwen2, qwen3, gemma3"):
        gguf_config(gguf)


def test_llama3_frequency_factors_slow_the_rotation() -> None:
    """A factor of 1 is plain RoPE; a factor f turns pair i as a position f times smaller would."""
    import mlx.core as mx

    from refract.backends.mlx.gguf_model import _FactoredRoPE

    x = mx.array(np.random.default_rng(0).standard_normal((1, 1, 4, 8)).astype(np.float32))
    plain = mx.fast.rope(x, 8, traditional=False, base=10_000.0, scale=1.0, offset=0)
    assert mx.allclose(_FactoredRoPE(8, 10_000.0, mx.ones(4))(x), plain, atol=1e-5)
    half = mx.fast.rope(x, 8, traditional=False, base=10_000.0, scale=0.5, offset=0)
    assert mx.allclose(_FactoredRoPE(8, 10_000.0, mx.full(4, 2.0))(x), half, atol=1e-5)
