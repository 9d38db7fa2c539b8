"""What engines say and write, damaged: a value, or one of our own errors."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refract.backends import _completions as completions
from refract.backends._listed import listing, pack, unpack
from refract.backends.llamacpp.listed import read_listing
from refract.backends.llamacpp.logits_file import compare_streams, head_of, read_shape, read_tokens
from refract.backends.llamacpp.perplexity_log import check_agreement, final_perplexity, incomplete, printed_mean_kld
from refract.backends.llamacpp.perplexity_positions import read_positions
from refract.backends.llamacpp.server_log import AskedContext, check_context, effective_kv, read_cache_log
from refract.errors import EngineError, RefractError
from refract.kv import parse_kv
from refract.work import Window

from .mutations import SOME, damaged, damaged_bytes, damaged_json, json_values, numbers

RECORDED = Path(__file__).parents[1] / "backends" / "llamacpp" / "recorded"
LOGS = [path.read_text("utf-8", "replace") for path in sorted(RECORDED.glob("cache_*.log"))]
SAID = [path.read_text("utf-8", "replace") for path in sorted(RECORDED.glob("llama-perplexity_*"))]
WORDS = ("0", "999999999999999999999", "nan", "-1", "1e5", ".", "MiB", "\n")
TOKENS = (3, 1, 4, 1)
ENTRIES = [
    {"id": token, "logprob": -0.5, "top_logprobs": [{"id": 7, "logprob": -0.1}, {"id": 8, "logprob": -2.0}]}
    for token in TOKENS
]
CHOICE = {
    "text": "abc",
    "finish_reason": "stop",
    "logprobs": {"content": ENTRIES},
    "prompt_logprobs": [None, *({str(t): {"logprob": -1.0, "rank": 1}} for t in TOKENS[1:])],
    "token_ids": list(TOKENS),
}


def only_ours(act: Callable[[], object]) -> None:
    """Runs it; the only error that may come out is one of ours, on one line."""
    try:
        act()
    except RefractError as error:
        one_line(error)


def one_line(error: RefractError) -> None:
    assert "\n" not in error.message
    assert error.message


@SOME
@given(st.sampled_from(LOGS).flatmap(lambda log: damaged(log, WORDS)))
def test_logs_of_llama_server(log: str) -> None:
    kv = parse_kv("ctk=q8_0,ctv=q4_0")

    def act() -> None:
        found = read_cache_log(log)
        check_context(found, AskedContext(flash_attention=True, ubatch=512, sequences=1), tokens=4096)
        assert effective_kv(kv, found).bytes_per_token >= 0.0

    only_ours(act)


@SOME
@given(st.sampled_from(SAID).flatmap(lambda log: damaged(log, WORDS)), st.floats(0.0, 50.0))
def test_output_of_llama_perplexity(log: str, mean_nll: float) -> None:
    only_ours(lambda: final_perplexity(log))
    only_ours(lambda: printed_mean_kld(log))
    only_ours(lambda: check_agreement(log, mean_nll, clamped=False))
    assert isinstance(incomplete("no end", log, 137), EngineError)


@SOME
@given(
    st.sampled_from(["0", "-1", "abc", "1e999", "nan", "inf", "-nan(ind)", "7.5x", "１"]), st.sampled_from([0.0, 2.0])
)
def test_figures_that_are_none(figure: str, mean_nll: float) -> None:
    log = f"Final estimate: PPL = {figure} +/- 0.1\nMean    KLD:   {figure}\n"
    only_ours(lambda: final_perplexity(log))
    only_ours(lambda: printed_mean_kld(log))
    only_ours(lambda: check_agreement(log, mean_nll, clamped=True))


def _reader(data: bytes) -> Callable[[int], bytes]:
    stream = io.BytesIO(data)

    def read(count: int) -> bytes:
        found = stream.read(count)
        if len(found) < count:
            raise EngineError("the file ends early")
        return found

    return read


def _logits_file() -> bytes:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2**16, (3, 4 + 6), dtype=np.uint16)
    return head_of([[1, 2, 3, 4, 5, 0, 1, 2]], 5) + rows.tobytes()


@SOME
@given(damaged_bytes(_logits_file()), damaged_bytes(_logits_file()))
def test_logits_files(one: bytes, other: bytes) -> None:
    def act() -> None:
        read, beside = _reader(one), _reader(other)
        shape = read_shape(read)
        tokens = read_tokens(read, shape.n_ctx * shape.n_chunk)
        read_shape(beside)
        compare_streams(read, beside, shape, Window(tokens=tokens, start=shape.n_ctx // 2 + 1))

    only_ours(act)


@SOME
@given(damaged_json(ENTRIES) | json_values, st.integers(1, 3))
def test_lists_of_probable_tokens(entries: Any, count: int) -> None:
    only_ours(lambda: read_listing(entries, TOKENS, count))


@SOME
@given(damaged_json(CHOICE) | json_values, st.integers(1, 3))
def test_answers_of_completions(answer: Any, count: int) -> None:
    def act() -> None:
        choice = completions.only_choice({"choices": [answer]}, "server")
        entries = completions.read_entries(choice, "server")
        completions.token_ids(choice, entries)
        if entries is not None:
            completions.to_listing(entries, TOKENS, count, "server")
        completions.read_prompt_entries(choice, TOKENS, "server")

    only_ours(act)


@SOME
@given(damaged_bytes(pack(listing(TOKENS, [-1.0] * 4, np.arange(8).reshape(4, 2), np.full((4, 2), -1.0, np.float32)))))
def test_stored_lists(data: bytes) -> None:
    only_ours(lambda: unpack(data))


class Lines:
    """A run of llama-perplexity that writes these lines."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def lines(self) -> Any:
        return iter(self._lines)

    def finish(self) -> str:
        return ""


@SOME
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "chunk": st.just(0),
                "position": st.sampled_from([2, 3]),
                "token": st.sampled_from([4, 1]),
                "kl": json_values | numbers,
                "nll": json_values | numbers,
                "nll_reference": st.none() | st.floats(0, 9),
                "margin": st.floats(0, 1),
                "same_top": st.booleans(),
                "reference_finite": st.booleans(),
            }
        ),
        min_size=1,
        max_size=3,
    )
)
def test_positions_of_a_patched_tool(rows: list[dict[str, Any]]) -> None:
    lines = [json.dumps(row).encode() for row in rows]
    window = Window(tokens=TOKENS, start=2)
    only_ours(lambda: list(read_positions(Lines(lines), [window], check=lambda log: None)))  # type: ignore[arg-type]
