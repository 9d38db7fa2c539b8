"""Rotations: what they preserve, what they mix, when they are refused, and codecs behind them."""

from __future__ import annotations

import numpy as np
import pytest
from codec_support import DIMS, assert_mean, codec, gaussian, oracle, relative_errors, roundtrip

from refract.errors import KVUnsupportedError
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
KINDS = ["wht", "wht64", "haar", "iso", "iso_fast", "rotor"]
FITTING = [
    (kind, dim)
    for kind in KINDS
    for dim in DIMS
    if not (kind == "wht" and dim in (80, 96)) and not (kind == "wht64" and dim % 64)
]


def matrix(kind: str, dim: int, seed: int = 0) -> np.ndarray:
    from refract.backends.mlx.codecs.rotations import rotation

    return np.array(rotation(dim, seed, kind)).astype(np.float64)


@pytest.mark.parametrize(("kind", "dim"), [*FITTING, *(("auto", dim) for dim in DIMS)])
def test_rotations_are_orthogonal_and_depend_on_the_seed(kind: str, dim: int) -> None:
    found = matrix(kind, dim)
    assert found @ found.T == pytest.approx(np.eye(dim), abs=2e-6)
    assert not np.allclose(found, matrix(kind, dim, seed=1))


def test_hadamard_of_one_to_eight_is_the_published_vector() -> None:
    from refract.backends.mlx.codecs.rotations import hadamard

    found = hadamard(8) @ np.arange(1, 9) / np.sqrt(8)
    assert found == pytest.approx([12.72792206, -1.41421356, -2.82842712, 0, -5.65685425, 0, 0, 0], abs=1e-8)


@pytest.mark.parametrize(("kind", "block"), [("wht64", 64), ("iso", 4), ("iso_fast", 4), ("rotor", 3)])
def test_blocks_mix_within_themselves_only(kind: str, block: int) -> None:
    place = np.arange(128) // block
    outside = place[:, None] != place
    found = matrix(kind, 128)
    assert not found[outside].any()
    assert (np.abs(found[~outside]) > 0).mean() > 0.9


def test_what_does_not_fill_a_block_of_three_stays() -> None:
    found = matrix("rotor", 128)
    assert np.array_equal(found[126:, 126:], np.eye(2))
    assert np.linalg.det(found[:3, :3]) == pytest.approx(1)


def test_auto_is_wht_for_powers_of_two_and_haar_elsewhere() -> None:
    assert np.array_equal(matrix("auto", 128), matrix("wht", 128))
    assert np.array_equal(matrix("auto", 80), matrix("haar", 80))


def test_a_spike_is_spread_by_dense_rotations_only() -> None:
    spike = np.eye(128)[5]
    peak = {kind: np.abs(matrix(kind, 128) @ spike).max() for kind in KINDS}
    assert peak["wht"] == pytest.approx(128**-0.5, rel=1e-5)
    assert peak["wht64"] == pytest.approx(1 / 8, rel=1e-5)
    assert peak["haar"] < 0.4
    assert min(peak["iso"], peak["iso_fast"], peak["rotor"]) > 0.4


@pytest.mark.parametrize(
    ("kind", "dim", "needs"),
    [("wht", 80, "a power of two"), ("wht", 96, "a power of two"), ("wht64", 96, "a multiple of 64"), ("iso", 66, "4")],
)
def test_head_dimensions_that_do_not_fit_are_refused(kind: str, dim: int, needs: str) -> None:
    with pytest.raises(KVUnsupportedError, match=f"rot={kind} needs a head dimension that is .*{needs}") as caught:
        codec("turbo4", dim, rot=kind)
    assert "haar" in caught.value.hint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["turbo4:scale=none", "q8_0", "affine4", "minmax4", "rfsn4", "iq4_nl"])
def test_isotropic_data_mind_no_rotation(name: str, kind: str) -> None:
    x = gaussian(4_000, 128)
    plain = relative_errors(name, x, rot="none").mean()
    assert relative_errors(name, x, rot=kind).mean() == pytest.approx(plain, rel=0.03)
    assert not np.array_equal(roundtrip(name, x[:9], rot=kind), roundtrip(name, x[:9], rot="none"))


def test_a_rotation_helps_where_one_value_stands_out() -> None:
    """q8_0 on outlier vectors, 1.33e-4 against 1.78e-5."""
    x = gaussian(4_000, 128).copy()
    x[np.arange(4_000), np.random.default_rng(0).integers(0, 128, 4_000)] = 50
    plain, dense, local = (relative_errors("q8_0", x, rot=kind).mean() for kind in ("none", "wht", "iso"))
    print(f"q8_0 on outliers: none {plain:.3g}, wht {dense:.3g}, iso {local:.3g}")
    assert dense < 0.35 * plain
    assert local > 2 * dense


@pytest.mark.parametrize("dim", DIMS)
def test_turbo_behind_another_rotation_has_its_oracles_error(dim: int) -> None:
    found = relative_errors("turbo3:scale=none", gaussian(4_000, dim), rot="haar", seed=3)
    assert_mean(found, oracle("lloyd_max_sphere")[f"{dim}_3"]["D_with_normal_codebook"], 2e-9)


def test_the_configuration_sets_rotations_and_seed_by_side_and_leaves_boundaries_alone() -> None:
    from refract.backends.mlx.codecs import side_codecs
    from refract.backends.mlx.codecs.rotations import Rotated

    kv = parse_kv("ctk=turbo4,ctv=q8_0,rot_k=haar,rot_v=wht,seed=5,boundary_k=1:type=q8_0")
    (k, k_edge), (v, v_edge) = side_codecs(kv, 64)
    assert (k.name, k.rotation, k.seed) == ("turbo4", "haar", 5)
    assert isinstance(v, Rotated)
    assert (v.name, v.bits_per_value, v.rotation, v.seed) == ("q8_0", 8.5, "wht", 5)
    assert (k_edge.name, v_edge.name) == ("q8_0", "f16")
    assert not isinstance(k_edge, Rotated)
    plain, _ = side_codecs(parse_kv("ctk=turbo4,ctv=polar,rot_k=none"), 64)
    assert plain[0].rotation == "none"
