"""Reading a text file that a user named: strict UTF-8, and one clear line for everything that is not."""

from __future__ import annotations

import codecs
from pathlib import Path

from refract.errors import UsageError

_MIB = 1024 * 1024


def read_text(path: Path, error: type[UsageError], *, kind: str, limit_mib: int) -> str:
    """The text of `path`, exactly, without a leading byte-order mark; line ends are left as they are.

    `kind` is the noun for messages ("prompt file"), `error` the class raised.

    Raises:
        UsageError: missing, unreadable, a folder, larger than `limit_mib`, empty, binary or not UTF-8; the message
            names the file, and for text that is not UTF-8 the line and the byte.
    """
    name = label(path)
    raw = _read_bytes(path, error, kind, limit_mib)
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise error(f"{name} is UTF-16, expected a {kind} in UTF-8", hint="save it again with the encoding UTF-8")
    if (nul := raw.find(b"\0")) >= 0:
        raise error(
            f"{name} is binary (NUL at byte {nul}), expected a {kind} in UTF-8",
            hint="check the path; a compressed file has to be unpacked first",
        )
    text = _decode(raw.removeprefix(codecs.BOM_UTF8), name, error, kind, bom=raw.startswith(codecs.BOM_UTF8))
    if not text or text.isspace():
        raise error(f"{name} is empty, expected a {kind}", hint="check the path and how the file was written")
    return text


def is_folder(path: Path) -> bool:
    """Whether the path is a folder; one that no file system takes is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def label(path: Path) -> str:
    """The last part of the path, also of `.` and `..`: enough for a message, and no home folder in a report."""
    return path.name if path.name not in ("", "..") else path.resolve().name or str(path)


def _read_bytes(path: Path, error: type[UsageError], kind: str, limit_mib: int) -> bytes:
    name = label(path)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > limit_mib * _MIB:
            raise error(
                f"{name} has {size_bytes // _MIB} MiB, expected a {kind} of at most {limit_mib} MiB",
                hint="cut it; a run reads far less than that",
            )
        with path.open("rb") as file:
            raw = file.read(limit_mib * _MIB + 1)
        if len(raw) > limit_mib * _MIB:  # a device or a pipe, whose size nobody knows
            raise error(f"{name} does not end, expected a {kind} of at most {limit_mib} MiB", hint="name a plain file")
        return raw
    except FileNotFoundError:
        raise error(f"{name} does not exist, expected a {kind}", hint="check the path") from None
    except IsADirectoryError:
        raise error(f"{name} is a folder, expected a {kind}", hint="name the file inside it") from None
    except PermissionError:
        raise error(f"{name} may not be read by this user", hint=f"allow reading it: chmod +r {name}") from None
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or str(failure)
        raise error(f"{name} cannot be read: {reason}", hint="check the path and the disk") from None


def _decode(raw: bytes, name: str, error: type[UsageError], kind: str, *, bom: bool) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as failure:
        line = raw.count(b"\n", 0, failure.start) + 1
        offset = failure.start + (len(codecs.BOM_UTF8) if bom else 0)
        raise error(
            f"{name} line {line}: byte {offset} (0x{raw[failure.start]:02x}) is not UTF-8, expected a {kind} in UTF-8",
            hint="convert it, for example: iconv -f latin1 -t utf-8",
        ) from None
