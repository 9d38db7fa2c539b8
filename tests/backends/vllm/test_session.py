"""Requests as vLLM's jobs, with a worker that computes nothing but remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refract.backends._hidden import Hidden
from refract.backends.vllm.session import Job, VLLMSession, jobs_of
from refract.errors import EngineError
from refract.run.blobs import BlobFolder
from refract.work import (
    Answer,
    Base,
    CompareBase,
    Divergence,
    EffectiveKV,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenScores,
    Window,
    WriteBase,
)

VOCABULARY, WIDTH, EOS = 40, 3, 2
EFFECTIVE = EffectiveKV(k="f16", v="f16", layers=1, layers_compressed=0, bytes_per_token=4.0)
HEAD = np.random.default_rng(0).normal(size=(WIDTH, VOCABULARY)).astype(np.float32)


class FakeWorker:
    """States are a function of position; answers are 7, 7, …, then the end of the sequence after `ends` tokens."""

    def __init__(self, *, noise: float = 0.0, ends: int = 99, lose: int = 0, wrong: bool = False) -> None:
        self.noise, self.ends, self.lose, self.wrong = noise, ends, lose, wrong
        self.jobs: list[Mapping[str, Any]] = []
        self.blocks: list[int] = []

    def add(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        self.jobs += jobs

    def next_done(self) -> tuple[str, tuple[int, ...], Hidden | None]:
        job = self.jobs.pop()  # the last comes first
        count = min(job["max_tokens"], self.ends)
        tokens = tuple(job["forced"]) or (*([7] * (count - 1)), EOS if count == self.ends else 7)
        if self.wrong:
            tokens = (9,) * len(tokens)
        if job["keep"] is None:
            return job["id"], tokens, None
        first, last = job["keep"]
        last = min(last, first + len(tokens)) if job["max_tokens"] > 1 else last
        places = np.arange(first, last - self.lose, dtype=np.float32)[:, None]
        states = np.concatenate([np.sin(places + i) for i in range(WIDTH)], axis=1) + self.noise
        return job["id"], tokens, states

    def logits(self, hidden: Hidden) -> Hidden:
        self.blocks.append(len(hidden))
        return np.asarray(hidden @ HEAD, np.float32)


def session(worker: FakeWorker, folder: Path) -> VLLMSession:
    return VLLMSession(
        worker,  # type: ignore[arg-type]
        blobs=BlobFolder(folder),
        effective_kv=EFFECTIVE,
        eos_ids=frozenset({EOS}),
        vocab_size=VOCABULARY,
        max_tokens=2000,
        prefill=True,
    )


def ask(worker: FakeWorker, folder: Path, *requests: Request) -> list[Answer | Failure]:
    found = dict(session(worker, folder).run(requests))
    return [found[request] for request in requests]


def test_which_positions_predict_what() -> None:
    """Position i predicts token i + 1: kept are start − 1 … n − 2, whichever way the text is read."""
    window = Window(tokens=tuple(range(10)), start=4)
    base = WriteBase(windows=(window,), protocol="prefill")
    assert jobs_of(base, prefill=True) == (Job(prompt=tuple(range(9)), max_tokens=1, keep=(3, 9)),)
    (decoded,) = jobs_of(WriteBase(windows=(window,), protocol="decode"), prefill=True)
    assert decoded == Job(prompt=(0, 1, 2, 3), max_tokens=6, forced=(4, 5, 6, 7, 8, 9), keep=(3, 9))
    score = ScoreTokens(tokens=window.tokens, start=4, top_k=0, step=8)
    assert jobs_of(score, prefill=True)[0].forced == ()
    assert jobs_of(score, prefill=False) == (decoded,)  # a pass over the prompt would not read the cache
    assert jobs_of(Generate(prompt=(1, 2), max_new_tokens=5), prefill=True)[0].keep is None
    assert jobs_of(Generate(prompt=(1, 2), max_new_tokens=5, top_k=1), prefill=True)[0].keep == (1, 6)


def test_the_same_states_do_not_diverge_and_others_do(tmp_path: Path) -> None:
    windows = (Window(tokens=tuple(range(30)), start=4), Window(tokens=tuple(range(5, 25)), start=1))
    (base,) = ask(FakeWorker(), tmp_path, WriteBase(windows=windows, protocol="decode"))
    assert isinstance(base, Base)
    request = CompareBase(windows=windows, protocol="decode", base=base.blob)
    (same,), (other,) = ask(FakeWorker(), tmp_path, request), ask(FakeWorker(noise=0.3), tmp_path, request)
    assert isinstance(same, Divergence)
    assert isinstance(other, Divergence)
    assert np.array_equal(same.kl, np.zeros(26 + 19, np.float32))
    assert np.array_equal(same.window, [0] * 26 + [1] * 19)
    assert (other.kl > 0.0).all()


def test_long_windows_are_compared_in_parts(tmp_path: Path) -> None:
    window = Window(tokens=tuple(i % VOCABULARY for i in range(601)), start=1)
    (base,) = ask(FakeWorker(), tmp_path, WriteBase(windows=(window,), protocol="prefill"))
    worker = FakeWorker()
    assert isinstance(base, Base)
    (found,) = ask(worker, tmp_path, CompareBase(windows=(window,), protocol="prefill", base=base.blob))
    assert isinstance(found, Divergence)
    assert found.kl.size == 600
    assert max(worker.blocks) == 256


def test_a_generation_ends_with_its_end_and_lists_every_token(tmp_path: Path) -> None:
    requests = [
        Generate(prompt=(1, 3), max_new_tokens=6, top_k=2, keep_base=True),
        Generate(prompt=(1,), max_new_tokens=2),
    ]
    first, second = ask(FakeWorker(ends=4), tmp_path, *requests)
    assert isinstance(first, Generation)
    assert (first.tokens, first.stop) == ((7, 7, 7, EOS), "eos")
    assert first.listed is not None
    assert first.listed.ids.shape == (4, 2)
    assert first.base is not None
    assert isinstance(second, Generation)
    assert (second.tokens, second.stop, second.listed, second.base) == ((7, 7), "length", None, None)


def test_scores_are_log_probabilities_of_the_text(tmp_path: Path) -> None:
    tokens = (5, 6, 7, 8)
    (found,) = ask(FakeWorker(), tmp_path, ScoreTokens(tokens=tokens, start=2, top_k=3))
    assert isinstance(found, TokenScores)
    states = np.stack([[np.sin(place + i) for i in range(WIDTH)] for place in (1.0, 2.0)]) @ HEAD
    expected = [states[row][token] - np.log(np.exp(states[row]).sum()) for row, token in enumerate((7, 8))]
    np.testing.assert_allclose(found.logprobs, expected, atol=1e-5)
    assert found.listed is not None
    assert found.listed.ids.shape == (2, 3)


def test_what_cannot_be_sent_is_a_failure(tmp_path: Path) -> None:
    worker = FakeWorker()
    found = ask(
        worker, tmp_path, Generate(prompt=(1, VOCABULARY), max_new_tokens=1), Generate(prompt=(), max_new_tokens=1)
    )
    assert [answer.kind for answer in found if isinstance(answer, Failure)] == ["invalid-token", "empty-prompt"]
    assert worker.jobs == []


def test_a_vllm_whose_passes_are_read_wrongly_ends_the_run(tmp_path: Path) -> None:
    request = ScoreTokens(tokens=(5, 6, 7, 8), start=2, top_k=0)
    with pytest.raises(EngineError, match="gave 1 hidden states where 2 were due"):
        ask(FakeWorker(lose=1), tmp_path, request)
    with pytest.raises(EngineError, match="wrote other tokens than it was forced to"):
        ask(FakeWorker(wrong=True), tmp_path, request)
