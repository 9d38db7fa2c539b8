"""The caches of `refract.mlx` in mlx-lm's hands: alone, in batches, trimmed, saved and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.errors import KVSyntaxError, KVUnsupportedError, ModelError
from tests.engines.tiny_model import VOCABULARY, tiny_hybrid, tiny_latent, tiny_llama

pytestmark = pytest.mark.usefixtures("mlx")

KVS = [
    "ctk=q8_0,ctv=turbo3",
    "ctk=turbo4,ctv=turbo4,sink=2,residual=5",
    "ctk=turbo4,ctv=q4_0,kmean=1",
    "ctk=turbo4,ctv=affine4,kcal=32",
    "ctk=turbo3,ctv=f16,prerope=1",
    "ctk=turbo4,ctv=turbo4,prefill=raw,sink=1",
    "ctk=turbo2:prod=1,ctv=polar,boundary=1",
    "ctk=minmax2:axis=channel,ctv=minmax2,residual=8",
    "ctk=nuq3:outliers=0.01,ctv=nuq3:axis=token:outliers=0.01,prerope=1,sink=1",
    "ctk=rfsn5,ctv=hybridpc",
]


@pytest.fixture(scope="module")
def model(mlx: None) -> Any:
    return tiny_llama(window=16)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCABULARY, count).tolist()


def logits(model: Any, ids: Sequence[int], cache: list[Any], steps: Sequence[int]) -> Any:
    """Logits (n, V) of the tokens, taken in parts of these sizes, then one by one."""
    import mlx.core as mx

    found, start = [], 0
    for count in [*steps, *[1] * (len(ids) - sum(steps))]:
        found.append(np.array(model(mx.array([ids[start : start + count]]), cache=cache)[0]))
        start += count
    return np.concatenate(found)


def made(model: Any, kv: str, storage: str = "packed", working: int = 0) -> list[Any]:
    from refract.mlx import make_prompt_cache

    return make_prompt_cache(model, kv, storage=storage, working=working)  # type: ignore[arg-type]  # tested as it is


@pytest.mark.parametrize("kv", KVS)
def test_packed_and_dense_read_the_same(model: Any, kv: str) -> None:
    ids = tokens(60)
    dense = logits(model, ids, made(model, kv, "dense"), [30, 10])
    for working in (0, 45, 4096):
        assert np.abs(logits(model, ids, made(model, kv, "packed", working), [30, 10]) - dense).max() < 1e-5


@pytest.mark.parametrize("kv", KVS)
def test_every_configuration_acts(model: Any, kv: str) -> None:
    ids = tokens(60)
    plain = logits(model, ids, made(model, "ctk=f32,ctv=f32", "dense"), [30])
    found = logits(model, ids, made(model, kv), [30])
    assert 1e-4 < np.abs(found - plain).max() < 3


def test_uncompressed_it_is_mlx_lms_own(model: Any) -> None:
    from mlx_lm.models.cache import make_prompt_cache

    ids = tokens(50)
    ours, theirs = made(model, "ctk=f32,ctv=f32"), make_prompt_cache(model)
    assert np.abs(logits(model, ids, ours, [20, 9]) - logits(model, ids, theirs, [20, 9])).max() < 1e-5


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("storage", ["packed", "dense"])
def test_a_batch_says_what_each_prompt_says_alone(model: Any, kv: str, storage: str) -> None:
    from mlx_lm.generate import BatchGenerator

    prompts = [tokens(n, seed=n) for n in (23, 7, 40)]
    batch = BatchGenerator(model, stop_tokens=[[VOCABULARY + 1]], prefill_step_size=16)
    uids = batch.insert(prompts, [6, 9, 12], caches=[made(model, kv, storage) for _ in prompts])
    said: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := batch.next_generated():
        for response in responses:
            said[response.uid].append(response.token)
    for prompt, uid in zip(prompts, uids, strict=True):
        cache = made(model, kv, storage)
        alone = greedy(model, prompt, cache, len(said[uid]))
        assert said[uid] == alone


def greedy(model: Any, prompt: Sequence[int], cache: list[Any], count: int) -> list[int]:
    """The continuation, prefilled as a batch of mlx-lm's does: the last token of a prompt on its own."""
    import mlx.core as mx

    *first, last = prompt
    for start in range(0, len(first), 16):
        model(mx.array([first[start : start + 16]]), cache=cache)
    found = []
    for _ in range(count):
        last = int(mx.argmax(model(mx.array([[last]]), cache=cache)[0, -1]))
        found.append(last)
    return found


