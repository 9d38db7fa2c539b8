"""Reports on the disk: whole or not at all, and every way to fail in words."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from refract.atomic import write_atomically
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
        write_atomically(target, data)
    except OSError as error:
        raise _explained(path, error) from error


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


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
