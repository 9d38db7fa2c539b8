"""MLX: what a KL pass costs beside bare forward passes, what batching gains, and the KL ladder over 32 windows.

Ratios within one run, on the default model. `refract fetch --model smollm2` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from refract.backends.mlx.engine import MLXEngine
from refract.data.corpus import load_corpus
from refract.data.models import DEFAULT_MODEL, model_path
from refract.data.prompts import load_prompts
from refract.engine import LoadSpec, Session
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.run.cache import cache_folder
from refract.work import Base, CompareBase, Divergence, Generate, Generation, Request, Window, WriteBase

REFERENCE = "f16/f16"
# mean KL in nats of an independent prototype on other prose (2,048 tokens); comparable within a factor of 1.5
LADDER = {
    "q8_0/q8_0": 0.00022,
    "q8_0/turbo4": 0.0043,
    "q8_0/turbo3": 0.0177,
    "turbo4/turbo4": 0.0394,
    "turbo3/turbo3": 0.198,
    "turbo2/turbo2": 0.998,
}


def main() -> None:
    """Prints the three tables."""
    with TemporaryDirectory(prefix="refract-bench-") as folder:
        cache = cache_folder()
        model = str(model_path(cache, DEFAULT_MODEL))
        engine, blobs = MLXEngine(cache_dir=cache), BlobFolder(Path(folder))
        windows = _windows(engine, model, 32)
        bases = _cost_of_kl(engine, model, blobs, windows)
        _ladder(engine, model, blobs, bases)
        _batching(cache, model, blobs)


def _spec(model: str, name: str) -> LoadSpec:
    k, v = name.split("/")
    return LoadSpec(model=model, kv=parse_kv(f"ctk={k},ctv={v}"), max_tokens=2048)


def _windows(engine: MLXEngine, model: str, count: int) -> list[Window]:
    """Consecutive windows of 512 tokens of encyclopedic prose, the second half scored."""
    corpus = load_corpus(None)
    section = next(s for s in corpus.sections if s.category == "encyclopedic")
    ids = engine.tokenizer(model).encode(corpus.text[section.start : section.start + 512 * count * 6])
    return [Window(tokens=ids[i * 512 : (i + 1) * 512], start=257) for i in range(count)]


def _timed(session: Session, requests: Sequence[Request]) -> tuple[dict[Request, object], float]:
    started = perf_counter()
    answers: dict[Request, object] = dict(session.run(requests))
    return answers, perf_counter() - started


def _bare_pass(engine: MLXEngine, model: str, windows: Sequence[Window]) -> float:
    """Seconds of one pass of mlx-lm's own model and cache over the windows, logits of every position included."""
    engine.blas  # noqa: B018  # loads it before mlx
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    from refract.backends._gguf import read_gguf
    from refract.backends.mlx.gguf_model import load_gguf_model
    from refract.backends.mlx.lanes import Work, in_waves, make_lanes

    network, _ = load_gguf_model(read_gguf(Path(model)), mx.float32)

    def work(window: Window) -> Work[None]:
        yield network(mx.array([window.tokens[:-1]]), cache=[KVCache() for _ in network.layers])

    list(in_waves(make_lanes(), map(work, windows[:2])))
    started = perf_counter()
    list(in_waves(make_lanes(), map(work, windows)))
    return perf_counter() - started


def _cost_of_kl(
    engine: MLXEngine, model: str, blobs: BlobFolder, windows: Sequence[Window]
) -> dict[tuple[Window, ...], Base]:
    write = [WriteBase(windows=(window,), protocol="prefill") for window in windows]
    with engine.load(_spec(model, REFERENCE), blobs) as session:
        answers, reference_s = _timed(session, write)
        bases = {r.windows: a for r, a in answers.items() if isinstance(r, WriteBase) and isinstance(a, Base)}
        _, self_s = _timed(session, _comparisons(bases))
    bare_s = _bare_pass(engine, model, windows)
    print(f"KL over {len(windows)} windows: reference {reference_s:.1f} s, comparison {self_s:.1f} s")
    print(f"bare forward pass {bare_s:.1f} s; KL pass over two bare passes: {(reference_s + self_s) / bare_s / 2:.3f}")
    print("  (wanted: at most 1.15)\n")
    return bases


def _comparisons(bases: dict[tuple[Window, ...], Base]) -> list[CompareBase]:
    return [CompareBase(windows=w, protocol="prefill", base=b.blob) for w, b in bases.items()]


def _ladder(engine: MLXEngine, model: str, blobs: BlobFolder, bases: dict[tuple[Window, ...], Base]) -> None:
    print(f"{'K/V':<15}{'mean KL':>10}{'prototype':>11}{'ratio':>7}{'top-1 %':>9}{'bytes/token':>13}")
    for name, known in LADDER.items():
        with engine.load(_spec(model, name), blobs) as session:
            answers, _ = _timed(session, _comparisons(bases))
            size = session.effective_kv.bytes_per_token
        found = [a for a in answers.values() if isinstance(a, Divergence)]
        kl = float(np.concatenate([a.kl for a in found]).mean())
        top = 100 * float(np.concatenate([a.same_top for a in found]).mean())
        print(f"{name:<15}{kl:>10.5f}{known:>11.5f}{kl / known:>7.2f}{top:>9.1f}{size:>13.0f}")
    print()


def _batching(cache: Path, model: str, blobs: BlobFolder) -> None:
    tokenizer = MLXEngine(cache_dir=cache).tokenizer(model)
    prompts = [tokenizer.render(p.messages) for p in load_prompts(None).prompts]
    short = [p for p in prompts if len(p) < 200][:64]
    speeds = {}
    for batch, count in ((1, 6), (32, 64)):
        with MLXEngine({"batch": str(batch)}, cache).load(_spec(model, REFERENCE), blobs) as session:
            answers, seconds = _timed(session, [Generate(prompt=p, max_new_tokens=64) for p in short[:count]])
        tokens = sum(len(a.tokens) for a in answers.values() if isinstance(a, Generation))
        speeds[batch] = tokens / seconds
        print(f"decoding {count} prompts, {batch} rows a lane: {tokens / seconds:.0f} tokens/s, prefill included")
    print(f"batched over one by one (both use every core): {speeds[32] / speeds[1]:.1f}  (wanted: at least 2.5)")
