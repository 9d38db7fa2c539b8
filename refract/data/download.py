"""Files from the network: whole and verified, or not there; a download that breaks off goes on where it was."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from refract.errors import SetupError

if TYPE_CHECKING:
    from requests import Response

CONNECT_S, READ_S = 10.0, 30.0  # for a connection, and between two pieces of an answer
_CHUNK_BYTES = 1 << 14  # what a broken connection may cost: less than this is not kept
_OFFLINE = "connect to the network and run it again; behind a proxy set HTTPS_PROXY"


def download(urls: Sequence[str], target: Path, *, sha256: str, size_bytes: int) -> None:
    """Puts the file that all `urls` serve at `target`, verified; mirrors are tried in order.

    Until it is complete it is called `.NAME.part` beside the target: it stays there when the connection breaks, and the
    next call goes on from its end. Nothing is left when no mirror answers.

    Raises: SetupError: no mirror answers, the connection broke, or the bytes are others than the pinned ones.
    """
    import requests

    part = target.with_name(f".{target.name}.part")
    failures: list[Exception] = []
    for url in urls:
        try:
            _append(url, part, size_bytes)
        except (requests.RequestException, _RefusedError) as failure:
            failures.append(failure)
            continue
        _verify(part, target, sha256, size_bytes)
        return
    raise _broken(target.name, part, size_bytes, failures)


class _RefusedError(Exception):
    """A mirror that answers, but not with what is missing."""


def _append(url: str, part: Path, size_bytes: int) -> None:
    """Fetches what `part` still lacks. Raises: RequestException, _RefusedError; OSError where it cannot be written."""
    import requests

    had = part.stat().st_size if part.is_file() else 0
    if had >= size_bytes:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={had}-"} if had else {})
    with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_S, READ_S)) as answer:
        answer.raise_for_status()
        goes_on = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {had}-")
        start = had if goes_on else 0
        announced = answer.headers.get("Content-Length", str(size_bytes - start))
        if announced != str(size_bytes - start):
            raise _RefusedError(f"it has {announced} bytes, expected {size_bytes - start}")
        _write(answer, part, "ab" if goes_on else "wb", size_bytes)
    if part.stat().st_size < size_bytes:
        raise _RefusedError("the connection broke")


def _write(answer: Response, part: Path, mode: str, size_bytes: int) -> None:
    with part.open(mode) as out:
        for chunk in answer.iter_content(_CHUNK_BYTES):
            out.write(chunk)
            if out.tell() > size_bytes:
                break
        out.flush()
        os.fsync(out.fileno())


def _verify(part: Path, target: Path, sha256: str, size_bytes: int) -> None:
    """Gives the complete file its name. Raises: SetupError for other bytes than the pinned ones, which are removed."""
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        size = part.stat().st_size
        part.unlink()
        raise SetupError(
            f"{target.name} is not what it should be: {size:,} bytes with sha256 {found[:16]}…, expected {size_bytes:,}"
            f" with {sha256[:16]}…",
            hint="run it again; if it stays so, something on the way changes it, such as a proxy's login page",
        )
    part.replace(target)


def _broken(name: str, part: Path, size_bytes: int, failures: Sequence[Exception]) -> SetupError:
    """What failed, in a line; the failures' own words, which hold addresses, are kept for --debug."""
    had = part.stat().st_size if part.is_file() else 0
    if had:
        hint = "run the same command again: it goes on from there"
        error = SetupError(f"{name} broke off after {had / size_bytes:.0%}", hint=hint)
    else:
        part.unlink(missing_ok=True)
        answered = any(getattr(failure, "response", None) is not None for failure in failures)
        answered = answered or any(isinstance(failure, _RefusedError) for failure in failures)
        reason = "no mirror serves it now" if answered else "no mirror can be reached"
        error = SetupError(f"{name} could not be downloaded: {reason}", hint=_OFFLINE)
    for failure in failures:
        error.add_note(f"{type(failure).__name__}: {failure}")
    return error
