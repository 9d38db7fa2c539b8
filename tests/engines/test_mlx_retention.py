"""Tokens that stay in 16 bits: on caches, and on a real model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
DIM, HEADS = 64, 3
KEPT = ["sink=4", "residual=6", "sink=3,residual=5", "prefill=raw", "prefill=raw,sink=2,residual=3"]


def spec(kv: str) -> Any:
    from refract.backends.mlx.load import layer_specs

    return layer_specs(parse_kv(kv), DIM, [None])[0]


def tensors(count: int, seed: int = 0) -> Any:
    import mlx.core as mx

    rng = np.random.default_rng(seed)
    return [mx.array(rng.standard_normal((1, HEADS, count, DIM)).astype(np.float32)) for _ in "kv"]


def fed(own: Any, parts: Sequence[int], keys: Any, values: Any) -> Any:
    """A cache that took the tokens in parts of these sizes."""
    from refract.backends.mlx.cache import SequenceCache

    cache, start = SequenceCache(own), 0
    for count in parts:
        part = slice(start, start + count)
        read = cache.update_and_fetch(keys[:, :, part], values[:, :, part])
        start += count
    return cache, read


@pytest.mark.parametrize("kept", KEPT)
def test_exactly_the_tokens_that_are_to_be_are_compressed(kept: str) -> None:
    import mlx.core as mx

    own = spec(f"ctk=q8_0,ctv=turbo3,{kept}")
    keys, values = tensors(20)
    _, (k, v) = fed(own, [9, 1, 4, 5, 1], keys, values)
    raw = [x.astype(mx.float16).astype(mx.float32) for x in (keys, values)]
    stop = 20 - own.retention.residual
    for read, codec, whole in ((k, own.k, raw[0]), (v, own.v, raw[1])):
        expected = np.array(whole)
        expected[:, :, own.retention.sink : stop] = np.array(codec.roundtrip(whole))[:, :, own.retention.sink : stop]
        assert np.array_equal(np.array(read), expected)


def test_a_chunk_reads_itself_raw_before_a_window_and_compressed_without_one() -> None:
    keys, values = tensors(12)
    for kept, raw_share in (("residual=2", 1.0), ("prefill=raw", 1.0), ("sink=2", 2 / 12)):
        _, (k, _) = fed(spec(f"ctk=q4_0,ctv=q4_0,{kept}"), [12], keys, values)
        same = (np.abs(np.array(k) - np.array(keys)).max(axis=(0, 1, 3)) < 1e-2).mean()
        assert same == pytest.approx(raw_share)


@pytest.mark.parametrize("kept", KEPT)
def test_a_row_of_a_batch_holds_what_the_sequence_alone_holds(kept: str) -> None:
    import mlx.core as mx

    from refract.backends.mlx.cache import RowCache, Rows

    own = spec(f"ctk=q8_0,ctv=turbo3,{kept}")
    keys, values = tensors(16)
    rows = Rows(3)
    cache = RowCache(own, rows)
    alone = []
    for row, count in enumerate((7, 2, 9)):  # one shorter than what is kept raw
        alone.append(fed(own, [count], keys, values)[0])
        cache.insert(row, alone[-1])
        rows.lengths[row] = count
    for step in range(5):
        rows.refresh()
        place = slice(10 + step, 11 + step)
        new = [mx.broadcast_to(x[:, :, place], (3, HEADS, 1, DIM)) for x in (keys, values)]
        together = cache.update_and_fetch(*new)
        rows.advance([0, 1, 2])
        for row, sequence in enumerate(alone):
            single = sequence.update_and_fetch(keys[:, :, place], values[:, :, place])
            for ours, theirs in zip(together, single, strict=True):
                assert np.array_equal(np.array(ours)[row, :, : rows.lengths[row]], np.array(theirs)[0])


def test_uncompressed_sides_are_left_alone() -> None:
    keys, values = tensors(8)
    own = spec("ctk=f32,ctv=q8_0,residual=2")
    _, (k, _) = fed(own, [7, 1], keys, values)
    assert np.array_equal(np.array(k), np.array(keys))


def test_what_prefill_does_not_show_is_measured_by_decoding(smollm2: Path) -> None:
    from refract.backends.mlx.engine import MLXEngine
    from refract.engine import Capability

    engine = MLXEngine()
    for kept, shown in (("sink=4", True), ("kbias=1", True), ("residual=8", False), ("prefill=raw", False)):
        found = engine.capabilities(parse_kv(f"ctk=q8_0,ctv=q8_0,{kept}"))
        assert (Capability.KL_PREFILL in found) is shown
        assert Capability.KL_DECODE in found


@pytest.mark.parametrize("kept", KEPT)
def test_the_probe_of_a_real_model_accepts_what_is_asked(smollm2: Path, tmp_path: Path, kept: str) -> None:
    from refract.backends.mlx.engine import MLXEngine
    from refract.engine import LoadSpec
    from refract.run.blobs import BlobFolder

    load = LoadSpec(model=str(smollm2), kv=parse_kv(f"ctk=q8_0,ctv=turbo3,{kept}"), max_tokens=64)
    with MLXEngine().load(load, BlobFolder(tmp_path)) as session:
        assert (session.effective_kv.k, session.effective_kv.layers_compressed) == ("q8_0", 30)
        assert any("f16" in note or "prompt" in note for note in session.effective_kv.notes)
