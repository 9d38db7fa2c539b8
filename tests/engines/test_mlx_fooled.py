"""Real caches broken on purpose, on a real model and through the whole pipeline: none may look good."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from refract.axes.kld import Kld
from refract.axes.trajectory import Trajectory
from refract.data.corpus import Corpus, Section, load_corpus
from refract.data.prompts import Prompt, PromptSet
from refract.kv import parse_kv
from refract.results import CandidateResult
from refract.run.runner import run
from refract.run.spec import RunSpec
from refract.run.store import AnswerStore
from refract.work import Message

pytestmark = pytest.mark.usefixtures("mlx")

QUESTIONS = (
    "Explain why the sky is blue in two sentences.",
    "Name three rivers of Europe.",
    "Write one sentence about a lighthouse.",
    "What is a compass for?",
)
REFERENCE, NEAR, FAR = "ctk=f16,ctv=f16", "ctk=q8_0,ctv=q8_0", "ctk=turbo2,ctv=turbo2"
Read = Callable[[Any], Any]
"""What a broken cache gives back for the keys or values (B, H, n, D) that it holds."""


def prompt_set() -> PromptSet:
    prompts = tuple(
        Prompt(id=f"q{i}", category="qa", tier="default", messages=(Message(role="user", content=question),))
        for i, question in enumerate(QUESTIONS)
    )
    return PromptSet(name="four", sha256="0" * 64, prompts=prompts)


def short_corpus() -> Corpus:
    whole = load_corpus(None)
    start = next(s.start for s in whole.sections if s.category == "encyclopedic")
    text = whole.text[start : start + 6000]
    return Corpus(name="short", sha256="1" * 64, text=text, sections=(Section(category="", start=0, end=len(text)),))


class Bench:
    """One model; every candidate starts from a copy of the store that holds the reference's answers."""

    def __init__(self, model: Path, folder: Path) -> None:
        from refract.backends.mlx.engine import MLXEngine

        self.folder, self.engine = folder, MLXEngine({"batch": "4"}, cache_dir=folder)
        self.spec = RunSpec(
            model=str(model),
            reference=parse_kv(REFERENCE),
            candidates=(),
            axes=(Trajectory(), Kld(chunks=2, ctx=128)),
            prompts=prompt_set(),
            corpus=short_corpus(),
            n_predict=12,
            measure_floor=True,
        )
        with AnswerStore(folder / "reference") as store:
            self.floor = run(self.spec, self.engine, store).floor

    def candidate(self, kv: str) -> CandidateResult:
        own = self.folder / "own"
        shutil.copytree(self.folder / "reference", own)
        try:
            with AnswerStore(own) as store:
                found = run(replace(self.spec, candidates=(parse_kv(kv),), measure_floor=False), self.engine, store)
        finally:
            shutil.rmtree(own)
        assert found.loads == 1
        (result,) = found.candidates
        return result


