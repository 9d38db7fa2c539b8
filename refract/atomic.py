"""Files that are complete or not there at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

PREFIX = ".refract-"  # of files that are being written; what a killed process leaves behind can be told by it


def write_atomically(target: Path, data: bytes) -> None:
    """Makes `target` hold `data`, durably; a crash leaves the old content or the new, never a part.

    Missing folders are made; permissions are those of any new file. Raises: OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{PREFIX}{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - the descriptor is open already
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)  # noqa: PTH105 - one call for tests to make fail
    finally:
        with contextlib.suppress(OSError):  # gone where all went well
            temporary.unlink()
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Makes a new name survive power loss, where the system can (Windows cannot open folders)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
