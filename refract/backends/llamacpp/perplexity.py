"""KL per position from stock llama-perplexity: one process for all windows of a side, its logits read as they come.

The tool prints summaries only. But it saves the logits of every scored position to a file, and two such files, one of
each side, give the divergence at each position: see `logits_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from refract.backends.llamacpp.logits_file import (
    BLOB_FORMAT,
    Array,
    Read,
    Shape,
    compare_streams,
    head_of,
    logprobs,
    read_rows,
    read_shape,
    read_tokens,
    scored_start,
)
from refract.backends.llamacpp.perplexity_log import TailLostError, check_agreement
from refract.backends.llamacpp.perplexity_positions import POSITIONS_OPTION, announces_positions, read_positions
from refract.backends.llamacpp.perplexity_run import SILENCE_S, Run, running
from refract.backends.llamacpp.perplexity_text import ForcedText, forced_text
from refract.engine import Blobs, Tokenizer
from refract.errors import EngineError
from refract.work import BlobRef, Divergence, Window

SMALLEST_WINDOW = 8
_TRIES = 3
_Result = TypeVar("_Result")


def fits(window: Window) -> bool:
    """Whether llama-perplexity scores exactly the positions this window asks for: its second half."""
    return len(window.tokens) >= SMALLEST_WINDOW and window.start == scored_start(len(window.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """llama-perplexity for one model under one configuration.

    `flags` stand last on its command line and win; `env` is its whole environment; `check` raises when what it printed
    says that it ran something else. Nothing is given out before the whole run has passed every check.
    """

    binary: Path
    model: Path
    tokenizer: Tokenizer
    blobs: Blobs
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[str], None] = lambda _: None
    silence_s: float = SILENCE_S

    def write_bases(self, windows: Sequence[Window]) -> Iterator[tuple[Window, BlobRef]]:
        """The distributions of every window, each kept as a logits file of its own.

        windows: distinct, of one length, each of which `fits`. One process answers them all.

        Raises: EngineError when the tool fails, does something else than asked, or prints another perplexity than its
            logits have; SetupError when it cannot be started.
        """
        yield from _until_told(lambda: list(self._written(windows)))

    def _written(self, windows: Sequence[Window]) -> Iterator[tuple[Window, BlobRef]]:
        for window, shape, read in self._chunks(windows):
            parts = [head_of([window.tokens], shape.n_vocab)]
            parts += [bytes(rows.data) for rows in _rows(read, shape)]
            yield window, self.blobs.put(b"".join(parts), format=BLOB_FORMAT)

    def compare(self, windows: Sequence[Window], bases: Sequence[BlobRef]) -> Iterator[tuple[Window, Divergence]]:
        """KL(reference ‖ this configuration) over every window, whose reference is the base in the same place.

        Raises: as `write_bases`, and EngineError for a base of another window or vocabulary; StoreError.
        """
        known = dict(zip(windows, bases, strict=True))
        inside = bool(windows) and announces_positions(self.binary, self.env)
        compare = self._compare_inside if inside else self._compare_files
        yield from _until_told(lambda: list(compare(known)))

    def _compare_files(self, known: Mapping[Window, BlobRef]) -> Iterator[tuple[Window, Divergence]]:
        for window, shape, read in self._chunks(tuple(known)):
            with self._base(known[window], window, shape) as (reference, _):
                yield window, compare_streams(reference, read, shape, window)

    def _chunks(self, windows: Sequence[Window]) -> Iterator[tuple[Window, Shape, Read]]:
        """Every window with the way to read its rows, all of which must be read before the next."""
        if not windows:
            return
        text, size = _checked_text(windows, self.tokenizer), len(windows[0].tokens)
        sizes = ["-m", str(self.model), "-c", str(size), "-b", str(size), "--chunks", str(len(text.chunks))]
        with running(
            self.binary,
            [*sizes, *self.flags],
            self.env,
            given=("-f", [text.text.encode(), b"\n"]),  # the tool takes one newline off the end
            wanted="--kl-divergence-base",
            silence_s=self.silence_s,
        ) as run:
            shape = _checked_head(run, text, size)
            seen = _Seen(shape)
            for number, chunk in enumerate(text.chunks):
                tokens = text.tokens[number * size :][scored_start(size) : size]
                read = seen.reading(run.read, tokens)
                if chunk is None:
                    for _ in _rows(read, shape):
                        pass
                else:
                    yield windows[chunk], shape, read
            log = run.finish()
            self.check(log)
            check_agreement(log, seen.mean_nll, clamped=seen.clamped)

    def _compare_inside(self, known: Mapping[Window, BlobRef]) -> Iterator[tuple[Window, Divergence]]:
        """The same from a patched tool, which reads all bases and writes a line for each position."""
        size = len(next(iter(known)).tokens)
        with running(
            self.binary,
            ["-m", str(self.model), "-c", str(size), "-b", str(size), "--kl-divergence", *self.flags],
            self.env,
            given=("--kl-divergence-base", self._joined_bases(known)),
            wanted=POSITIONS_OPTION,
            silence_s=self.silence_s,
        ) as run:
            yield from read_positions(run, tuple(known), check=self.check)

    def _joined_bases(self, known: Mapping[Window, BlobRef]) -> Iterator[bytes]:
        """One logits file of all the windows' bases, in pieces."""
        first = next(iter(known))
        with self._base(known[first], first, None) as (_, shape):
            yield head_of([window.tokens for window in known], shape.n_vocab)
        for window, ref in known.items():
            with self._base(ref, window, shape) as (read, _):
                yield from (rows.tobytes() for rows in _rows(read, shape))

    @contextmanager
    def _base(self, ref: BlobRef, window: Window, shape: Shape | None) -> Iterator[tuple[Read, Shape]]:
        """The rows of a stored base, known to be of the window and, where one is given, of the shape."""
        if ref.format != BLOB_FORMAT:
            raise EngineError(f"the reference is stored as {ref.format}, expected {BLOB_FORMAT}")
        with self.blobs.path(ref).open("rb") as stream:
            read = partial(_exactly, stream)
            own = read_shape(read)
            if shape is not None and (own.n_ctx, own.n_vocab) != (shape.n_ctx, shape.n_vocab):
                raise EngineError(
                    f"the reference has {own.n_vocab} tokens of vocabulary, the candidate {shape.n_vocab}",
                    hint="both sides must run the same model",
                )
            if read_tokens(read, own.n_ctx) != window.tokens:
                raise EngineError("the stored reference is of another window")
            yield read, own


