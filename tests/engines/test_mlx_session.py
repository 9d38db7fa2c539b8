"""A real model on real MLX: what every score rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.engine import LoadSpec
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.stats.paired import paired_ratio_difference
from refract.work import (
    Answer,
    CompareBase,
    Divergence,
    Failure,
    Generate,
    Generation,
    Message,
    Request,
    ScoreTokens,
    TokenScores,
    Window,
    WriteBase,
)

pytestmark = pytest.mark.usefixtures("mlx")

QUESTIONS = (
    "Explain why the sky is blue in two sentences.",
    "Write a Python function that reverses a string.",
    "List five rivers of Europe and say where each ends.",
    "Tell a short story about a lighthouse keeper and a storm.",
    "What is 17 times 23? Show your steps.",
)
LADDER = ("q8_0/q8_0", "q8_0/turbo4", "q8_0/turbo3", "turbo4/turbo4", "turbo3/turbo3", "turbo2/turbo2")


def kv(name: str) -> Any:
    k, v = name.split("/")
    return parse_kv(f"ctk={k},ctv={v}")


class Bench:
    """An engine, a model and a blob folder; `run` loads, answers and closes."""

    def __init__(self, model: Path, folder: Path) -> None:
        from refract.backends.mlx.engine import MLXEngine

        self.engine = MLXEngine(cache_dir=folder)
        self.model = str(model)
        self.blobs = BlobFolder(folder / "blobs")
        self.tokenizer = self.engine.tokenizer(self.model)

    def session(self, name: str, max_tokens: int = 2048) -> Any:
        return self.engine.load(LoadSpec(model=self.model, kv=kv(name), max_tokens=max_tokens), self.blobs)

    def run(self, name: str, requests: Sequence[Request]) -> dict[Request, Answer | Failure]:
        with self.session(name) as session:
            return dict(session.run(requests))

    def prompts(self, count: int = 5) -> list[tuple[int, ...]]:
        return [self.tokenizer.render([Message(role="user", content=q)]) for q in QUESTIONS[:count]]


@pytest.fixture(scope="module")
def bench(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(smollm2, tmp_path_factory.mktemp("mlx"))


@pytest.fixture(scope="module")
def windows(bench: Bench) -> list[Window]:
    from refract.data.corpus import load_corpus

    corpus = load_corpus(None)
    start = next(s.start for s in corpus.sections if s.category == "encyclopedic")
    ids = bench.tokenizer.encode(corpus.text[start : start + 16_000])
    return [Window(tokens=ids[i * 512 : (i + 1) * 512], start=257) for i in range(4)]


@pytest.fixture(scope="module")
def reference(bench: Bench, windows: list[Window]) -> dict[str, Any]:
    """The reference's generations with their bases, and the bases of the windows."""
    generations = [Generate(prompt=p, max_new_tokens=40, top_k=3, keep_base=True) for p in bench.prompts()]
    bases = [WriteBase(windows=(window,), protocol="prefill") for window in windows]
    answers = bench.run("f16/f16", [*generations, *bases])
    return {"generations": {r: answers[r] for r in generations}, "bases": {r: answers[r] for r in bases}}


def comparisons(reference: dict[str, Any], salt: str = "") -> list[CompareBase]:
    return [
        CompareBase(windows=request.windows, protocol="prefill", base=base.blob, salt=salt)
        for request, base in reference["bases"].items()
    ]


def along(reference: dict[str, Any]) -> list[CompareBase]:
    return [
        CompareBase(windows=(Window(tokens=r.prompt + a.tokens, start=len(r.prompt)),), protocol="decode", base=a.base)
        for r, a in reference["generations"].items()
    ]


def joined(answers: dict[Request, Any], name: str = "kl") -> Any:
    return np.concatenate([getattr(a, name) for a in answers.values() if isinstance(a, Divergence)])


def test_the_reference_against_itself_is_exactly_zero_in_both_protocols(bench: Bench, reference: Any) -> None:
    requests = [*comparisons(reference, salt="again"), *along(reference)]
    answers = bench.run("f16/f16", requests)
    assert len(answers) == len(requests)
    assert not joined(answers).any()
    assert joined(answers, "same_top").all()
    again = bench.run("f16/f16", [Generate(prompt=p, max_new_tokens=40, top_k=3, salt="x") for p in bench.prompts()])
    assert [a.tokens for a in again.values()] == [a.tokens for a in reference["generations"].values()]


