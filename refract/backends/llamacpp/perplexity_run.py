"""One run of llama-perplexity whose results are read through a named pipe as they come: no file of them is made."""

from __future__ import annotations

import fcntl
import os
import select
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from refract.backends._process import Child, child
from refract.backends.llamacpp.perplexity_log import incomplete
from refract.errors import EngineError

_WAIT_S = 0.02
_PIPE_BYTES = 1 << 20  # what the tool can write before it waits for us, where the system allows as much
_PIECE_BYTES = 1 << 20
SILENCE_S = 1800.0  # without a byte; one chunk of a large model on a slow processor takes minutes
_END_S = 30.0


class Run:
    """A running llama-perplexity: `read` gives what it writes as logits, `finish` what it printed."""

    def __init__(self, process: Child, pipe: int, silence_s: float) -> None:
        self._process, self._pipe, self._silence_s = process, pipe, silence_s

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes. Raises: EngineError when the tool ends before, or hangs."""
        buffer = bytearray(count)
        view, filled = memoryview(buffer), 0
        while filled < count:
            got = self._some(view[filled : filled + _PIECE_BYTES])
            if not got:
                raise incomplete("an incomplete logits file", self._process.log, self._process.status)
            filled += got
        return bytes(buffer)

    def lines(self) -> Iterator[bytes]:
        """The lines it writes, to its end."""
        buffer, rest = memoryview(bytearray(_PIECE_BYTES)), b""
        while got := self._some(buffer):
            *whole, rest = (rest + bytes(buffer[:got])).split(b"\n")
            yield from whole
        if rest:
            raise incomplete("an incomplete line", self._process.log, self._process.status)

    def finish(self) -> str:
        """What the tool printed.

        Raises: EngineError when it writes more than was asked for, does not end, or ends in a failure.
        """
        if self._some(memoryview(bytearray(1))):
            raise EngineError("llama-perplexity's logits file is longer than it should be", hint="check its version")
        status = self._process.wait(_END_S)
        if status is None:
            raise incomplete("all logits and then did not end", self._process.log, None)
        if status != 0:
            raise incomplete("all logits and then failed", self._process.log, status)
        return self._process.log

    def _some(self, view: memoryview) -> int:
        """Reads what there is, waiting for it; 0 when the tool has ended."""
        begun = time.monotonic()
        while True:
            ended = self._process.status is not None  # asked before the read, so that nothing written is missed
            try:
                if got := os.readv(self._pipe, [view]):
                    return got
            except BlockingIOError:  # it is being written
                select.select([self._pipe], [], [], _WAIT_S)
            else:  # nobody writes: not yet, or no more
                if ended:
                    return 0
                time.sleep(_WAIT_S)
            if time.monotonic() - begun > self._silence_s:
                raise incomplete(f"nothing for {self._silence_s:g} s", self._process.log, None)


@contextmanager
def running(
    binary: Path,
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    given: tuple[str, Iterable[bytes]],
    wanted: str,
    silence_s: float = SILENCE_S,
) -> Iterator[Run]:
    """llama-perplexity, ended with everything it started when the block is left.

    given: an option that takes a file, and that file's content in pieces; wanted: the option that names what is read.

    Raises: SetupError when the binary cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="refract-") as name:
        folder = Path(name)
        with (folder / "given").open("wb") as stream:
            stream.writelines(given[1])
        os.mkfifo(folder / "wanted")
        pipe = os.open(folder / "wanted", os.O_RDONLY | os.O_NONBLOCK)
        _widen(pipe)
        places = [given[0], str(folder / "given"), wanted, str(folder / "wanted")]
        try:
            with child([str(binary), *places, *arguments], env=env) as process:
                yield Run(process, pipe, silence_s)
        finally:
            os.close(pipe)


def _widen(pipe: int) -> None:
    """Linux gives a pipe 64 KiB, less than one position of most models."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
