"""A child process that never outlives its use: its output in a log, its group ended with the block or the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from refract.errors import SetupError

_GUARDIAN = str(Path(__file__).with_name("_guardian.py"))
_TAIL_CHARS = 20_000


class Child:
    """A running command. `log` is all it has printed so far, both streams in order."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._process, self._log = process, log

    @property
    def status(self) -> int | None:
        """None while it runs; its exit status, 128 and more for a signal."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """What it has printed, invalid UTF-8 replaced."""
        with suppress(ValueError):  # closed with the block
            size = os.fstat(self._log.fileno()).st_size
            return os.pread(self._log.fileno(), size, 0).decode("utf-8", errors="replace")
        return ""

    @property
    def last_words(self) -> str:
        """The last non-empty line it printed."""
        lines = [line.strip() for line in self.log[-_TAIL_CHARS:].splitlines() if line.strip()]
        return lines[-1] if lines else "nothing was printed"

    def wait(self, timeout_s: float) -> int | None:
        """Its exit status, None when it still runs after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None


@contextmanager
def child(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """The command, running; it and whatever it started are killed when the block is left or this process dies.

    Raises: SetupError when the command does not exist or may not be run.
    """
    _check_runnable(command[0])
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", _GUARDIAN, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        try:
            yield Child(process, log)
        finally:
            _end(process)


def described(status: int | None) -> str:
    """An exit status in words."""
    if status is None:
        return "it still runs"
    if status > 128:
        number = status - 128
        name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
        return f"ended by {name}"
    return f"exit status {status}"


def _check_runnable(name: str) -> None:
    if Path(name).is_absolute() and not os.access(name, os.X_OK):
        what = "may not be executed" if Path(name).exists() else "does not exist"
        raise SetupError(f"{Path(name).name} {what}", hint="name the folder of working binaries")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the group, also where its leader has ended already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.wait()