@pytest.mark.parametrize("kv", [*KVS, "ctk=turbo4,ctv=turbo4,kbias=1"])
@pytest.mark.parametrize("storage", ["packed", "dense"])
def test_a_saved_cache_goes_on_where_it_was(kv: str, storage: str, tmp_path: Path) -> None:
    from refract.mlx import load_prompt_cache, save_prompt_cache

    model = tiny_llama(bias="kbias" in kv)
    ids, file = tokens(50), tmp_path / "cache.safetensors"
    cache = made(model, kv, storage)
    logits(model, ids[:40], cache, [33])
    save_prompt_cache(str(file), cache)
    again = load_prompt_cache(file, model)
    assert [type(layer) for layer in again] == [type(layer) for layer in cache]
    assert np.array_equal(logits(model, ids[40:], again, [4]), logits(model, ids[40:], cache, [4]))


def test_what_needs_the_model_is_refused_without_it(tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import load_prompt_cache

    from refract.mlx import save_prompt_cache

    model, file = tiny_llama(), tmp_path / "cache.safetensors"
    cache = made(model, "ctk=turbo4,ctv=turbo4,prerope=1")
    logits(model, tokens(9), cache, [9])
    save_prompt_cache(str(file), cache)
    loaded = load_prompt_cache(str(file))
    with pytest.raises(KVUnsupportedError, match="loaded without its model"):
        model(mx.array([[1]]), cache=loaded)


@pytest.mark.parametrize("storage", ["packed", "dense"])
def test_trimming_takes_back_the_newest(model: Any, storage: str) -> None:
    from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

    for kv in ("ctk=q8_0,ctv=turbo3", "ctk=turbo4,ctv=turbo4,sink=2,residual=5"):
        cache, ids = made(model, kv, storage), tokens(40)
        logits(model, ids, cache, [30])
        assert can_trim_prompt_cache(cache)
        assert trim_prompt_cache(cache, 12) == 12
        assert {layer.offset for layer in cache} == {28}
        other = made(model, kv, storage)
        logits(model, ids[:28], other, [28])
        again, fresh = (logits(model, ids[28:32], c, []) for c in (cache, other))
        tolerance = 1e-5 if "sink" not in kv else 1.0  # what was coded stays coded
        assert np.abs(again - fresh).max() < tolerance
    assert not can_trim_prompt_cache(made(model, "ctk=turbo4,ctv=turbo4,kmean=1", storage))


def test_batches_can_be_filtered_extended_and_taken_apart(model: Any) -> None:
    import mlx.core as mx

    caches = [made(model, "ctk=q8_0,ctv=turbo3") for _ in range(3)]
    for seed, cache in enumerate(caches):
        logits(model, tokens(5 + 4 * seed, seed=seed), cache, [5])
    kind = type(caches[0][0])
    batch = [kind.merge(list(layers)) for layers in zip(*caches[:2], strict=True)]
    for layer, joining in zip(batch, caches[2], strict=True):
        layer.extend(kind.merge([joining]))
        layer.filter(mx.array([2, 0]))
    assert batch[0].offset.tolist() == [13, 5]
    assert batch[0].nbytes == sum(c[0].nbytes for c in (caches[2], caches[0]))
    together = np.array(model(mx.array([[3], [4]]), cache=batch)[:, 0])
    for row, (cache, token) in enumerate(((caches[2], 3), (caches[0], 4))):
        alone = np.array(model(mx.array([[token]]), cache=cache)[0, 0])
        assert np.abs(together[row] - alone).max() < 1e-5
        taken = [layer.extract(row) for layer in batch]
        assert taken[0].offset == cache[0].offset
        assert np.abs(logits(model, [7], taken, []) - logits(model, [7], cache, [])).max() < 1e-5


def test_bits_are_what_the_catalogue_says(model: Any) -> None:
    for name, bits in [("turbo2", 2 + 16 / 64), ("turbo3", 3 + 16 / 64), ("turbo4", 4 + 16 / 64), ("q8_0", 8.5)]:
        cache = made(model, f"ctk={name},ctv={name}")
        logits(model, tokens(37), cache, [37])
        for layer in cache:
            assert layer.k.coded_bytes * 8 == layer.v.coded_bytes * 8 == bits * 2 * 37 * 64
            assert layer.k.copy is None


@pytest.mark.parametrize("name", ["q8_0", "turbo3", "affine4"])
def test_one_token_is_written_as_many_are(model: Any, name: str) -> None:
    """Bit for bit, although the functions that write it are compiled."""
    import mlx.core as mx

    for storage in ("packed", "dense"):
        layer = made(model, f"ctk={name},ctv={name}", storage)[0]
        x = mx.array(np.random.default_rng(8).standard_normal((1, 2, 20, 64)).astype(np.float32))
        for at in range(20):
            keys, _ = layer.update_and_fetch(x[:, :, at : at + 1], x[:, :, at : at + 1])
        assert mx.array_equal(keys, layer.k.spec.codec.roundtrip(x))


@pytest.mark.parametrize("kv", [
    "ctk=q8_0,ctv=q8_0,evict=recency:keep=0.5",
    "ctk=q8_0,ctv=q8_0,sparsev=0.001",
])  # fmt: skip
def test_what_a_cache_alone_cannot_do_is_refused(model: Any, kv: str) -> None:
    with pytest.raises(KVUnsupportedError, match=r"a cache alone cannot do|not implemented yet"):
        made(model, kv)


@pytest.mark.parametrize(("kv", "error", "said"), [
    ("ctk=q8_0", KVSyntaxError, "ctv is missing"),
    ("ctk=q8_0,ctv=q8_0,kbias=1", KVUnsupportedError, "layer 0 has no bias"),
    ("ctk=turbo4,ctv=q8_0,kcal=8", KVUnsupportedError, "fewer than 32 tokens"),
    ("ctk=q8_0,ctv=q8_0,kcal=64", KVUnsupportedError, "it needs a rotated K"),
])  # fmt: skip
def test_what_cannot_act_is_refused(model: Any, kv: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        made(model, kv)


def test_caches_that_cannot_be_replaced_are_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_lm.models.cache import ChunkedKVCache, KVCache

    monkeypatch.setattr(
        type(model), "make_cache", lambda self: [KVCache(), KVCache(), ChunkedKVCache(8)], raising=False
    )
    with pytest.raises(ModelError, match="layer 2 keeps a ChunkedKVCache"):
        made(model, "ctk=q8_0,ctv=q8_0")


def test_layers_without_keys_keep_mlx_lms_own_caches() -> None:
    from mlx_lm.models.cache import ArraysCache

    hybrid = tiny_hybrid()
    cache = made(hybrid, "ctk=q8_0,ctv=turbo3,boundary_v=0")
    assert [type(layer).__name__ for layer in cache] == ["ArraysCache", "CompressedKVCache"] * 2
    assert [layer.origin.layer for layer in cache[1::2]] == [0, 1]
    ids = tokens(20)
    packed, dense = (logits(hybrid, ids, made(hybrid, "ctk=q8_0,ctv=turbo3", s), [15]) for s in ("packed", "dense"))
    assert np.abs(packed - dense).max() < 1e-5
    assert isinstance(cache[0], ArraysCache)


def test_latent_attention_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"latent \(MLA\) cache"):
        made(tiny_latent(), "ctk=q8_0,ctv=q8_0")


def test_attention_takes_no_quantised_path(model: Any) -> None:
    assert not any(hasattr(layer, "bits") for layer in made(model, "ctk=q8_0,ctv=q8_0"))
