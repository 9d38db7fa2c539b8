"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from refract.errors import RefractError, SetupError, UsageError


def write_text_atomic(path: Path, text: str) -> None:
    """Leaves `text` at `path`, complete and on the disk, or an earlier file there untouched.

    Missing folders are created, a symbolic link's target is replaced, devices and pipes are written to directly.

    Raises: UsageError where `path` cannot name a file; SetupError where the disk is full or not writable.
    """
    data = text.encode("utf-8", "backslashreplace")
    try:
        if _is_stream(path):
            with path.open("wb") as stream:
                stream.write(data)
            return
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, data)
    except OSError as error:
        raise _explained(path, error) from error


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".refract-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - the descriptor is open already
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)  # noqa: PTH105 - one call for tests to make fail
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the new name survive a power loss, on systems where folders can be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _explained(path: Path, error: OSError) -> RefractError:
    number = error.errno
    if number == errno.EISDIR:
        return UsageError(f"cannot write {path}: it is a folder", hint="add a file name")
    if number in (errno.ENOTDIR, errno.EEXIST):
        return UsageError(f"cannot write {path}: part of the path is a file", hint="choose another folder")
    if number in (errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP):
        return UsageError(f"cannot write {path}: {error.strerror}", hint="choose another file name")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return SetupError(f"cannot write {path}: the disk is full", hint="free some space or choose another folder")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return SetupError(f"cannot write {path}: no permission to write there", hint="choose another folder")
    return SetupError(f"cannot write {path}: {error.strerror or error}", hint="choose another folder")
