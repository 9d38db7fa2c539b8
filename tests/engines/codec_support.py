"""What the tests of the MLX codecs share: making a codec, test vectors, and errors against an oracle."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from refract.errors import KVUnsupportedError
from refract.kv import parse_kv

ORACLES = Path(__file__).parents[1] / "oracles"
DIMS = [64, 80, 96, 128, 256]
Array = npt.NDArray[np.float32]
Errors = npt.NDArray[np.float64]


@lru_cache
def oracle(name: str) -> Any:
    """The oracle file's content."""
    return json.loads((ORACLES / f"{name}.json").read_text())


def codec(name: str, dim: int, rot: str = "auto", seed: int = 0) -> Any:
    from refract.backends.mlx.codecs import make_codec

    return make_codec(parse_kv(f"ctk={name},ctv=f16").k, dim, rot=rot, seed=seed)


def fits(name: str, dim: int) -> bool:
    """Whether the format takes vectors of `dim`."""
    try:
        codec(name, dim)
    except KVUnsupportedError:
        return False
    return True


def roundtrip(name: str, x: Array, rot: str = "auto", seed: int = 0) -> Array:
    import mlx.core as mx

    return np.array(codec(name, x.shape[-1], rot, seed).roundtrip(mx.array(x)))


@lru_cache(maxsize=8)
def gaussian(vectors: int, dim: int, seed: int = 1) -> Array:
    """Standard normal vectors; shared, so copied before they are changed."""
    x = np.random.default_rng(seed).standard_normal((vectors, dim)).astype(np.float32)
    x.flags.writeable = False
    return x


def relative_errors(name: str, x: Array, rot: str = "auto", seed: int = 0) -> Errors:
    """Every vector's squared error over its squared norm."""
    error = (roundtrip(name, x, rot, seed).astype(np.float64) - x) ** 2
    return error.sum(axis=1) / (x.astype(np.float64) ** 2).sum(axis=1)


def squared_errors(name: str, x: Array) -> Errors:
    """Every vector's mean squared error a value."""
    return ((roundtrip(name, x).astype(np.float64) - x) ** 2).mean(axis=1)


def assert_mean(found: Errors, expected: float, error: float = 0.0) -> None:
    """The mean is the expected one within four standard errors, the oracle's included."""
    margin = 4 * np.hypot(error, found.std() / np.sqrt(len(found)))
    print(f"mean {found.mean():.6g}, expected {expected:.6g} within {margin:.2g}")
    assert found.mean() == pytest.approx(expected, abs=margin)
