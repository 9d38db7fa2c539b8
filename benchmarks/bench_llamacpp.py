"""llama.cpp: 30 prompts of 64 new tokens and 8 windows of 512, reference and two candidates, on F16 weights.

The earlier tool takes 139 s for the reference and one candidate of the same work (two idle cores, `-t 2`) and loads the
model 62 times. `refract fetch --model smollm2` and `refract engines build-llamacpp` first.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from refract.axes.windows import cut_windows
from refract.backends.llamacpp.engine import LlamaCppEngine
from refract.backends.llamacpp.logits_file import scored_start
from refract.data.corpus import load_corpus
from refract.data.models import DEFAULT_MODEL, model_path
from refract.data.prompts import load_prompts
from refract.engine import LoadSpec
from refract.kv import parse_kv
from refract.run.blobs import BlobFolder
from refract.run.cache import cache_folder
from refract.work import Base, CompareBase, Divergence, Generate, Request, Window, WriteBase

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 30, 10, 64
CHUNKS, SIZE = 8, 512
REFERENCE, CANDIDATES = "f16/f16", ("q8_0/q4_0", "q8_0/q8_0")
EARLIER_S, WANTED_S, WANTED_EACH_S = 139.0, 70.0, 35.0


def main() -> None:
    """Prints the seconds of each side and of both together."""
    with TemporaryDirectory(prefix="refract-bench-") as name:
        cache, folder = cache_folder(), Path(name)
        engine, blobs = LlamaCppEngine(cache_dir=cache), BlobFolder(folder / "blobs")
        model = _f16(engine, model_path(cache, DEFAULT_MODEL), folder / "f16.gguf")
        prompts = _prompts(engine, model)
        write = [WriteBase(windows=(window,), protocol="prefill") for window in _windows(engine, model)]
        answers, first = _timed(engine, blobs, model, REFERENCE, [*prompts, *write])
        print(f"{REFERENCE:<12}{first:>7.1f} s")
        bases = {r.windows: a for r, a in answers.items() if isinstance(r, WriteBase) and isinstance(a, Base)}
        compare = [CompareBase(windows=w, protocol="prefill", base=b.blob) for w, b in bases.items()]
        for number, kind in enumerate(CANDIDATES):
            answers, seconds = _timed(engine, blobs, model, kind, [*prompts, *compare])
            kl = np.concatenate([a.kl for a in answers.values() if isinstance(a, Divergence)])
            print(f"{kind:<12}{seconds:>7.1f} s   mean KL {kl.mean():.5f}   (wanted: at most {WANTED_EACH_S:.0f} s)")
            if number == 0:
                both = first + seconds
                print(
                    f"both sides  {both:>7.1f} s   (wanted: at most {WANTED_S:.0f} s; earlier tool {EARLIER_S:.0f} s)"
                )


def _f16(engine: LlamaCppEngine, model: Path, target: Path) -> str:
    """The model in F16 weights, on which a KV format's own loss is not drowned by kernel noise."""
    quantize = engine.binaries.server.with_name("llama-quantize")
    command = [str(quantize), "--allow-requantize", str(model), str(target), "F16"]
    subprocess.run(command, check=True, capture_output=True)
    return str(target)


def _prompts(engine: LlamaCppEngine, model: str) -> list[Generate]:
    """Beginnings of prompts, as short as the earlier tool's, whose mean is seven words without a chat template."""
    tokenizer = engine.tokenizer(model)
    texts = [prompt.messages[-1].content for prompt in load_prompts(None).prompts[:PROMPTS]]
    return [Generate(prompt=tokenizer.encode(text)[:PROMPT_TOKENS], max_new_tokens=NEW_TOKENS) for text in texts]


def _windows(engine: LlamaCppEngine, model: str) -> list[Window]:
    cut = cut_windows(load_corpus(None), engine.tokenizer(model), count=CHUNKS, size=SIZE)
    return [Window(tokens=w.tokens, start=scored_start(SIZE)) for w in cut]


def _timed(
    engine: LlamaCppEngine, blobs: BlobFolder, model: str, kind: str, requests: Sequence[Request]
) -> tuple[dict[Request, object], float]:
    k, v = kind.split("/")
    longest = max(len(r.prompt) + r.max_new_tokens for r in requests if isinstance(r, Generate))
    spec = LoadSpec(model=model, kv=parse_kv(f"ctk={k},ctv={v}"), max_tokens=max(longest, SIZE))
    started = perf_counter()
    with engine.load(spec, blobs) as session:
        answers: dict[Request, object] = dict(session.run(requests))
    return answers, perf_counter() - started
