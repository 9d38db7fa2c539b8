"""The caches of `refract.mlx` on real models: packed beside dense over a long text, every codec, and the examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.axes.windows import cut_windows
from refract.data.corpus import load_corpus
from refract.formats import BUILT

pytestmark = pytest.mark.usefixtures("mlx")
PAGE = Path(__file__).parents[2] / "docs" / "mlx-caches.md"
LONG = 600


def gguf_model(path: Path) -> Any:
    import mlx.core as mx

    from refract.backends._gguf import read_gguf
    from refract.backends.mlx.gguf_model import load_gguf_model

    return load_gguf_model(read_gguf(path), mx.float32)[0]


@pytest.fixture(scope="module")
def smollm(mlx: None, smollm2: Path) -> Any:
    return gguf_model(smollm2)


@pytest.fixture(scope="module")
def gemma(mlx: None, gemma3: Path) -> Any:
    return gguf_model(gemma3)


def text(model: Path, size: int) -> tuple[int, ...]:
    from refract.backends._tokenizer import load_tokenizer

    return cut_windows(load_corpus(None), load_tokenizer(model, None), count=1, size=size)[0].tokens


def steps(model: Any, cache: Sequence[Any], ids: Sequence[int]) -> Iterator[np.ndarray]:
    """The logits (V,) after each token, one at a time."""
    import mlx.core as mx

    for token in ids:
        yield np.array(model(mx.array([[token]]), cache=cache)[0, -1])


def codes(side: Any) -> list[Any]:
    count = side.coded - side.spec.sink
    return [part[:, :, : count // rate] for part, rate in zip(side.parts, side.rates, strict=True)]


def test_packed_and_dense_stay_one_through_600_decoded_tokens(smollm: Any, smollm2: Path) -> None:
    """Without a working copy every step reads the codes anew; the dense cache never does."""
    import mlx.core as mx

    from refract.backends.mlx.packing import pack
    from refract.mlx import make_prompt_cache

    kv, ids = "ctk=q8_0,ctv=turbo3", text(smollm2, LONG + 8)
    packed = make_prompt_cache(smollm, kv, working=0)
    dense = make_prompt_cache(smollm, kv, storage="dense")
    given: list[list[Any]] = [[] for _ in dense]
    for layer, kept in zip(dense, given, strict=True):

        def noting(keys: Any, values: Any, own: Any = layer.update_and_fetch, kept: list[Any] = kept) -> Any:
            kept.append((keys, values))
            return own(keys, values)

        layer.update_and_fetch = noting
    for cache in (packed, dense):
        smollm(mx.array([ids[:8]]), cache=cache)
    worst = max(
        float(np.abs(one - other).max())
        for one, other in zip(steps(smollm, packed, ids[8:]), steps(smollm, dense, ids[8:]), strict=True)
    )
    print(f"largest difference of logits over {LONG} tokens: {worst:.2g}")
    assert worst < 1e-4
    for layer, kept in zip(packed, given, strict=True):
        for side, whole in zip((layer.k, layer.v), zip(*kept, strict=True), strict=True):
            codec = side.spec.codec
            parts = pack(codec, codec.encode(mx.concatenate(whole, axis=2)))
            assert side.coded == LONG + 8
            for ours, theirs in zip(codes(side), parts, strict=True):
                assert mx.array_equal(ours, theirs)
    k, v = packed[0].k, packed[0].v
    assert k.coded_bytes * 8 == 8.5 * 3 * (LONG + 8) * 64
    assert v.coded_bytes * 8 == (3 + 16 / 64) * 3 * (LONG + 8) * 64


def test_a_long_cache_holds_its_codes_and_little_more(smollm: Any) -> None:
    import mlx.core as mx

    from refract.mlx import make_prompt_cache, stored_bytes

    cache = make_prompt_cache(smollm, "ctk=q8_0,ctv=turbo3")
    for layer in cache[:3]:
        for start in range(0, 8200, 820):
            layer.update_and_fetch(*(mx.random.normal((1, 3, 820, 64), key=mx.random.key(start)) for _ in "kv"))
        mx.eval(layer.state[-2:])
    held, said = stored_bytes(cache[:3]), sum(layer.k.coded_bytes + layer.v.coded_bytes for layer in cache[:3])
    assert said * 8 == 3 * 3 * 8200 * 64 * (8.5 + 3.25)
    assert said < held < 1.15 * said


@pytest.mark.parametrize("name", [*BUILT["mlx"], "minmax4:axis=channel", "nuq3:axis=token:outliers=0.02"])
def test_every_codec_serves_a_model_with_windows_and_wide_heads(gemma: Any, name: str) -> None:
    import mlx.core as mx

    from refract.mlx import make_prompt_cache

    ids = [2, *range(1000, 1039 + 100 * name.startswith("nuq"))]
    read = []
    for kv in ("f32", name):
        cache = make_prompt_cache(gemma, f"ctk={kv},ctv={kv}", working=0)
        gemma(mx.array([ids[:-2]]), cache=cache)
        read.append(np.array(gemma(mx.array([ids[-2:]]), cache=cache)[0, -1]))
    assert np.isfinite(read).all()
    assert (name == "f32") == bool((read[0] == read[1]).all())
    assert [layer.origin.window for layer in cache].count(0) == 3
    assert {layer.origin.window for layer in cache} == {0, 512}


def test_the_examples_of_the_documentation_run(
    smollm2_hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 3
    source = "\n".join(blocks).replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(smollm2_hf))
    assert str(smollm2_hf) in source
    names: dict[str, Any] = {}
    exec(source, names)
    assert "Paris" in capsys.readouterr().out
    assert type(names["again"][0]).__name__ == "CompressedKVCache"
    assert names["again"][0].offset > names["cache"][0].offset
    assert len(names["answers"].texts) == 2


def test_compression_survives_batches(smollm2_hf: Path) -> None:
    """What comes out of `batch_generate` is what went in: packed caches, of the tokens that were read."""
    from mlx_lm import batch_generate, load

    from refract.mlx import make_prompt_cache

    model, tokenizer = load(str(smollm2_hf))
    prompts = [tokenizer.encode(text) for text in ("The capital of France is", "One, two, three, four, five, six,")]
    kv = "ctk=q8_0,ctv=turbo4"
    caches = [make_prompt_cache(model, kv) for _ in prompts]
    answers = batch_generate(model, tokenizer, prompts, prompt_caches=caches, max_tokens=6, return_prompt_caches=True)
    assert "Paris" in answers.texts[0]
    assert "seven" in answers.texts[1]
    for prompt, cache in zip(prompts, answers.caches, strict=True):
        assert {type(layer).__name__ for layer in cache} == {"CompressedKVCache"}
        assert cache[0].offset == cache[-1].offset >= len(prompt) + 5
        assert cache[0].v.coded_bytes * 8 == (4 + 16 / 64) * 3 * cache[0].offset * 64
