"""Eviction, selection and sparse reads on a real model: what they hold and read, against attention masked by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.cli import main
from refract.data.corpus import load_corpus
from refract.errors import KVUnsupportedError
from refract.kv import parse_kv

pytestmark = pytest.mark.usefixtures("mlx")

LENGTH, START, SINK, EVERY = 200, 150, 4, 32
RECENCY = f"ctk=f32,ctv=f32,evict=recency:keep=0.5:sink={SINK}"


class Loaded:
    """SmolLM2 with what a configuration attaches to it."""

    def __init__(self, path: Path, kv: str, chunk: int = 48) -> None:
        import mlx.core as mx

        from refract.backends._gguf import read_gguf
        from refract.backends.mlx.gguf_model import load_gguf_model
        from refract.backends.mlx.lanes import make_lanes
        from refract.backends.mlx.load import layer_specs
        from refract.backends.mlx.model import layer_windows, split_model
        from refract.backends.mlx.partial import attach

        self.split = split_model(load_gguf_model(read_gguf(path), mx.float32)[0])
        config, dim = parse_kv(kv), self.split.layers[0].self_attn.rope.dims
        specs = layer_specs(config, dim, layer_windows(self.split.cache_kinds), self.split.layers)
        self.partial = attach(config, self.split, specs, dim)
        self.lanes, self.chunk = make_lanes(), chunk

    def read(self, tokens: Sequence[int], start: int) -> Any:
        """Hidden states that predict tokens[start:], in passes."""
        from refract.backends.mlx.forward import hidden_before
        from refract.backends.mlx.hidden import to_numpy
        from refract.backends.mlx.lanes import in_waves

        work = hidden_before(self.split, self.partial.keeper, tuple(tokens), start, self.chunk)
        (found,) = in_waves(self.lanes, [work])
        return to_numpy(found)

    def decoded(self, texts: Sequence[tuple[Sequence[int], int]], batch: int = 4) -> list[Any]:
        """The same of several (tokens, start), token by token and together."""
        from refract.backends.mlx.decode import decode
        from refract.backends.mlx.tracks import ForcedTrack

        tracks = [ForcedTrack(number, tuple(tokens), start) for number, (tokens, start) in enumerate(texts)]
        for _ in decode(self.split, self.partial.keeper, tracks, lanes=self.lanes[:1], batch=batch, chunk=self.chunk):
            pass
        return [np.stack(track.hidden) for track in tracks]


@pytest.fixture(scope="module")
def text(smollm2: Path) -> tuple[int, ...]:
    """Tokens of narrative prose."""
    from refract.backends._tokenizer import load_tokenizer

    corpus = load_corpus(None)
    start = next(section.start for section in corpus.sections if section.category == "narrative")
    return tuple(load_tokenizer(smollm2, None).encode(corpus.text[start : start + 8000]))


@pytest.fixture(scope="module")
def plain(smollm2: Path) -> Loaded:
    return Loaded(smollm2, "ctk=f32,ctv=f32")


def masked_by_hand(plain: Loaded, tokens: Sequence[int], passes: Sequence[tuple[int, int]]) -> Any:
    """All hidden states (n, width) in one pass, whose mask is what recency holds when each token is read."""
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    from refract.backends.mlx.hidden import to_numpy

    allowed, held = np.zeros((len(tokens), len(tokens)), np.bool_), list[int]()
    for first, end in passes:
        for place in range(first, end):
            allowed[place, held] = True
            allowed[place, first : place + 1] = True
        held += range(first, end)
        if end % EVERY == 0 and (excess := len(held) - ceil(0.5 * end)) > 0:
            held = [*held[:SINK], *held[SINK + excess :]]

    class Masked(KVCache):  # type: ignore[misc]  # engines are typed as Any
        def make_mask(self, *_: Any, **__: Any) -> Any:
            return mx.array(allowed)

    return to_numpy(plain.split.trunk(mx.array([list(tokens)]), cache=[Masked() for _ in plain.split.layers])[0])


def passes_of(length: int, chunk: int) -> list[tuple[int, int]]:
    """Passes of up to `chunk` tokens that end where eviction may act."""
    ends = sorted({*range(0, length, EVERY), length})
    return [(first, min(first + chunk, end)) for start, end in pairwise(ends) for first in range(start, end, chunk)]


def test_passes_with_eviction_equal_attention_masked_by_hand(
    smollm2: Path, plain: Loaded, text: tuple[int, ...]
) -> None:
    tokens = text[:LENGTH]
    for chunk in (20, 48):
        found = Loaded(smollm2, RECENCY, chunk).read(tokens, 1)
        wanted = masked_by_hand(plain, tokens, passes_of(LENGTH - 1, chunk))[: LENGTH - 1]
        assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()
    everything = plain.read(tokens, 1)
    assert np.abs(everything - wanted).max() > 0.05 * np.abs(wanted).max()


def test_decoding_with_eviction_equals_attention_masked_by_hand(
    smollm2: Path, plain: Loaded, text: tuple[int, ...]
) -> None:
    tokens = text[:LENGTH]
    (found,) = Loaded(smollm2, RECENCY).decoded([(tokens, START)])
    passes = passes_of(START, 48) + [(place, place + 1) for place in range(START, LENGTH - 1)]
    wanted = masked_by_hand(plain, tokens, passes)[START - 1 : LENGTH - 1]
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("evict", ["recency:keep=0.5", "random:keep=0.5", "triattention:keep=0.5:every=16:warmup=32"])
def test_rows_are_evicted_from_as_if_they_were_alone(smollm2: Path, text: tuple[int, ...], evict: str) -> None:
    loaded = Loaded(smollm2, f"ctk=q8_0,ctv=turbo4,evict={evict}{':prefix=8:window=8' if 'tri' in evict else ''}")
    texts = [(text[:120], 90), (text[300:380], 40), (text[500:560], 50)]
    together = loaded.decoded(texts)
    for own, found in zip(texts, together, strict=True):
        assert np.array_equal(loaded.decoded([own])[0], found)


@pytest.mark.parametrize(
    "kv",
    [
        "ctk=f32,ctv=f32,evict=recency:budget=4096",
        "ctk=f32,ctv=f32,evict=random:budget=4096",
        "ctk=f32,ctv=f32,evict=triattention:budget=4096",
        "ctk=f32,ctv=f32,sparsev=1e-30",
        "ctk=f32,ctv=f32,select=block:ratio=0.999",
    ],
)
def test_what_takes_nothing_away_changes_nothing(smollm2: Path, plain: Loaded, text: tuple[int, ...], kv: str) -> None:
    tokens = text[:LENGTH]
    (found,), (wanted,) = Loaded(smollm2, kv).decoded([(tokens, START)]), plain.decoded([(tokens, START)])
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_reading_less_moves_the_model_further(smollm2: Path, plain: Loaded, text: tuple[int, ...]) -> None:
    tokens = text[:400]
    (wanted,) = plain.decoded([(tokens, 360)])
    for milder, harder in (
        ("select=block:size=16:ratio=0.5", "select=block:size=16:ratio=0.1:recent=1"),
        ("sparsev=0.0001", "sparsev=0.05"),
        ("evict=recency:keep=0.9", "evict=recency:keep=0.3"),
    ):
        errors = []
        for part in (milder, harder):
            (found,) = Loaded(smollm2, f"ctk=f32,ctv=f32,{part}").decoded([(tokens, 360)])
            errors.append(float(np.abs(found - wanted).mean()))
        assert 0.0 < errors[0] < errors[1]


# How much attention what is held would have got.


def mass_held(plain: Loaded, tokens: Sequence[int], seen: int, held: Sequence[int]) -> float:
    """The mean attention that the tokens after `seen` pay to the `held` of those before, of all they pay to these."""
    import mlx.core as mx

    from refract.backends.mlx.attention import redirect
    from refract.backends.mlx.keeper import new_caches

    shares: list[float] = []
    from mlx_lm.models.base import scaled_dot_product_attention

    def reader(queries: Any, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None) -> Any:
        if keys.shape[2] > seen:
            shape = (1, keys.shape[1], -1, queries.shape[2], queries.shape[3])
            scores = scale * (queries.reshape(shape) @ keys[:, :, None].swapaxes(-1, -2))[..., :seen]
            weights = mx.softmax(scores, axis=-1)
            shares.append(float(weights[..., mx.array(held)].sum(axis=-1).mean()))
        return scaled_dot_product_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

    kinds = [type(layer.self_attn) for layer in plain.split.layers]
    redirect(plain.split.layers, reader)
    try:
        caches = new_caches(plain.partial.keeper.specs)
        for part in (tokens[:seen], tokens[seen:]):
            mx.eval(plain.split.trunk(mx.array([list(part)]), cache=caches))
    finally:
        for layer, kind in zip(plain.split.layers, kinds, strict=True):
            layer.self_attn.__class__ = kind
    return float(np.mean(shares))


def test_triattention_holds_most_of_the_attention_and_its_fork_does_not(
    smollm2: Path, plain: Loaded, text: tuple[int, ...]
) -> None:
    """At half of 768 tokens, over the 32 tokens after them; the newest 32 and the first token are held by all."""
    import mlx.core as mx

    seen, found = 768, {}
    options = "keep=0.5:window=32:prefix=1:every=128:warmup=768"
    for name, evict in {
        "paper": f"triattention:{options}",
        "fork": f"triattention:{options}:order=fork",
        "recency": "recency:keep=0.5:sink=1",
        "random": "random:keep=0.5",
    }.items():
        loaded = Loaded(smollm2, f"ctk=f32,ctv=f32,evict={evict}", chunk=128)
        sequence: Any = loaded.partial.keeper.sequence(text[:seen])
        start = 0
        while start < seen:
            end = min(sequence.pass_end(start, 128), seen)
            mx.eval(loaded.split.trunk(mx.array([list(text[start:end])]), cache=sequence.caches))
            sequence.passed(end - start)
            start = end
        held = sequence.tenant.positions.tolist()
        assert len(held) == seen // 2
        found[name] = mass_held(plain, text[: seen + 32], seen, held)
    print({name: round(mass, 3) for name, mass in found.items()})
    assert found["paper"] > 0.8
    assert found["paper"] > max(found["recency"], found["random"])
    assert found["fork"] < min(found["paper"], found["recency"])


# Whole runs.


def test_layers_with_a_sliding_window_are_left_alone(gemma3: Path) -> None:
    loaded = Loaded(gemma3, "ctk=q8_0,ctv=q8_0,evict=recency:keep=0.5")
    sequence: Any = loaded.partial.keeper.sequence((1,))
    windows = [spec.window for spec in loaded.partial.keeper.specs]
    assert [type(cache).__name__ for cache in sequence.caches] == [
        "HeldSequence" if window is None else "SequenceCache" for window in windows
    ]
    tokens = tuple(range(100, 260))
    assert np.isfinite(loaded.decoded([(tokens, 140)])[0]).all()


def test_a_run_says_what_is_held_and_reads_in_decode_protocol(smollm2: Path, tmp_path: Path) -> None:
    words = ["score", "--model", str(smollm2), "--axes", "kld", "--chunks", "2", "--ctx", "128"]
    words += ["--candidate", "ctk=f16,ctv=f16,evict=recency:keep=0.5"]
    words += ["--candidate", "ctk=q8_0,ctv=q8_0,sparsev=1e-4,select=block:size=16:ratio=0.5"]
    words += ["--no-explain", "--no-control", "--progress", "none", "--cache-dir", str(tmp_path)]
    assert main([*words, "--json-out", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    whole = report["reference"]["effective"]["bytes_per_token"]
    evicted, partly = report["candidates"]
    assert evicted["effective"]["bytes_per_token"] == whole / 2
    assert "30 layers hold 50% of the tokens seen, at their true positions" in " ".join(evicted["effective"]["notes"])
    assert "of the attention weights are below 0.0001" in " ".join(partly["effective"]["notes"])
    assert "of the keys are read when a token is decoded" in " ".join(partly["effective"]["notes"])
    for candidate in report["candidates"]:
        kld = next(axis for axis in candidate["axes"] if axis["axis"] == "kld")
        assert (kld["protocol"], kld["estimator"]) == ("decode", "kl-exact")
        assert kld["statistics"]["mean_kl_nats"]["value"] > 0.0


@pytest.mark.parametrize(
    "kv",
    [
        "ctk=q8_0,ctv=q8_0,sink=4,evict=recency",
        "ctk=turbo4,ctv=q8_0,prerope=1,evict=random",
        "ctk=minmax2:axis=channel,ctv=minmax2,evict=recency",
    ],
)
def test_what_depends_on_other_tokens_is_refused_with_eviction(smollm2: Path, kv: str) -> None:
    from refract.backends.mlx.engine import MLXEngine

    with pytest.raises(KVUnsupportedError, match="evict"):
        MLXEngine().check_kv(str(smollm2), parse_kv(kv))
