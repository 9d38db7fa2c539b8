"""What a loaded model's caches are made to prove before anything is measured with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.engine import LoadSpec
from refract.errors import ConfigMismatchError
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder

pytestmark = pytest.mark.usefixtures("mlx")

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "turbo8", "turbo3", "affine8", "fp8_e4m3", "polar")


def codec(name: str) -> Any:
    from refract.backends.mlx.codecs import make_codec
    from refract.kv import Format

    return make_codec(Format(name=name), 64)


def parts(seed: int = 0) -> list[Any]:
    import mlx.core as mx

    draw = np.random.default_rng(seed)
    return [mx.array(draw.standard_normal((1, 3, 1, 64)).astype(np.float32)) for _ in range(2)]


def joined(written: list[Any], through: Callable[[Any], Any]) -> Any:
    import mlx.core as mx

    return mx.concatenate([through(part) for part in written], axis=2)


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_codec_leaves_is_what_is_wanted(name: str) -> None:
    from refract.backends.mlx.probe import difference

    chosen, written = codec(name), parts()
    assert difference(chosen, written, joined(written, chosen.roundtrip)) is None
    stored = joined(written, lambda part: chosen.decode(*chosen.encode(part)).astype(part.dtype))
    assert difference(chosen, written, stored) is None


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("f32", "f16", "bf16")])
def test_nothing_else_is(name: str) -> None:
    from refract.backends.mlx.probe import difference

    chosen, written = codec(name), parts()
    left = joined(written, chosen.roundtrip)
    assert difference(chosen, written, joined(written, lambda part: part)) is not None, "uncompressed"
    assert difference(chosen, written, joined(written, codec("turbo2").roundtrip)) is not None, "another format"
    assert difference(chosen, written, left[..., ::-1, :]) is not None, "another order"
    assert difference(chosen, written, left * 0) is not None, "zeros"
    assert difference(chosen, written, left * float("nan")) is not None, "NaN"
    assert "shape" in (difference(chosen, written, left[..., :1, :]) or ""), "a token lost"


def test_rotations_are_named_with_what_auto_stands_for() -> None:
    from refract.backends.mlx.codecs import side_codecs
    from refract.backends.mlx.probe import rotation_of

    for text, dim, expected in (
        ("ctk=q8_0,ctv=turbo3", 64, (None, ("wht", 0))),
        ("ctk=f16,ctv=turbo3,seed=7", 80, (None, ("haar", 7))),
        ("ctk=q8_0,ctv=turbo3,rot_k=haar,rot_v=none", 64, (("haar", 0), None)),
    ):
        (k, _), (v, _) = side_codecs(parse_kv(text), dim)
        assert (rotation_of(k, dim), rotation_of(v, dim)) == expected


def load(model: Path, folder: Path, kv: str) -> Any:
    from refract.backends.mlx.engine import MLXEngine

    spec = LoadSpec(model=str(model), kv=parse_kv(kv), max_tokens=64)
    return MLXEngine(cache_dir=folder).load(spec, BlobFolder(folder / "blobs"))


def test_a_sound_model_says_which_rotation_acts(smollm2: Path, tmp_path: Path) -> None:
    with load(smollm2, tmp_path, "ctk=q8_0,ctv=turbo3,seed=5") as session:
        assert session.effective_kv.notes == ("V is rotated by wht, seed 5",)


@pytest.mark.parametrize("side", ["K", "V"])
def test_a_cache_that_stores_something_else_is_refused(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    from refract.backends.mlx.cache import SequenceCache

    original = SequenceCache.update_and_fetch

    def fetch(self: Any, k: Any, v: Any) -> Any:
        held_k, held_v = original(self, k, v)
        return (held_k * 0, held_v) if side == "K" else (held_k, held_v * 0)

    monkeypatch.setattr(SequenceCache, "update_and_fetch", fetch)
    refused = pytest.raises(ConfigMismatchError, match=f"layer 0 should store {side} as .*, and gives back")
    with refused, load(smollm2, tmp_path, "ctk=q8_0,ctv=turbo3"):
        pass