@pytest.fixture(scope="module")
def bench(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(smollm2, tmp_path_factory.mktemp("fooled"))


def zeros(x: Any) -> Any:
    return x * 0


def nan(x: Any) -> Any:
    return x * float("nan")


def shifted_by_one(x: Any) -> Any:
    import mlx.core as mx

    return mx.concatenate([x[..., :1, :], x[..., :-1, :]], axis=2)


def without_the_first_four(x: Any) -> Any:
    import mlx.core as mx

    return mx.concatenate([x[..., :4, :] * 0, x[..., 4:, :]], axis=2)


def every_second_only(x: Any) -> Any:
    import mlx.core as mx

    return x[..., mx.arange(x.shape[2]) // 2 * 2, :]


def two_heads_swapped(x: Any) -> Any:
    import mlx.core as mx

    return x[:, mx.array([1, 0, *range(2, x.shape[1])])]


def reading(patch: pytest.MonkeyPatch, read: Read, *, keys: bool = True, values: bool = True) -> None:
    """Breaks what both kinds of cache give back, in prefill and in decoding."""
    from refract.backends.mlx.cache import RowCache, SequenceCache

    for kind in (SequenceCache, RowCache):
        original = kind.update_and_fetch

        def fetch(self: Any, k: Any, v: Any, original: Any = original) -> tuple[Any, Any]:
            held_k, held_v = original(self, k, v)
            return read(held_k) if keys else held_k, read(held_v) if values else held_v

        patch.setattr(kind, "update_and_fetch", fetch)


def compressing_only_in(patch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Caches of other kinds store 16 bits, whatever their codecs say."""
    from refract.backends.mlx import cache
    from refract.backends.mlx.codecs.dense import Dense
    from refract.backends.mlx.sides import SideSpec

    f16 = SideSpec(codec=Dense(name="f16"))
    for name in {"SequenceCache", "RowCache"} - set(kinds):
        kind = getattr(cache, name)
        original = kind.update_and_fetch

        def fetch(self: Any, k: Any, v: Any, original: Any = original) -> Any:
            sides = (self._k, self._v)
            own = [side.spec for side in sides]
            try:
                for side in sides:
                    side.spec = f16
                return original(self, k, v)
            finally:
                for side, spec in zip(sides, own, strict=True):
                    side.spec = spec

        patch.setattr(kind, "update_and_fetch", fetch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    kv: str = NEAR
    seen_by: tuple[str, ...] = ("trajectory", "kld")
    says: str = "nats apart"


CASES = [
    Broken(name="zeros", apply=lambda patch: reading(patch, zeros)),
    Broken(name="values-are-zeros", apply=lambda patch: reading(patch, zeros, keys=False)),
    Broken(name="NaN", apply=lambda patch: reading(patch, nan), says="kld failed: .* not finite"),
    Broken(name="shifted-by-one", apply=lambda patch: reading(patch, shifted_by_one), seen_by=("trajectory",)),
    Broken(name="first-four-lost", apply=lambda patch: reading(patch, without_the_first_four), seen_by=("trajectory",)),
    Broken(name="every-second-only", apply=lambda patch: reading(patch, every_second_only)),
    Broken(name="two-heads-swapped", apply=lambda patch: reading(patch, two_heads_swapped)),
    Broken(
        name="only-in-decode",
        apply=lambda patch: compressing_only_in(patch, "RowCache"),
        kv=FAR,
        seen_by=("kld",),
        says="kld not exercised: every divergence in prefill protocol is exactly 0",
    ),
    Broken(
        name="not-at-all",
        apply=compressing_only_in,
        says="not exercised: .* equal the reference's bit for bit",
    ),
]


def summary(name: str, result: CandidateResult) -> str:
    cells = [f"{a.axis} {a.status if a.score is None else round(a.score.value, 1)}" for a in result.axes]
    kld = next(axis for axis in result.axes if axis.axis == "kld").statistics
    means = [getattr(kld.get(key), "value", None) for key in ("mean_kl_nats", "trajectory_mean_kl_nats")]
    return f"{name:20} {' | '.join(cells)} | {result.composite.band} | mean KL in text and along answers {means}"


def test_the_floor_is_exact_and_a_healthy_candidate_passes(bench: Bench) -> None:
    """Without it the rest would mean nothing."""
    assert bench.floor is not None
    assert [axis.score and axis.score.value for axis in bench.floor.axes] == [100.0, 100.0]
    result = bench.candidate(NEAR)
    print(summary("healthy", result))
    assert result.composite.band in ("PASS", "EXCELLENT")
    assert [axis.status for axis in result.axes] == ["ok", "ok"]


@pytest.mark.parametrize("fault", CASES, ids=lambda fault: fault.name)
def test_a_broken_cache_never_looks_good(bench: Bench, fault: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refract.backends.mlx.probe.verify", lambda caches: None)  # it would refuse most of them
    fault.apply(monkeypatch)
    result = bench.candidate(fault.kv)
    print(summary(fault.name, result))
    for axis in result.axes:
        if axis.axis in fault.seen_by:
            assert axis.status != "ok" or axis.score is None or axis.score.value < 80.0, summary(fault.name, result)
    assert result.composite.band not in ("PASS", "EXCELLENT")
    assert re.search(fault.says, "\n".join(result.findings)), result.findings
