"""PolarQuant against its oracles."""

from __future__ import annotations

import numpy as np
import pytest
from codec_support import DIMS, codec, gaussian, oracle, relative_errors

from refract.errors import KVUnsupportedError

pytestmark = pytest.mark.usefixtures("mlx")
SIMULATED = {
    "polar": "4,2,2,2@3.875",
    "polar:bits=4-3-3-3": "4,3,3,3@4.3125",
    "polar:bits=5-3-3-3": "5,3,3,3@4.8125",
    "polar:bits=3-2-2-2": "3,2,2,2@3.375",
    "polar:bits=4-4-4-4": "4,4,4,4@4.75",
    "polar:bits=5-5-5-5:angles=uniform": "rfsn uniform 5,5,5,5@5.6875",
}


@pytest.mark.parametrize("name", SIMULATED)
def test_the_error_is_the_simulated_one(name: str) -> None:
    """The oracle states no standard error: 0.5 % covers both simulations."""
    x = gaussian(10_000, 128)
    expected = oracle("reference_values")["polar_vector_rel_mse"][SIMULATED[name]]
    energy = (x.astype(np.float64) ** 2).sum(axis=1)
    found = (relative_errors(name, x) * energy).sum() / energy.sum()
    print(f"{name}: {found:.6f}, oracle {expected:.6f}")
    assert found == pytest.approx(expected, rel=5e-3)
    assert codec(name, 128).bits_per_value == float(SIMULATED[name].partition("@")[2])


@pytest.mark.parametrize("dim", DIMS)
def test_every_head_dimension_has_the_same_error(dim: int) -> None:
    assert relative_errors("polar", gaussian(4_000, dim)).mean() == pytest.approx(0.03208, rel=0.02)


def test_the_shipped_angles_are_the_oracles() -> None:
    from refract.backends.mlx.codecs.codebooks import angles

    for key, entry in oracle("polar_codebooks").items():
        level, bits = map(int, key.removeprefix("L").split("b"))
        assert angles(level, bits).tolist() == entry["centroids"]


@pytest.mark.parametrize(("level", "bits"), [(2, 2), (3, 2), (4, 3)])
def test_angles_of_a_level_err_as_their_density_says(level: int, bits: int) -> None:
    import mlx.core as mx

    from refract.backends.mlx.codecs.codebooks import angle_levels

    halves = gaussian(40_000, 1 << level).reshape(-1, 2, 1 << level - 1).astype(np.float64)
    first, second = np.linalg.norm(halves, axis=2).T
    psi = np.arctan2(second, first)
    table = angle_levels(level, bits)
    kept = np.array(table.values[table.codes(mx.array(psi.astype(np.float32)))])
    expected = oracle("polar_codebooks")[f"L{level}b{bits}"]["angle_mse"]
    assert ((kept - psi) ** 2).mean() == pytest.approx(expected, rel=0.02)


def test_bits_without_a_codebook_and_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(KVUnsupportedError, match="no codebook of 6 bits for angles of level 2"):
        codec("polar:levels=2:bits=8-6", 64)
    assert codec("polar:levels=2:bits=8-6:angles=uniform", 64).name == "polar:levels=2:bits=8-6:angles=uniform"
    with pytest.raises(KVUnsupportedError, match="groups of 16 values, and this model's head dimension 72"):
        codec("polar", 72)


def test_parts_have_the_sizes_of_their_levels() -> None:
    import mlx.core as mx

    *codes, radii = codec("polar", 128, rot="none").encode(mx.array(gaussian(3, 128)))
    assert [part.shape for part in codes] == [(3, 64), (3, 32), (3, 16), (3, 8)]
    assert [int(mx.max(part)) for part in codes] == [15, 3, 3, 3]
    assert (radii.shape, radii.dtype) == ((3, 8), mx.float16)