def test_the_ladder_is_strictly_increasing_and_near_what_is_known(bench: Bench) -> None:
    """Over 8 windows of narrative prose, as the published figures: each step's paired interval lies above 0."""
    known = dict(zip(LADDER, (0.00022, 0.0043, 0.0177, 0.0394, 0.198, 0.998), strict=True))
    prose = narrative_windows(bench, 8)
    positions, names = [w.positions for w in prose], [str(i) for i in range(len(prose))]
    bases = bench.run("f16/f16", [WriteBase(windows=(window,), protocol="prefill") for window in prose])
    milder = [0.0] * len(prose)
    for name in LADDER:
        asked = {
            window: CompareBase(windows=(window,), protocol="prefill", base=base.blob)
            for (window,), base in ((request.windows, answer) for request, answer in bases.items())
        }
        answers = bench.run(name, list(asked.values()))
        sums = [float(answers[asked[window]].kl.astype(np.float64).sum()) for window in prose]
        step = paired_ratio_difference(sums, positions, milder, positions, clusters=names)
        value = sum(sums) / sum(positions)
        print(f"{name}: mean KL {value:.5f} nats, published {known[name]}, step [{step.low:.5f}, {step.high:.5f}]")
        assert step.low > 0.0
        assert known[name] / 1.5 < value < known[name] * 1.5
        milder = sums


def narrative_windows(bench: Bench, count: int) -> list[Window]:
    """Consecutive windows of 512 tokens from within the first work, their second half scored."""
    from refract.data.corpus import load_corpus

    corpus = load_corpus(None)
    start = next(s.start for s in corpus.sections if s.category == "narrative") + 20_000
    ids = bench.tokenizer.encode(corpus.text[start : start + 30_000])
    return [Window(tokens=ids[i * 512 : (i + 1) * 512], start=257) for i in range(count)]


def test_an_answer_depends_on_its_request_alone(bench: Bench) -> None:
    """Bits of hidden states, not only tokens: order, neighbours, count and slot change nothing."""
    requests = [Generate(prompt=p, max_new_tokens=24, top_k=5, keep_base=True) for p in bench.prompts()]
    with bench.session("turbo3/turbo3") as session:
        alone = {}
        for request in requests[:2]:
            alone |= dict(session.run([request]))
        together = dict(session.run(list(reversed(requests))))
        crowd = [Generate(prompt=p * 3, max_new_tokens=20) for p in bench.prompts()] * 1
        crowded = dict(session.run([*crowd, *requests]))
    for request in requests[:2]:
        for other in (together, crowded):
            assert other[request].tokens == alone[request].tokens
            assert other[request].base.sha256 == alone[request].base.sha256
            assert np.array_equal(other[request].listed.logprobs, alone[request].listed.logprobs)


def test_uncompressed_greedy_decoding_is_mlx_lms_own(bench: Bench) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    prompt = bench.prompts(1)[0]
    answer = bench.run("f32/f32", [Generate(prompt=prompt, max_new_tokens=32)]).popitem()[1]
    assert isinstance(answer, Generation)
    from refract.backends._gguf import read_gguf
    from refract.backends.mlx.gguf_model import load_gguf_model

    model, _ = load_gguf_model(read_gguf(Path(bench.model)), mx.float32)
    cache = [KVCache() for _ in model.layers]
    logits = model(mx.array([prompt]), cache=cache)
    tokens = []
    while len(tokens) < len(answer.tokens):
        tokens.append(int(mx.argmax(logits[0, -1])))
        logits = model(mx.array([[tokens[-1]]]), cache=cache)
    assert tuple(tokens) == answer.tokens


def test_kl_equals_an_independent_float64_computation(bench: Bench, windows: list[Window], reference: Any) -> None:
    """The same passes of 128 tokens through mlx-lm's model with our caches, the divergence in float64 numpy."""
    import mlx.core as mx

    from refract.backends._gguf import read_gguf
    from refract.backends.mlx.gguf_model import load_gguf_model
    from refract.backends.mlx.keeper import new_caches
    from refract.backends.mlx.load import layer_specs

    model, _ = load_gguf_model(read_gguf(Path(bench.model)), mx.float32)
    window = windows[0]
    logits = []
    for name in ("f16/f16", "q8_0/turbo3"):
        caches = new_caches(layer_specs(kv(name), 64, [None] * 30))
        tokens = window.tokens[:-1]
        parts = [model(mx.array([tokens[i : i + 128]]), cache=caches)[0] for i in range(0, len(tokens), 128)]
        logits.append(np.array(mx.concatenate(parts)[window.start - 1 :]).astype(np.float64))
    p, q = (
        x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True) for x in logits
    )
    expected = (np.exp(p) * (p - q)).sum(1)
    request = comparisons(reference)[0]
    found = bench.run("q8_0/turbo3", [request])[request]
    assert isinstance(found, Divergence)
    assert found.kl.mean() == pytest.approx(expected.mean(), abs=1e-6)
    assert np.abs(found.kl - expected).max() < 2e-5
    assert np.array_equal(found.same_top, p.argmax(1) == q.argmax(1))


