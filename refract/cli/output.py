"""Where a command's words go: the report to stdout or a file, everything else to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from refract.errors import SetupError, UsageError
from refract.report.plain import visible

STDOUT = Path("-")
_LAID_OUT = "\n\t"  # of a traceback
_LONGEST_NAME = 255  # bytes; what file systems allow


def prepare_streams() -> None:
    """Makes stdout and stderr usable whatever they are: closed, or of an encoding that lacks some characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as the process lasts
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str, *, prefix: str = "refract: ") -> None:
    """Writes a line to stderr, if anybody is there to read it; text of models and reports gives terminals no orders."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{prefix}{visible(text, keep=_LAID_OUT)}\n")
        sys.stderr.flush()


def emit(text: str) -> None:
    """Writes the report to stdout; a reader that has gone (`| head`) is no error.

    Raises:
        SetupError: stdout cannot be written, as on a full disk.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        message = f"stdout cannot be written: {error.strerror or error}"
        raise SetupError(message, hint="make room, or write to a file elsewhere") from error


def _discard_stdout() -> None:
    """Points stdout at nothing, so that Python's own flush at exit has nothing to complain of."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def check_outputs(outputs: Mapping[str, Path | None]) -> None:
    """Makes sure, before any work, that each option's file can be written; missing folders are made.

    Raises:
        UsageError: a folder where a file is expected, or one file for two options.
        SetupError: the folder cannot be made or written.
    """
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None or path == STDOUT:
            continue
        target = Path(os.path.realpath(path))
        if target in seen:
            raise UsageError(f"{seen[target]} and {option} name the same file {path}", hint="give each its own")
        seen[target] = option
        _check_output(option, path, target)


def _check_output(option: str, path: Path, target: Path) -> None:
    from tempfile import TemporaryFile

    if len(os.fsencode(target.name)) > _LONGEST_NAME:
        raise UsageError(f"{option}: a file name of {len(target.name)} characters is too long", hint="choose another")
    try:
        if target.is_symlink():  # what realpath leaves of one that leads to itself
            message = f"{option} {path} is a symbolic link that leads round in circles"
            raise UsageError(message, hint="choose another file")
        if target.is_dir():
            raise UsageError(f"{option} {path} is a folder, expected a file", hint=f"write {option} {path / 'report'}…")
        if target.exists() and not target.is_file():
            return  # a device or a pipe
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        message = f"{option} {path} cannot be written: {error.strerror or error}"
        raise SetupError(message, hint="choose a folder that this user can write to") from error
