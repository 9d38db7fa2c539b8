"""What vLLM or SGLang must show on this machine's own device: PASS or FAIL for each claim, and one for all.

    python benchmarks/gpu_check.py vllm --model DIR --python PYTHON_THAT_HAS_VLLM

The engine is started once for each KV type, one after the other. On processors the types that need a GPU are skipped,
and what is left is the CPU subset. Exit status 0 means that nothing failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from refract.axes.windows import cut_windows
from refract.backends import load_engine
from refract.data.corpus import load_corpus
from refract.engine import Blobs, Capability, Engine, LoadSpec, Session
from refract.errors import EngineError, KVUnsupportedError, RefractError
from refract.kv import KVConfig, parse_kv
from refract.run.blobs import BlobFolder
from refract.run.cache import cache_folder
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    EffectiveKV,
    Generate,
    Generation,
    Message,
    Protocol,
    Request,
    TokenIds,
    Window,
    WriteBase,
)

A = TypeVar("A", bound=Answer)

REFERENCE = "ctk=f16,ctv=f16"
FP8 = ("ctk=fp8_e4m3,ctv=fp8_e4m3", "ctk=fp8_e5m2,ctv=fp8_e5m2")
# TurboQuant as vLLM has it, which needs a GPU; of dense models it spares the first and last two layers itself
TURBO = tuple(
    f"{pair},boundary=2"
    for pair in ("ctk=fp8_e4m3,ctv=turbo4", "ctk=turbo4,ctv=turbo4", "ctk=turbo3,ctv=turbo4", "ctk=turbo3,ctv=turbo3")
)
CANDIDATES: Mapping[str, tuple[str, ...]] = {"vllm": (*FP8, *TURBO), "sglang": FP8}
PROMPTS = ("Name three rivers in Europe.", "Why is the sky blue?", "Count from one to twenty in words.")
NEW_TOKENS = 24
LEAST_KL = 1e-5  # nats; what a lossy cache moves at the very least
BLIND = 100.0  # a pass that sees so many times less than another has not read the compressed cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One KV type: what was allocated, what was written, and its divergence in each protocol."""

    effective: EffectiveKV
    generations: tuple[Generation, ...]
    divergences: Mapping[Protocol, Divergence]

    @property
    def decode(self) -> float:
        """Mean KL in nats, token by token."""
        return float(self.divergences["decode"].kl.mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the output; `ok` is None for what could not be checked here."""

    name: str
    ok: bool | None
    found: str

    def __str__(self) -> str:
        word = {True: "PASS", False: "FAIL", None: "SKIP"}[self.ok]
        return f"{word}  {self.name}: {self.found}"


def main(words: Sequence[str] | None = None) -> int:
    """Checks the engine that is named; 0 when nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(CANDIDATES))
    parser.add_argument("--model", required=True, help="a Hugging Face model directory or name")
    parser.add_argument("--python", help="the interpreter that has the engine (default: this one)")
    parser.add_argument("--engine-arg", action="append", default=[], metavar="KEY=VALUE", help="as for refract score")
    parser.add_argument("--windows", type=int, default=4, help="windows of text (default: 4)")
    parser.add_argument("--ctx", type=int, default=256, help="tokens in one, its second half scored (default: 256)")
    args = parser.parse_args(words)
    lines = list(_printed(_check(args.engine, args)))
    failed = sum(line.ok is False for line in lines)
    skipped = sum(line.ok is None for line in lines)
    print(f"{'FAIL' if failed else 'PASS'}  {len(lines) - skipped} checks, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def _printed(lines: Iterator[Line]) -> Iterator[Line]:
    for line in lines:
        print(line, flush=True)
        yield line


def _check(name: str, args: argparse.Namespace) -> Iterator[Line]:
    options = dict(pair.split("=", 1) for pair in args.engine_arg)
    options |= {"python": args.python} if args.python else {}
    options |= {"launch": "1"} if name == "sglang" else {}
    try:
        engine = load_engine(name, options, cache_folder())
        with TemporaryDirectory(prefix="refract-check-") as folder:
            yield from check_engine(engine, args.model, BlobFolder(Path(folder)), args.windows, args.ctx)
    except RefractError as error:
        yield Line(name=name, ok=False, found=f"{error.message} ({error.hint or 'no hint'})")


def check_engine(engine: Engine, model: str, blobs: Blobs, count: int, ctx: int) -> Iterator[Line]:
    """A line for every claim about the engine, as soon as it is known."""
    work = _work(engine, model, blobs, count, ctx)
    reference, bases = work.reference()
    yield from judge_reference(engine.name, reference)
    found: dict[str, Measured] = {}
    for text in CANDIDATES[engine.name]:
        kv = parse_kv(text)
        try:
            engine.check_kv(model, kv)
        except KVUnsupportedError as error:
            yield Line(name=f"{engine.name} {text}", ok=None, found=error.message)
            continue
        found[text] = work.candidate(kv, bases)
        yield from judge_candidate(engine.name, kv, reference, found[text])
    if found.keys() >= set(FP8):
        first, second = (found[text].decode for text in FP8)
        yield Line(name=f"{engine.name} e4m3 < e5m2", ok=first < second, found=f"{first:.5f} and {second:.5f} nats")


def judge_reference(name: str, reference: Measured) -> Iterator[Line]:
    """Whether the reference is the reference: not compressed, and exactly 0 nats from itself."""
    effective = reference.effective
    kept = f"K {effective.k}, V {effective.v}, {effective.bytes_per_token:,.0f} bytes per token"
    yield Line(name=f"{name} reference", ok=effective.layers_compressed == 0, found=kept)
    for protocol, divergence in reference.divergences.items():
        worst = float(np.abs(divergence.kl).max())
        yield Line(
            name=f"{name} reference against itself, {protocol}",
            ok=worst == 0.0,
            found=f"at most {worst:.2g} nats over {len(divergence)} positions",
        )
    again = len(reference.generations) // 2
    same = sum(a.tokens == b.tokens for a, b in zip(reference.generations, reference.generations[again:], strict=False))
    yield Line(name=f"{name} greedy text twice", ok=same == again, found=f"{same} of {again} the same")


def judge_candidate(name: str, kv: KVConfig, reference: Measured, candidate: Measured) -> Iterator[Line]:
    """Whether what was asked for was allocated, and every path that is scored reads it."""
    effective, label = candidate.effective, f"{name} {kv}"
    compressed = f"{effective.layers_compressed} of {effective.layers} layers"
    smaller = 0.0 < effective.bytes_per_token < reference.effective.bytes_per_token
    yield Line(
        name=f"{label} requested = effective",
        ok=effective.layers_compressed > 0 and smaller,
        found=f"K {effective.k}, V {effective.v}, {compressed}, {effective.bytes_per_token:,.0f} bytes per token",
    )
    moved = candidate.divergences["decode"].kl
    yield Line(
        name=f"{label} decode reads the compressed cache",
        ok=bool(np.isfinite(moved).all()) and candidate.decode > LEAST_KL,
        found=f"mean KL {candidate.decode:.5f} nats over {len(moved)} positions",
    )
    for protocol, divergence in candidate.divergences.items():
        mean = float(divergence.kl.mean())
        if protocol != "decode":
            sees = mean * BLIND > candidate.decode
            yield Line(name=f"{label} {protocol} is not blind", ok=sees, found=f"mean KL {mean:.5f} nats")


@dataclass(frozen=True, slots=True)
class _Work:
    """The same requests for every KV type."""

    engine: Engine
    model: str
    blobs: Blobs
    windows: tuple[Window, ...]
    prompts: tuple[TokenIds, ...]
    protocols: tuple[Protocol, ...]

    def reference(self) -> tuple[Measured, dict[Protocol, Base]]:
        """The reference measured against itself, every text twice, and what candidates are compared with."""
        with self._session(parse_kv(REFERENCE)) as session:
            writes = {protocol: WriteBase(windows=self.windows, protocol=protocol) for protocol in self.protocols}
            found = _answers(session, list(writes.values()), Base)
            bases = {protocol: found[request] for protocol, request in writes.items()}
            return self._measured(session, bases, ("", "again")), bases

    def candidate(self, kv: KVConfig, bases: Mapping[Protocol, Base]) -> Measured:
        """A candidate measured against the reference."""
        with self._session(kv) as session:
            return self._measured(session, bases, ("",))

    def _session(self, kv: KVConfig) -> AbstractContextManager[Session]:
        most = max(len(tokens) for tokens in (*self.prompts, *(window.tokens for window in self.windows)))
        return self.engine.load(LoadSpec(model=self.model, kv=kv, max_tokens=most + NEW_TOKENS), self.blobs)

    def _measured(self, session: Session, bases: Mapping[Protocol, Base], salts: Sequence[str]) -> Measured:
        texts = [Generate(prompt=p, max_new_tokens=NEW_TOKENS, salt=salt) for salt in salts for p in self.prompts]
        compared = {
            protocol: CompareBase(windows=self.windows, protocol=protocol, base=base.blob)
            for protocol, base in bases.items()
        }
        generated = _answers(session, texts, Generation)
        divergences = _answers(session, list(compared.values()), Divergence)
        return Measured(
            effective=session.effective_kv,
            generations=tuple(generated[request] for request in texts),
            divergences={protocol: divergences[request] for protocol, request in compared.items()},
        )


def _work(engine: Engine, model: str, blobs: Blobs, count: int, ctx: int) -> _Work:
    tokenizer, kv = engine.tokenizer(model), parse_kv(REFERENCE)
    engine.check_kv(model, kv)
    cut = cut_windows(load_corpus(None), tokenizer, count=count, size=ctx)
    passes: tuple[Protocol, ...] = ("prefill",) if Capability.KL_PREFILL in engine.capabilities(kv) else ()
    return _Work(
        engine=engine,
        model=model,
        blobs=blobs,
        windows=tuple(Window(tokens=window.tokens, start=ctx // 2) for window in cut),
        prompts=tuple(tokenizer.render([Message(role="user", content=text)]) for text in PROMPTS),
        protocols=("decode", *passes),
    )


def _answers(session: Session, requests: Sequence[Request], kind: type[A]) -> dict[Request, A]:
    """The answers. Raises: EngineError for one that failed."""
    found: dict[Request, A] = {}
    for request, answer in session.run(requests):
        if not isinstance(answer, kind):
            raise EngineError(f"{type(request).__name__} was not answered: {answer}")
        found[request] = answer
    return found


if __name__ == "__main__":
    sys.exit(main())
