"""Logits files of llama-perplexity: read as written, compared exactly, in memory that does not grow."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refract.backends.llamacpp.logits_file import (
    Shape,
    compare_rows,
    compare_streams,
    head_of,
    logprobs,
    read_shape,
    read_tokens,
    scored_start,
)
from refract.errors import EngineError
from refract.stats.divergence import kl_full, log_softmax
from refract.work import Window

from .support import coded

Rows = npt.NDArray[np.uint16]


def logits(positions: int, vocab: int, *, seed: int = 0, spread: float = 3.0) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((positions, vocab)) * spread).astype(np.float32)


def test_512_tokens_have_255_scored_positions_from_257_on() -> None:
    shape = Shape(n_ctx=512, n_vocab=49152, n_chunk=8)
    assert (shape.positions, scored_start(512)) == (255, 257)
    assert shape.row_codes * 2 == 98_312
    assert Shape(n_ctx=512, n_vocab=5, n_chunk=1).row_codes == 10
    assert (Shape(n_ctx=9, n_vocab=5, n_chunk=1).positions, scored_start(9)) == (4, 5)


def test_head_is_read_as_written() -> None:
    shape = Shape(n_ctx=8, n_vocab=100, n_chunk=1)
    stream = io.BytesIO(head_of([range(8)], 100))
    assert read_shape(stream.read) == shape
    assert read_tokens(stream.read, 8) == tuple(range(8))


@pytest.mark.parametrize("head", [b"_logitX_" + bytes(12), b"_logits_" + bytes(12), b"GGUF" + b"\xff" * 16])
def test_another_file_is_refused(head: bytes) -> None:
    with pytest.raises(EngineError, match="no such file"):
        read_shape(io.BytesIO(head).read)


def test_codes_give_back_the_logprobs() -> None:
    values = logits(5, 1001, spread=1.5)
    assert np.abs(logprobs(coded(values), 1001) - log_softmax(values)).max() < 2e-4


def test_equal_sides_are_exactly_zero() -> None:
    rows = coded(logits(4, 500, spread=6.0))
    found = compare_rows(rows, rows, (1, 2, 3, 4), n_vocab=500)
    assert (found.kl == 0).all()
    assert found.same_top.all()
    assert (found.token_nll_delta == 0).all()
    assert (found.token_p_delta == 0).all()


def test_two_tokens_by_hand() -> None:
    p, q = np.log(np.array([[0.75, 0.25]], np.float32)), np.log(np.array([[0.25, 0.75]], np.float32))
    found = compare_rows(coded(p), coded(q), (0,), n_vocab=2)
    assert found.kl[0] == pytest.approx(0.5 * np.log(3), abs=1e-4)
    assert not found.same_top[0]
    assert found.reference_margin[0] == pytest.approx(0.5, abs=1e-4)
    assert found.token_nll_delta[0] == pytest.approx(np.log(3), abs=1e-4)
    assert found.token_p_delta[0] == pytest.approx(-0.5, abs=1e-4)
    assert found.reference_nll[0] == pytest.approx(-np.log(0.75), abs=1e-4)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), vocab=st.integers(2, 700), noise=st.floats(0.0, 2.0))
def test_agrees_with_the_full_float_divergence(seed: int, vocab: int, noise: float) -> None:
    reference = logits(6, vocab, seed=seed, spread=1.5)
    candidate = (reference + noise * logits(6, vocab, seed=seed + 1, spread=0.3)).astype(np.float32)
    found = compare_rows(coded(reference), coded(candidate), (0,) * 6, n_vocab=vocab)
    assert found.kl == pytest.approx(kl_full(reference, candidate), abs=3e-4)


def test_mass_that_moves_below_the_reference_s_smallest_is_seen() -> None:
    reference = np.zeros((1, 400), np.float32)
    reference[0, 200:] = -30.0
    candidate = np.zeros((1, 400), np.float32)
    found = compare_rows(coded(reference), coded(candidate), (0,), n_vocab=400)
    assert found.kl[0] == pytest.approx(np.log(2), abs=1e-3)


def test_worst_case_is_as_large_as_the_coding_can_say() -> None:
    reference, candidate = np.zeros((1, 10), np.float32), np.zeros((1, 10), np.float32)
    reference[0, 0], candidate[0, 1] = 60.0, 60.0
    found = compare_rows(coded(reference), coded(candidate), (0,), n_vocab=10)
    assert found.kl[0] == pytest.approx(16.0, abs=0.01)
    assert not found.same_top[0]


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_what_is_not_finite_is_nan_and_says_whose(side: str) -> None:
    good, bad = coded(logits(2, 50)), coded(logits(2, 50))
    bad[1, :4] = np.array([np.nan, np.nan], np.float32).view(np.uint16)
    pair = (bad, good) if side == "reference" else (good, bad)
    found = compare_rows(*pair, (1, 2), n_vocab=50)
    assert np.isfinite(found.kl).tolist() == [True, False]
    assert found.reference_finite.tolist() == [True, side == "candidate"]


def endless(row: bytes) -> Callable[[int], bytes]:
    return lambda count: row * (count // len(row))


def test_memory_is_bounded_whatever_the_number_of_chunks() -> None:
    shape = Shape(n_ctx=512, n_vocab=150_001, n_chunk=64)
    one, other = (coded(logits(1, 150_001, seed=s)).tobytes() for s in (1, 2))
    window = Window(tokens=tuple(range(512)), start=257)
    tracemalloc.start()
    peaks = []
    for _ in range(2):
        tracemalloc.reset_peak()
        found = compare_streams(endless(one), endless(other), shape, window)
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert len(found) == 255
    assert max(peaks) < 200e6
    assert peaks[1] < 1.1 * peaks[0]
