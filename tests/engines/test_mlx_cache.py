"""The caches against mlx-lm's own, and rows against sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("mlx")


def spec(name: str = "f32", window: int | None = None) -> Any:
    from refract.backends.mlx.cache import LayerSpec
    from refract.backends.mlx.codecs import make_codec
    from refract.kv import Format

    codec = make_codec(Format(name=name), 64)
    return LayerSpec(k=codec, v=codec, window=window)


def tensor(*shape: int, seed: int = 0) -> Any:
    import mlx.core as mx

    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def test_uncompressed_it_equals_mlx_lms_cache_over_growing_chunks() -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    from refract.backends.mlx.cache import SequenceCache

    ours, theirs = SequenceCache(spec()), KVCache()
    for seed, n in enumerate([300, 1, 1, 255, 7]):
        k, v = tensor(1, 2, n, 64, seed=seed), tensor(1, 2, n, 64, seed=seed + 50)
        for mine, other in zip(ours.update_and_fetch(k, v), theirs.update_and_fetch(k, v), strict=True):
            assert mx.array_equal(mine, other)
        assert ours.offset == theirs.offset == ours.size()
    assert ours.trim(5) == 5
    assert ours.offset == 559
    assert ours.nbytes >= 2 * 2 * 559 * 64 * 4


@pytest.mark.parametrize(("n", "window"), [(1, None), (5, None), (1, 8), (5, 8)])
def test_masks_are_those_of_mlx_lm(n: int, window: int | None) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    from refract.backends.mlx.cache import SequenceCache

    ours, theirs = SequenceCache(spec(window=window)), KVCache()
    for cache in (ours, theirs):
        cache.update_and_fetch(tensor(1, 2, 20, 64), tensor(1, 2, 20, 64))
    mine = ours.make_mask(n, return_array=False, window_size=None)
    other = theirs.make_mask(n, return_array=False, window_size=window)
    assert mine == other if not isinstance(other, mx.array) else mx.array_equal(mine, other)


def test_what_is_fetched_is_what_the_codec_leaves() -> None:
    import mlx.core as mx

    from refract.backends.mlx.cache import SequenceCache

    layer = spec("turbo3")
    k, v = tensor(1, 2, 9, 64), tensor(1, 2, 9, 64, seed=9)
    keys, values = SequenceCache(layer).update_and_fetch(k, v)
    assert mx.array_equal(keys, layer.k.roundtrip(k))
    assert mx.array_equal(values, layer.v.roundtrip(v))
    assert not mx.array_equal(keys, k)


def test_rows_of_different_lengths_hold_what_sequences_hold() -> None:
    import mlx.core as mx

    from refract.backends.mlx.cache import RowCache, Rows, SequenceCache

    lengths = [3, 270, 1]
    rows = Rows(4)
    batch = RowCache(spec("q8_0"), rows)
    singles = []
    for row, n in enumerate(lengths):
        single = SequenceCache(spec("q8_0"))
        single.update_and_fetch(tensor(1, 2, n, 64, seed=row), tensor(1, 2, n, 64, seed=row + 9))
        batch.insert(row, single)
        rows.lengths[row] = n
        singles.append(single)
    rows.refresh()
    k, v = tensor(4, 2, 1, 64, seed=77), tensor(4, 2, 1, 64, seed=78)
    keys, values = batch.update_and_fetch(k, v)
    mask = batch.make_mask(1)
    assert keys.shape[2] == mask.shape[-1] == 320
    for row, single in enumerate(singles):
        own_k, own_v = single.update_and_fetch(k[row : row + 1], v[row : row + 1])
        n = lengths[row] + 1
        assert mx.array_equal(keys[row, :, :n], own_k[0])
        assert mx.array_equal(values[row, :, :n], own_v[0])
        assert not mx.any(keys[row, :, n:])
        assert np.array(mask[row, 0, 0]).nonzero()[0].tolist() == list(range(n))


def test_a_reused_row_keeps_nothing_of_its_former_tenant() -> None:
    import mlx.core as mx

    from refract.backends.mlx.cache import RowCache, Rows, SequenceCache

    rows = Rows(2)
    batch = RowCache(spec(), rows)
    for n, fill in ((200, float("nan")), (3, 1.0)):
        single = SequenceCache(spec())
        single.update_and_fetch(mx.full((1, 2, n, 64), fill), mx.full((1, 2, n, 64), fill))
        batch.insert(0, single)
        rows.lengths[0] = n
    assert mx.all(mx.isfinite(batch.keys))


def test_rows_see_no_further_back_than_their_window() -> None:
    from refract.backends.mlx.cache import RowCache, Rows

    rows = Rows(2)
    rows.lengths[:] = [20, 4]
    rows.refresh()
    mask = np.array(RowCache(spec(window=8), rows).make_mask(1))
    assert mask[0, 0, 0].nonzero()[0].tolist() == list(range(13, 21))
    assert mask[1, 0, 0].nonzero()[0].tolist() == list(range(5))


def test_boundary_layers_keep_their_own_format() -> None:
    from refract.backends.mlx.load import layer_specs
    from refract.kv import parse_kv

    specs = layer_specs(parse_kv("ctk=q8_0,ctv=turbo3,boundary_v=2"), 64, [None] * 6)
    assert [s.v.name for s in specs] == ["f16", "f16", "turbo3", "turbo3", "f16", "f16"]
    assert {s.k.name for s in specs} == {"q8_0"}
    assert [s.compressed for s in specs] == [True] * 6


def test_kept_places_are_all_that_is_left_alone_and_in_a_batch() -> None:
    import mlx.core as mx

    from refract.backends.mlx.cache import RowCache, Rows, SequenceCache

    own, places = spec("turbo4"), [0, 1, 5, 8, 9]
    keys, values = tensor(1, 2, 10, 64), tensor(1, 2, 10, 64, seed=1)
    single, rows = SequenceCache(own), Rows(2)
    batch = RowCache(own, rows)
    read = single.update_and_fetch(keys, values)
    batch.insert(1, single)
    single.keep(places)
    batch.keep(1, places)
    rows.lengths[:] = [0, len(places)]
    rows.refresh()
    new = tensor(1, 2, 1, 64, seed=2)
    alone = single.update_and_fetch(new, new)
    together = batch.update_and_fetch(mx.repeat(new, 2, axis=0), mx.repeat(new, 2, axis=0))
    assert single.offset == 6
    for before, one, both in zip(read, alone, together, strict=True):
        assert mx.array_equal(one[:, :, :5], before[:, :, mx.array(places)])
        assert mx.array_equal(both[1, :, :6], one[0])
        assert not mx.any(both[1, :, 6:])


@pytest.mark.parametrize("kv", ["ctk=turbo4,ctv=f16,kmean=1", "ctk=minmax2:axis=channel,ctv=f16"])
def test_tokens_that_others_depend_on_are_not_given_up(kv: str) -> None:
    from refract.backends.mlx.cache import SequenceCache
    from refract.backends.mlx.load import layer_specs
    from refract.errors import KVUnsupportedError
    from refract.kv import parse_kv

    cache = SequenceCache(layer_specs(parse_kv(kv), 64, [None])[0])
    cache.update_and_fetch(tensor(1, 2, 40, 64), tensor(1, 2, 40, 64))
    with pytest.raises(KVUnsupportedError, match="cannot be taken out of a cache"):
        cache.keep([0, 1])
