"""Codecs of groups of tokens and uneven levels: KIVI's keys and KVQuant's codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codec_support import DIMS, Array, codec, gaussian, oracle, roundtrip

from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
BITS = (2, 3, 4)
GROUPED = [
    *(f"minmax{bits}:axis=channel" for bits in (2, 3, 4, 8)),
    "minmax2:axis=channel:g=64",
    *(f"nuq{bits}" for bits in BITS),
    "nuq3:outliers=0.01",
    "nuq3:outliers=0.05",
]
BY_TOKEN = [*(f"nuq{bits}:axis=token" for bits in BITS), "nuq3:axis=token:outliers=0.01"]


def read(name: str, x: Array) -> Array:
    """What is read of tokens (n, D)."""
    return roundtrip(name, x)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", [*GROUPED, *BY_TOKEN])
def test_bits_and_names_are_the_catalogues_and_what_is_packed(name: str, dim: int) -> None:
    import mlx.core as mx

    from refract.backends.mlx.packing import pack, unpack

    stored, own = codec(name, dim), parse_kv(f"ctk={name},ctv=f16").k
    assert (stored.name, stored.bits_per_value) == (str(own), own.bits_per_value(dim))
    parts = stored.encode(mx.array(gaussian(256, dim)).reshape(1, 1, 256, dim))
    packed = pack(stored, parts)
    assert sum(part.nbytes for part in packed) * 8 == stored.bits_per_value * 256 * dim
    again = unpack(stored, packed, tuple(part.shape[3:] for part in parts))
    assert all(mx.array_equal(one, other) for one, other in zip(again, parts, strict=True))


@pytest.mark.parametrize("bits", [2, 4])
def test_a_channel_of_gaussian_tokens_errs_as_a_group_of_channels_does(bits: int) -> None:
    """Groups of 32 of N(0, 1), whichever way they lie."""
    x = gaussian(32 * 400, 64)
    errors = ((read(f"minmax{bits}:axis=channel", x) - x).reshape(400, 32, 64) ** 2).mean(axis=(1, 2))
    expected, error = oracle("reference_values")["quantiser_mse_N01"][f"minmax_g32_b{bits}(KIVI)"]
    assert errors.mean() == pytest.approx(expected, abs=4 * float(np.hypot(error, errors.std() / 20)))


@pytest.mark.parametrize("bits", BITS)
def test_uneven_levels_of_gaussian_values_err_as_lloyd_max_does(bits: int) -> None:
    """m and s are those of 128 values, which moves the error by less than 3 %."""
    expected = float(oracle("lloyd_max_normal")[str(bits)]["mse"])
    for name in (f"nuq{bits}", f"nuq{bits}:axis=token"):
        x = gaussian(128 * 100, 128)
        assert ((read(name, x) - x) ** 2).mean() == pytest.approx(expected, rel=0.03)


def test_by_hand() -> None:
    """One channel of 0, 1, 2, 10 four times over: steps of 10/3 at 2 bits."""
    x = np.tile(np.float32([0, 1, 2, 10]), 8)[:, None] * np.ones((1, 4), np.float32)
    step = float(np.float16(10 / 3))
    assert np.allclose(read("minmax2:axis=channel", x)[:4, 0], [0, 0, step, 3 * step])


@pytest.mark.parametrize("name", ["minmax4:axis=channel", "nuq4"])
def test_a_large_channel_costs_the_others_nothing(name: str) -> None:
    x = gaussian(256, 64).copy()
    x[:, 5] = 300 + 20 * x[:, 5]
    plain = read(name.replace(":axis=channel", "").replace("nuq4", "nuq4:axis=token"), x)
    found = read(name, x)
    others = np.arange(64) != 5
    assert ((found - x)[:, others] ** 2).mean() < 0.02
    assert ((plain - x)[:, others] ** 2).mean() > 10 * ((found - x)[:, others] ** 2).mean()


def test_outliers_come_back_and_no_longer_widen_the_rest() -> None:
    x = gaussian(128, 64).copy()
    x[7, :] = 40.0
    without, kept = read("nuq3", x), read("nuq3:outliers=0.01", x)
    assert (kept[7] == 40.0).all()
    rest = np.arange(128) != 7
    assert ((kept - x)[rest] ** 2).mean() < 0.05 < 4 * ((without - x)[rest] ** 2).mean()
    token = gaussian(4, 64).copy()
    token[:, 9] = -50.0
    assert (read("nuq3:axis=token:outliers=0.01", token)[:, 9] == -50.0).all()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", [*GROUPED, *BY_TOKEN])
def test_awkward_groups(name: str, dim: int) -> None:
    """Zero, constant, one spike, large and tiny; a group minds no other."""
    size = 128
    x = gaussian(6 * size, dim).copy().reshape(6, size, dim)
    x[0] = 0
    x[1] = -3
    x[2] = 0
    x[2, 3, 4] = 1e4
    x[3] *= 1e4 / np.sqrt(dim)
    x[4] *= 1e-8 / np.sqrt(dim)
    out = read(name, x.reshape(-1, dim)).reshape(x.shape)
    assert not out[0].any()
    assert (out[1] == -3).all()
    assert np.isfinite(out).all()
    error, norm = (np.linalg.norm(y.reshape(6, -1).astype(np.float64), axis=1) for y in (out - x, x))
    assert (error <= 1.001 * norm).all()
    assert np.array_equal(read(name, x[5]), out[5])


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible_in_its_channel_of_its_group(name: str, broken: float) -> None:
    x = gaussian(256, 64).copy()
    x[3, 7] = broken
    out = read(name, x)
    assert not np.isfinite(out[:128, 7]).all()
    out[:128, 7] = 0
    assert np.isfinite(out).all()


@pytest.mark.parametrize("kv", ["ctk=minmax2:axis=channel,ctv=minmax2,residual=40", "kvquant3", "ctk=nuq2,ctv=nuq3"])
def test_caches_code_whole_groups_and_keep_the_rest(kv: str) -> None:
    import mlx.core as mx

    from refract.backends.mlx.cache import RowCache, Rows, SequenceCache
    from refract.backends.mlx.load import layer_specs
    from tests.engines.tiny_model import tiny_llama

    own = layer_specs(parse_kv(kv), 64, [None] * 3, tiny_llama().layers)[0]
    rng = np.random.default_rng(3)
    keys, values = (mx.array(rng.standard_normal((1, 2, 330, 64)).astype(np.float32)) for _ in "kv")
    alone, rows = SequenceCache(own), Rows(2)
    batch = RowCache(own, rows)
    alone.update_and_fetch(keys[:, :, :250], values[:, :, :250])
    for row in range(2):
        batch.insert(row, alone)
    rows.lengths[:] = [250, 250]
    read: Any = None
    for at in range(250, 330):
        rows.refresh()
        new = keys[:, :, at : at + 1], values[:, :, at : at + 1]
        read = alone.update_and_fetch(*new)
        together = batch.update_and_fetch(*(mx.repeat(x, 2, axis=0) for x in new))
        rows.advance([0, 1])
    for one, both in zip(read, together, strict=True):
        assert np.allclose(np.array(both)[1, :, :330], np.array(one)[0], atol=1e-5)
    sink, group, kept = own.retention.sink, own.sides[0].group, own.retention.residual
    coded = sink + (330 - kept - sink) // group * group
    error = np.abs(np.array(read[0]) - np.array(keys)).max(axis=(0, 1, 3))
    assert error[:sink].max(initial=0) < 2e-3
    assert error[sink:coded].min() > 1e-2
    assert error[coded:].max() < 2e-3
