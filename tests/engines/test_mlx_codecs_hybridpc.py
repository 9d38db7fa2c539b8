"""Half polar, half plain: each half errs as its own codec does, and what is stored is what is counted."""

from __future__ import annotations

import numpy as np
import pytest
from codec_support import DIMS, codec, gaussian, relative_errors

from refract.errors import KVSyntaxError
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", ["hybridpc", "hybridpc:ratio=0.3:bits=3", "hybridpc:ratio=0.99"])
def test_bits_are_those_of_what_is_stored(name: str, dim: int) -> None:
    import mlx.core as mx

    own = codec(name, dim).codec
    stored = parse_kv(f"ctk={name},ctv=f16").k.bits_per_value(dim)
    assert own.bits_per_value == pytest.approx(stored)
    parts = own.encode(mx.array(gaussian(3, dim)))
    halves = sum(part.shape[-1] for part in parts if part.dtype == mx.float16)
    assert halves == own.split // 16 + (own.split < dim)


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_error_is_the_weighted_one_of_both(dim: int) -> None:
    x = gaussian(6_000, dim)
    found, split = relative_errors("hybridpc", x).mean(), codec("hybridpc", dim).codec.split
    polar, plain = (relative_errors(name, x).mean() for name in ("polar", "turbo4"))
    expected = (split * polar + (dim - split) * plain) / dim
    print(f"{dim}: {found:.5f}, expected {expected:.5f} with {split} polar coordinates")
    assert found == pytest.approx(expected, rel=0.02)
    assert plain < found < polar


def test_all_polar_is_polar() -> None:
    x = gaussian(50, 64)
    assert np.allclose(relative_errors("hybridpc:ratio=0.99", x), relative_errors("polar", x), atol=1e-6)


def test_more_bits_than_there_are_codebooks_for() -> None:
    with pytest.raises(KVSyntaxError, match="bits=8 is more than 7"):
        parse_kv("ctk=hybridpc:bits=8,ctv=f16")


def test_zero_and_nan() -> None:
    import mlx.core as mx

    x = gaussian(3, 64).copy()
    x[0], x[1, 5] = 0.0, np.nan
    found = np.array(codec("hybridpc", 64).roundtrip(mx.array(x)))
    assert not found[0].any()
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[2]).all()
