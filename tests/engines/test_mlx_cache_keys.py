"""What is done to keys before a codec sees them: on made-up keys by hand, and where a bias was planted into a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.axes.windows import cut_windows
from refract.data.corpus import load_corpus
from refract.errors import KVUnsupportedError
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")
DIM, HEADS = 64, 3
SLOW, FAST = (28, 29, 30, 31), (0, 1, 2, 3)  # RoPE pairs


def spec(kv: str) -> Any:
    from refract.backends.mlx.load import layer_specs
    from tests.engines.tiny_model import tiny_llama

    return layer_specs(parse_kv(kv), DIM, [None] * 3, tiny_llama(bias="kbias" in kv).layers)[0]


def tensor(count: int, heads: int = 2, seed: int = 0) -> Any:
    import mlx.core as mx

    return mx.array(np.random.default_rng(seed).standard_normal((1, heads, count, DIM)).astype(np.float32))


def read(kv: str, keys: Any, parts: Sequence[int]) -> np.ndarray:
    """The keys (B, H, n, D) that a cache gives back of those written in parts."""
    from refract.backends.mlx.cache import SequenceCache

    cache, start = SequenceCache(spec(kv)), 0
    for count in parts:
        part = keys[:, :, start : start + count]
        found, _ = cache.update_and_fetch(part, part)
        start += count
    return np.array(found)


PARTS = [[40], [1] * 40, [7, 1, 20, 5, 7]]


@pytest.mark.parametrize("parts", PARTS)
def test_kmean_takes_off_the_mean_of_the_first_power_of_two_of_tokens(parts: list[int]) -> None:
    import mlx.core as mx

    keys = tensor(40) + 5.0
    codec = spec("ctk=turbo3,ctv=f16").k
    found, given = read("ctk=turbo3,ctv=f16,kmean=1", keys, parts), np.array(keys)
    for token in range(40):
        held = 1 << (token + 1).bit_length() - 1
        mean = given[:, :, :held].mean(axis=2).astype(np.float16).astype(np.float32)
        left = np.array(codec.roundtrip(mx.array(given[:, :, token] - mean)))
        assert np.allclose(found[:, :, token], mean + left, atol=5e-3)
    assert np.allclose(found[:, :, 0], given[:, :, 0], atol=5e-3)  # the first token is its own mean


def test_kmean_removes_what_all_keys_share() -> None:
    offset = 50.0 * tensor(1, seed=3)
    keys = tensor(64) + offset
    plain, centred = (
        np.square(read(f"ctk=turbo4,ctv=f16{more}", keys, [64]) - np.array(keys))[:, :, 8:].mean()
        for more in ("", ",kmean=1")
    )
    assert centred < 0.02 < 0.1 * plain


@pytest.mark.parametrize("parts", PARTS)
def test_prerope_codes_keys_as_they_were_before_their_rotation(parts: list[int]) -> None:
    from tests.engines.tiny_model import tiny_llama

    rope, before = tiny_llama().layers[0].self_attn.rope, tensor(40)
    codec = spec("ctk=turbo3,ctv=f16").k
    found = read("ctk=turbo3,ctv=f16,prerope=1", rope(before, offset=0), parts)
    expected = np.array(rope(codec.roundtrip(before), offset=0))
    wrong = np.square(found - expected).mean() / np.square(expected).mean()
    assert wrong < 1e-3  # turning back and forth moves a value across a boundary now and then
    assert np.square(found - np.array(codec.roundtrip(rope(before, offset=0)))).mean() > 0.01


@pytest.mark.parametrize("parts", [[100], [1] * 100, [30, 1, 40, 29]])
def test_kcal_scales_the_dimensions_that_its_first_tokens_showed_to_be_wide(parts: list[int]) -> None:
    from refract.backends.mlx.codecs.rotations import rotate, unrotate

    widths = np.where(np.arange(DIM) < 8, 4.0, 0.5).astype(np.float32)
    turned = np.array(tensor(100)) * widths
    keys = unrotate(_array(turned), "wht", 0)
    plain, scaled = (
        np.array(rotate(_array(read(f"ctk=turbo4,ctv=f16{more}", keys, parts)), "wht", 0)) - turned
        for more in ("", ",kcal=32")
    )
    narrow = np.s_[:, :, 32:, 8:]
    assert np.square(scaled[narrow]).mean() < 0.5 * np.square(plain[narrow]).mean()
    assert np.allclose(scaled[:, :, :31], plain[:, :, :31], atol=0.5)
    assert np.square(scaled[:, :, :31]).mean() == pytest.approx(np.square(plain[:, :, :31]).mean(), rel=1e-3)


def _array(x: np.ndarray) -> Any:
    import mlx.core as mx

    return mx.array(x)


def test_kcal_leaves_even_dimensions_alone() -> None:
    keys = tensor(2000, heads=1)
    plain, scaled = (read(f"ctk=turbo4,ctv=f16{more}", keys, [2000]) for more in ("", ",kcal=1500"))
    assert np.square(plain - scaled).mean() < 1e-6


@pytest.mark.parametrize(
    "more", ["kmean=1", "kcal=32", "prerope=1", "kbias=1", "kmean=1,prerope=1,sink=2", "kmean=1,residual=5"]
)
def test_a_row_of_a_batch_reads_what_the_sequence_alone_reads(more: str) -> None:
    import mlx.core as mx

    from refract.backends.mlx.cache import RowCache, Rows, SequenceCache

    own = spec(f"ctk=turbo4,ctv=q8_0,{more}")
    rows = Rows(2)
    batch = RowCache(own, rows)
    alone = [SequenceCache(own) for _ in range(2)]
    for row, count in enumerate((21, 37)):
        alone[row].update_and_fetch(tensor(count, seed=row), tensor(count, seed=row + 5))
        batch.insert(row, alone[row])
        rows.lengths[row] = count
    for step in range(30):
        rows.refresh()
        new = tensor(1, seed=100 + step), tensor(1, seed=200 + step)
        keys, _ = batch.update_and_fetch(*(mx.repeat(x, 2, axis=0) for x in new))
        rows.advance([0, 1])
        for row in range(2):
            single, _ = alone[row].update_and_fetch(*new)
            error = np.array(keys)[row, :, : rows.lengths[row]] - np.array(single)[0]
            assert np.square(error).mean() < 1e-4 * np.square(np.array(single)).mean()


@pytest.fixture(scope="module")
def model(mlx: None, smollm2: Path) -> Any:
    import mlx.core as mx

    from refract.backends._gguf import read_gguf
    from refract.backends.mlx.gguf_model import load_gguf_model
    from refract.backends.mlx.model import split_model

    return split_model(load_gguf_model(read_gguf(smollm2), mx.float32)[0])


@pytest.fixture(scope="module")
def text(smollm2: Path) -> tuple[int, ...]:
    from refract.backends._tokenizer import load_tokenizer

    return cut_windows(load_corpus(None), load_tokenizer(smollm2, None), count=1, size=512)[0].tokens


def plant(model: Any, norm: float, pairs: Sequence[int]) -> None:
    """Gives every KV head of every layer a bias of this norm on some RoPE pairs; 0 takes it away."""
    import mlx.core as mx

    rng = np.random.default_rng(7)
    places = [place for pair in pairs for place in (pair, pair + DIM // 2)]
    for layer in model.layers:
        projection = layer.self_attn.k_proj
        projection.pop("bias", None)
        if norm:
            bias = np.zeros((HEADS, DIM), np.float32)
            bias[:, places] = rng.standard_normal((HEADS, len(places)))
            bias *= norm / np.linalg.norm(bias, axis=1, keepdims=True)
            projection["bias"] = mx.array(bias.reshape(-1))


def logits(model: Any, kv: str, tokens: Sequence[int]) -> np.ndarray:
    import mlx.core as mx

    from refract.backends.mlx.keeper import new_caches
    from refract.backends.mlx.load import layer_specs

    caches = new_caches(layer_specs(parse_kv(kv), DIM, [None] * len(model.layers), model.layers))
    return np.array(model.head(model.trunk(mx.array([tokens]), cache=caches))[0, len(tokens) // 2 :])


def mean_kls(model: Any, tokens: Sequence[int], more: Sequence[str]) -> dict[str, float]:
    """Nats of turbo4/turbo4 against f16, by the modifiers beside it."""
    from refract.backends._logits import compare_logits

    reference = logits(model, "ctk=f16,ctv=f16", tokens)
    ids = tokens[-len(reference) :]
    return {
        each: float(compare_logits(reference, logits(model, f"ctk=turbo4,ctv=turbo4{each}", tokens), ids).kl.mean())
        for each in more
    }


def test_a_shared_bias_ruins_plain_keys_and_is_removed_exactly(model: Any, text: tuple[int, ...]) -> None:
    """Trial figures on other text: .154, 2.43 and 5.20 nats without, .042, .043 and .058 with kbias=1."""
    plant(model, 0, ())
    without = mean_kls(model, text, [""])[""]
    found = {}
    for norm in (22, 100, 600):
        plant(model, norm, SLOW)
        found[norm] = tuple(mean_kls(model, text, ["", ",kbias=1"]).values())
    plant(model, 0, ())
    print(f"no bias {without:.3f}; " + "; ".join(f"{n}: {a:.3f} and with kbias {b:.3f}" for n, (a, b) in found.items()))
    plain, removed = zip(*found.values(), strict=True)
    assert without < plain[0] < plain[1] < plain[2]
    assert plain[1] > 10 * without
    assert plain[2] > 2
    assert max(removed[:2]) < 2 * without
    assert removed[2] < 4 * without


@contextmanager
def deaf(model: Any, pairs: Sequence[int]) -> Iterator[None]:
    """Queries without these RoPE pairs: a bias there changes no attention, and a codec's error in it still does."""
    import mlx.core as mx

    before = [layer.self_attn.q_proj.weight for layer in model.layers]
    places = [place for pair in pairs for place in (pair, pair + DIM // 2)]
    for layer in model.layers:
        weight = np.array(layer.self_attn.q_proj.weight)
        by_head = weight.reshape(-1, DIM, weight.shape[1])
        by_head[:, places] = 0
        layer.self_attn.q_proj.weight = mx.array(by_head.reshape(weight.shape))
    yield
    for layer, weight in zip(model.layers, before, strict=True):
        layer.self_attn.q_proj.weight = weight


def test_centring_helps_where_a_bias_turns_slowly_and_not_where_it_turns_fast(
    model: Any, text: tuple[int, ...]
) -> None:
    ways = ["", ",kmean=1", ",prerope=1", ",kmean=1,prerope=1", ",kbias=1"]
    found = {}
    for place, pairs in (("slow", SLOW), ("fast", FAST)):
        with deaf(model, pairs):
            plant(model, 100, pairs)
            found[place] = mean_kls(model, text, ways)
            plant(model, 0, ())
    for place, by_way in found.items():
        print(place, "; ".join(f"{way[1:] or 'plain'} {kl:.3f}" for way, kl in by_way.items()))
    assert found["slow"][",kmean=1"] < 0.2 * found["slow"][""]
    assert found["fast"][",kmean=1"] > 0.7 * found["fast"][""]
    for by_way in found.values():
        assert by_way[",prerope=1"] > 0.5 * by_way[""]
        assert max(by_way[",kbias=1"], by_way[",kmean=1,prerope=1"]) < 0.2 * by_way[""]


def test_a_model_without_a_bias_is_refused(model: Any) -> None:
    from refract.backends.mlx.key_bias import key_shifts

    with pytest.raises(KVUnsupportedError, match="kbias=1 cannot act: layer 0 has no bias"):
        key_shifts(model.layers)


@pytest.mark.parametrize("more", ["kmean=1", "kcal=32", "prerope=1", "kmean=1,prerope=1,kcal=64"])
def test_the_probe_of_a_real_model_accepts_what_is_asked(smollm2: Path, tmp_path: Path, more: str) -> None:
    from refract.backends.mlx.engine import MLXEngine
    from refract.engine import LoadSpec
    from refract.run.blobs import BlobFolder

    load = LoadSpec(model=str(smollm2), kv=parse_kv(f"ctk=turbo4,ctv=turbo3,{more}"), max_tokens=64)
    with MLXEngine().load(load, BlobFolder(tmp_path)) as session:
        assert (session.effective_kv.k, session.effective_kv.layers_compressed) == ("turbo4", 30)
        assert any("K" in note for note in session.effective_kv.notes)