def test_forced_scores_agree_with_what_generation_listed(bench: Bench, reference: Any) -> None:
    request, answer = next(iter(reference["generations"].items()))
    tokens = request.prompt + answer.tokens
    decode = ScoreTokens(tokens=tokens, start=len(request.prompt), top_k=3)
    chunked = ScoreTokens(tokens=tokens, start=len(request.prompt), top_k=3, step=64)
    answers = bench.run("f16/f16", [decode, chunked])
    scores = answers[decode]
    assert isinstance(scores, TokenScores)
    assert np.array_equal(scores.logprobs, answer.listed.logprobs[:, 0])
    assert scores.listed is not None
    assert np.array_equal(scores.listed.ids, answer.listed.ids)
    assert answers[chunked].logprobs == pytest.approx(scores.logprobs, abs=5e-3)


def test_decode_and_prefill_protocols_see_the_same_compression(bench: Bench, windows: list[Window]) -> None:
    """Compressed on write: a prefill pass reads what decoding reads, so the two protocols agree on the mean."""
    window = Window(tokens=windows[0].tokens[:160], start=80)
    means = {}
    for protocol in ("prefill", "decode"):
        base = bench.run("f16/f16", [WriteBase(windows=(window,), protocol=protocol)]).popitem()[1]
        compare = CompareBase(windows=(window,), protocol=protocol, base=base.blob)
        means[protocol] = float(joined(bench.run("q8_0/turbo2", [compare])).mean())
    assert means["prefill"] > 0.005
    assert means["decode"] == pytest.approx(means["prefill"], rel=0.5)


def test_what_cannot_be_answered_is_a_failure_and_the_rest_goes_on(bench: Bench) -> None:
    good = Generate(prompt=bench.prompts(1)[0], max_new_tokens=3)
    bad = Generate(prompt=(1, 10**6), max_new_tokens=3)
    long = Generate(prompt=(1,) * 3000, max_new_tokens=3)
    empty = Generate(prompt=(), max_new_tokens=3)
    answers = bench.run("f16/f16", [bad, good, long, empty])
    assert isinstance(answers[good], Generation)
    assert [answers[r].kind for r in (bad, long, empty)] == ["invalid-token", "too-long", "empty-prompt"]


@pytest.mark.parametrize(
    ("name", "size"), [("f16/f16", 23040), ("q8_0/q8_0", 12240), ("turbo4/turbo4", 6120), ("turbo2/turbo2", 3240)]
)
def test_bytes_per_token_are_those_of_the_caches(bench: Bench, name: str, size: int) -> None:
    with bench.session(name) as session:
        effective = session.effective_kv
    assert effective.bytes_per_token == size
    assert effective.layers == 30
    assert effective.layers_compressed == (0 if name.startswith("f16") else 30)


def test_codec_error_on_real_keys_and_values_follows_theory(bench: Bench) -> None:
    """Rotated real K and V are close to the Gaussian that Lloyd–Max codes are made for: 0.85 to 1.05 of its error."""
    import mlx.core as mx

    from refract.backends._gguf import read_gguf
    from refract.backends.mlx.codecs.turbo import Turbo
    from refract.backends.mlx.gguf_model import load_gguf_model
    from refract.backends.mlx.keeper import new_caches
    from refract.backends.mlx.load import layer_specs

    model, _ = load_gguf_model(read_gguf(Path(bench.model)), mx.float32)
    caches = new_caches(layer_specs(kv("f32/f32"), 64, [None] * 30))
    ids = bench.tokenizer.encode(" ".join(QUESTIONS) * 6)[:400]
    mx.eval(model(mx.array([ids]), cache=caches))
    theory = {2: 0.116514, 3: 0.032822, 4: 0.008878}  # matched scale at d = 64
    for bits, expected in theory.items():
        codec = Turbo(bits=bits, dim=64)
        ratios = []
        for cache in caches:
            for store in (cache.keys, cache.values):
                x = np.array(store[..., : cache.offset, :]).reshape(-1, 64).astype(np.float64)
                error = np.array(codec.roundtrip(mx.array(x.astype(np.float32)))) - x
                ratios.append((error**2).sum() / (x**2).sum() / expected)
        print(f"turbo{bits}: error over theory, per layer and side {min(ratios):.3f} to {max(ratios):.3f}")
        assert 0.85 <= np.mean(ratios) <= 1.05


def test_sliding_layers_are_compressed_and_counted(gemma3: Path, tmp_path: Path) -> None:
    bench = Bench(gemma3, tmp_path)
    text = bench.tokenizer.encode("The lighthouse stood on the cliff above the old harbour. " * 90, add_special=True)
    window = Window(tokens=text[:800], start=740)
    base = bench.run("f16/f16", [WriteBase(windows=(window,), protocol="prefill")]).popitem()[1]
    compare = CompareBase(windows=(window,), protocol="prefill", base=base.blob)
    assert not joined(bench.run("f16/f16", [compare])).any()
    with bench.session("turbo4/turbo4") as session:
        assert session.effective_kv.layers == session.effective_kv.layers_compressed == 18
        assert "15 layers attend to 512 tokens only" in session.effective_kv.notes[0]
        assert joined(dict(session.run([compare]))).mean() > 0.001