def _until_told(run: Callable[[], list[_Result]]) -> list[_Result]:
    """What `run` gives, asked again where the end of what the tool prints was lost. Nothing is used unchecked."""
    for _ in range(_TRIES - 1):
        with suppress(TailLostError):
            return run()
    return run()


def _checked_text(windows: Sequence[Window], tokenizer: Tokenizer) -> ForcedText:
    lengths = {len(window.tokens) for window in windows}
    if len(lengths) != 1 or not all(fits(window) for window in windows):
        raise EngineError(f"llama-perplexity scores the second half of windows of one length, found {sorted(lengths)}")
    return forced_text(windows, tokenizer)


def _checked_head(run: Run, text: ForcedText, size: int) -> Shape:
    """The head of what the tool writes, which must be of exactly the tokens wanted."""
    shape = read_shape(run.read)
    if (shape.n_ctx, shape.n_chunk) != (size, len(text.chunks)):
        raise EngineError(
            f"llama-perplexity scores {shape.n_chunk} chunks of {shape.n_ctx} tokens, asked for {len(text.chunks)} of"
            f" {size}",
            hint="do not set -c, -b or --chunks in the extra flags",
        )
    tokens = read_tokens(run.read, size * shape.n_chunk)
    wrong = next((i for i, pair in enumerate(zip(tokens, text.tokens, strict=True)) if pair[0] != pair[1]), None)
    if wrong is not None:
        raise EngineError(
            f"llama-perplexity reads token {tokens[wrong]} where {text.tokens[wrong]} was meant (place {wrong}): its"
            " tokenizer differs",
            hint="use the GGUF file's own tokenizer, and a corpus without the text of special tokens",
        )
    return shape


def _rows(read: Read, shape: Shape) -> Iterator[Array]:
    """All rows of a chunk, some at a time."""
    for done in range(0, shape.positions, shape.slice_rows):
        yield read_rows(read, shape, min(shape.slice_rows, shape.positions - done))


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise EngineError("a stored reference is shorter than its head says", hint="delete it and run again")
    return data


class _Seen:
    """The negative log-likelihoods that pass by, to be held against the perplexity that is printed."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.total, self.count, self.clamped = shape, 0.0, 0, False

    @property
    def mean_nll(self) -> float:
        """Of all tokens seen, in nats."""
        return self.total / max(1, self.count)

    def reading(self, read: Read, tokens: Sequence[int]) -> Callable[[int], bytes]:
        """`read` for the rows of one chunk, whose scored tokens are `tokens`."""
        left = list(tokens)

        def noted(count: int) -> bytes:
            data = read(count)
            rows = np.frombuffer(data, "<u2").reshape(-1, self.shape.row_codes)
            self._note(rows, [left.pop(0) for _ in range(len(rows))])
            return data

        return noted

    def _note(self, rows: Array, tokens: Sequence[int]) -> None:
        codes = rows[np.arange(len(rows)), 4 + np.asarray(tokens)]
        own = np.concatenate([rows[:, :4], codes[:, None], np.zeros_like(codes[:, None])], axis=1)
        self.total -= float(logprobs(own, 1).sum(dtype=np.float64))
        self.count += len(rows)
        self.clamped = self.clamped or bool((codes == 0).any())
