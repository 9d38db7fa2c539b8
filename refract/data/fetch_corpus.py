"""A corpus from its archive: only the files it is known to hold, each verified, in place all together or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from refract.data.corpora import FetchableCorpus, Member
from refract.data.download import download
from refract.data.fetch import Fetched
from refract.errors import SetupError

Say = Callable[[str], None]

_CHUNK_BYTES = 1 << 20


def fetch_corpus(corpus: FetchableCorpus, cache: Path, *, say: Say = lambda _: None) -> Fetched:
    """The corpus in the cache folder, every file verified; downloaded when one is missing or damaged.

    Names inside the archive never become paths. Raises: SetupError: no network, no room, a folder that cannot be
    written, or other bytes than the pinned ones; nothing half-written is left under a final name.
    """
    folder = cache / "corpora" / corpus.name
    text = folder / corpus.text
    if all(_is_sound(folder / member.file, member) for member in corpus.members):
        return Fetched(path=text, downloaded=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        say(f"downloading {corpus.title} ({corpus.size_bytes / 1e6:.1f} MB)")
        archive = folder / corpus.urls[0].rpartition("/")[2]
        download(corpus.urls, archive, sha256=corpus.sha256, size_bytes=corpus.size_bytes)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            _extract(archive, corpus, Path(scratch))
            for member in corpus.members:
                (Path(scratch) / member.file).replace(folder / member.file)
        archive.unlink()
    except OSError as failure:
        message = f"the cache folder cannot be written: {failure.strerror or failure}"
        raise SetupError(message, hint="name another one with --cache-dir, or make room") from failure
    finally:
        _remove_if_empty(folder)
    return Fetched(path=text, downloaded=True)


def _extract(archive: Path, corpus: FetchableCorpus, scratch: Path) -> None:
    """Takes the known members out of the archive. Raises: SetupError when one is missing or not what it should be."""
    try:
        with zipfile.ZipFile(archive) as opened:
            names = set(opened.namelist())
            for member in corpus.members:
                if member.name not in names:
                    raise _unexpected(archive, f"lacks {member.name}")
                with opened.open(member.name) as source, (scratch / member.file).open("wb") as out:
                    _copy(source, out, member.size_bytes)
                if not _is_sound(scratch / member.file, member):
                    raise _unexpected(archive, f"holds another {member.name}")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise _unexpected(archive, "cannot be unpacked") from error


def _copy(source: IO[bytes], out: IO[bytes], most_bytes: int) -> None:
    """Copies no more than one byte too many, however much an archive claims to hold."""
    left = most_bytes + 1
    while left > 0 and (chunk := source.read(min(left, _CHUNK_BYTES))):
        out.write(chunk)
        left -= len(chunk)


def _is_sound(file: Path, member: Member) -> bool:
    try:
        if file.stat().st_size != member.size_bytes:
            return False
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == member.sha256
    except OSError:
        return False


def _unexpected(archive: Path, what: str) -> SetupError:
    archive.unlink(missing_ok=True)
    return SetupError(f"{archive.name} {what}", hint="run it again; if it stays so, report it")


def _remove_if_empty(folder: Path) -> None:
    for place in (folder, folder.parent):
        with contextlib.suppress(OSError):
            place.rmdir()
