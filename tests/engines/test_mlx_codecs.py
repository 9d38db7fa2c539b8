"""What every codec owes, and the inputs that break quantisers; each family's oracles are in a file of their own."""

from __future__ import annotations

import numpy as np
import pytest
from codec_support import DIMS, codec, fits, gaussian, roundtrip

from refract.errors import KVUnsupportedError
from refract.formats import BUILT
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
VARIANTS = [
    *(name for name in BUILT["mlx"] if not name.startswith("nuq")),  # by default it codes tokens together
    *(f"nuq{bits}:axis=token" for bits in (2, 3, 4)),
    "nuq3:axis=token:outliers=0.02",
    *(f"turbo{bits}:scale={scale}" for bits in (1, 4, 8) for scale in ("none", "eden", "ls")),
    "turbo4:codebook=legacy4",
    "turbo6:codebook=sphere",
    "affine4:g=32",
    "fp8_e4m3:scale=head",
    "fp8_e5m2:scale=head",
    "minmax4:g=head",
    "minmax2:g=64",
    "rfsn5:g=64",
    "polar:bits=5-3-3-3",
    "polar:levels=2:bits=8-5",
    "polar:angles=uniform",
]


@pytest.mark.parametrize("name", VARIANTS)
def test_name_and_bits_per_value_are_those_of_the_catalogue(name: str) -> None:
    stored = parse_kv(f"ctk={name},ctv=f16").k
    for dim in (64, 128):
        assert codec(name, dim).name == str(stored)
        assert codec(name, dim).bits_per_value == stored.bits_per_value(dim)


def test_every_built_format_has_a_codec_and_no_other() -> None:
    from refract.backends.mlx.codecs import CODECS

    assert set(CODECS) == set(BUILT["mlx"])


@pytest.mark.parametrize("name", VARIANTS)
def test_zero_stays_zero_and_a_vector_minds_no_other(name: str) -> None:
    x = gaussian(64, 64).copy()
    alone = roundtrip(name, x[:1])
    x[1] = 0
    together = roundtrip(name, x)
    assert not together[1].any()
    assert np.allclose(together[0], alone[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_reading_back_is_decoding_what_was_encoded_in_shape_and_dtype(name: str, dtype: str) -> None:
    import mlx.core as mx

    x = mx.array(gaussian(12, 64)).reshape(1, 2, 6, 64).astype(getattr(mx, dtype))
    stored = codec(name, 64)
    out = stored.roundtrip(x)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert mx.array_equal(stored.decode(*stored.encode(x)).astype(x.dtype), out)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", VARIANTS)
def test_extreme_vectors_stay_finite_and_lose_no_more_than_themselves(name: str, dim: int) -> None:
    """One spike, a constant, norms of 1e4 and 1e-8, the least half: never a worse reading than zero."""
    if not fits(name, dim):
        with pytest.raises(KVUnsupportedError, match=str(dim)):
            codec(name, dim)
        return
    x = gaussian(6, dim).copy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x[0] = 0
    x[0, 7] = 50.0
    x[1] = -3.0
    x[2] *= 1e4
    x[3] *= 1e-8
    x[4] = 0
    x[4, 9] = 1e4
    x[5] = 6e-8
    out = roundtrip(name, x).astype(np.float64)
    assert np.isfinite(out).all()
    error = np.linalg.norm(out - x, axis=1)
    assert (error <= np.linalg.norm(x.astype(np.float64), axis=1) * 1.001).all(), error


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible_in_its_vector_alone(name: str, broken: float, dim: int) -> None:
    if not fits(name, dim):
        with pytest.raises(KVUnsupportedError, match=str(dim)):
            codec(name, dim)
        return
    x = gaussian(3, dim).copy()
    x[1, 4] = broken
    out = roundtrip(name, x)
    assert not np.isfinite(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.parametrize(("name", "dim"), [("q8_0", 80), ("iq4_nl", 80), ("affine8", 96), ("minmax4:g=64", 96)])
def test_groups_that_do_not_divide_the_head_are_refused(name: str, dim: int) -> None:
    with pytest.raises(KVUnsupportedError, match=f"head dimension {dim} is not a multiple"):
        codec(name, dim)


def test_layers_boundaries_and_their_types_are_one_codec_a_layer_and_side() -> None:
    from refract.backends.mlx.codecs import layer_codecs

    kv = parse_kv("ctk=f32,ctv=turbo3,layers=0-4,boundary_v=2:type=q8_0")
    keys, values = zip(*layer_codecs(kv, 64, 8), strict=True)
    assert [k.name for k in keys] == ["f32"] * 8
    assert [v.name for v in values] == ["q8_0", "q8_0", "turbo3", "turbo3", "turbo3", "f16", "f16", "f16"]
    with pytest.raises(KVUnsupportedError, match="layers=last8 cannot act"):
        layer_codecs(parse_kv("ctk=q8_0,ctv=q8_0,layers=last8"), 64, 8)
