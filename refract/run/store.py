"""Where answers are kept: one SQLite database that two processes may share, and a folder of large blobs beside it.

Every answer is committed as it comes (WAL, synchronous=NORMAL): what was put survives `kill -9` of the process, and a
power loss costs at most the last moments and never the database. An entry carries a checksum over its key and its
content, and the database one over all its keys, so that damage is an error and never a silent miss.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast

from refract.errors import StoreError
from refract.run.blobs import BlobFolder
from refract.run.codec import CodecError, Storable, decode, encode
from refract.run.database import Database
from refract.run.usage import Claim
from refract.work import Answer, Base, BlobRef, EffectiveKV, Generation


class Store(Protocol):
    """Answers by their `refract.work.request_key`, effective KV configurations by identity digest."""

    @property
    def blobs(self) -> BlobFolder: ...

    def get(self, key: str) -> Answer | None:
        """The stored answer; None when there is none or a blob it refers to is gone. Raises: StoreError."""

    def put(self, key: str, answer: Answer) -> None:
        """Keeps the answer from now on. Raises: StoreError."""

    def get_many(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Those answers that are stored. Raises: StoreError."""

    def effective(self, digest: str) -> EffectiveKV | None:
        """What a session under this identity really allocated, if one ever was. Raises: StoreError."""

    def put_effective(self, digest: str, effective: EffectiveKV) -> None:
        """Keeps it from now on. Raises: StoreError."""


class AnswerStore:
    """The answers of all runs under `folder`; usable as a context manager.

    Raises: StoreError from the constructor and every method: the database is damaged, of a newer version, or cannot be
        written; the message names the entry and the file.
    """

    def __init__(self, folder: Path) -> None:
        self.blobs = BlobFolder(folder / "blobs")
        self._database = Database(folder / "answers.sqlite")
        with ExitStack() as unless_claimed:
            unless_claimed.callback(self._database.close)
            self._claim = Claim(folder)
            unless_claimed.pop_all()

    def close(self) -> None:
        """Releases the database and the folder; the store is not usable afterwards."""
        self._database.close()
        self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def file(self) -> Path:
        """The database file."""
        return self._database.file

    def get(self, key: str) -> Answer | None:
        """The stored answer; None when there is none or a blob it refers to is gone."""
        value = self._get(key)
        if isinstance(value, EffectiveKV):
            raise self._damaged(f"answer {key}", "is of another kind")
        return value if value is not None and _complete(value, self.blobs) else None

    def put(self, key: str, answer: Answer) -> None:
        """Keeps the answer from now on."""
        self._put(key, answer)

    def get_many(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Those answers that are stored."""
        return _found(self, keys)

    def effective(self, digest: str) -> EffectiveKV | None:
        """What a session under this identity really allocated, if one ever was."""
        value = self._get(key := f"effective:{digest}")
        if value is not None and not isinstance(value, EffectiveKV):
            raise self._damaged(f"answer {key}", "is of another kind")
        return value

    def put_effective(self, digest: str, effective: EffectiveKV) -> None:
        """Keeps it from now on."""
        self._put(f"effective:{digest}", effective)

    def fingerprint(self, file: Path) -> str | None:
        """The fingerprint last kept for this file, if it is unchanged by size, times and inode since."""
        state = _file_state(file)
        rows = self._database.read("SELECT fingerprint, sha256 FROM fingerprints WHERE file = ?", (state,))
        if not rows:
            return None
        fingerprint, checksum = rows[0]
        if checksum != _checksum(state, "fingerprint", str(fingerprint).encode()):
            raise self._damaged(f"fingerprint of {file}", "does not match its checksum")
        return str(fingerprint)

    def put_fingerprint(self, file: Path, fingerprint: str) -> None:
        """Keeps the fingerprint of a file's present content, so that it need not be read again."""
        state = _file_state(file)
        row = (state, fingerprint, _checksum(state, "fingerprint", fingerprint.encode()))
        with self._database.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO fingerprints VALUES (?, ?, ?)", row)

    def _get(self, key: str) -> Storable | None:
        rows = self._database.read("SELECT key, kind, body, sha256 FROM answers WHERE key = ?", (key,))
        if not rows:
            return None
        own_key, kind, body, checksum = rows[0]
        if own_key != key or not isinstance(body, bytes) or checksum != _checksum(key, kind, body):
            raise self._damaged(f"answer {key}", "does not match its checksum")
        try:
            return decode(body)
        except CodecError as error:
            raise self._damaged(f"answer {key}", f"cannot be read ({error})") from error

    def _put(self, key: str, value: Storable) -> None:
        kind, body = type(value).__name__, encode(value)
        row = (
            key,
            kind,
            sqlite3.Binary(body),
            _checksum(key, kind, body),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with self._database.writing() as connection:
            known = connection.execute("SELECT 1 FROM answers WHERE key = ?", (key,)).fetchone()
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", row)
            if known is None:
                self._database.add_key(connection, key)

    def _damaged(self, name: str, what: str) -> StoreError:
        return StoreError(
            f"the stored {name} in {self.file} {what}",
            hint=f"delete the file {self.file} (with -wal and -shm beside it) and run the same command again",
        )


class MemoryStore:
    """A store that lasts as long as the process (--no-cache); its blobs' `folder` is the caller's to remove."""

    def __init__(self, folder: Path) -> None:
        self.blobs = BlobFolder(folder)
        self._answers: dict[str, Answer] = {}
        self._effective: dict[str, EffectiveKV] = {}

    def get(self, key: str) -> Answer | None:
        """The stored answer; None when there is none or a blob it refers to is gone."""
        value = self._answers.get(key)
        return value if value is not None and _complete(value, self.blobs) else None

    def put(self, key: str, answer: Answer) -> None:
        """Keeps the answer from now on."""
        self._answers[key] = cast(Answer, decode(encode(answer)))

    def get_many(self, keys: Iterable[str]) -> dict[str, Answer]:
        """Those answers that are stored."""
        return _found(self, keys)

    def effective(self, digest: str) -> EffectiveKV | None:
        """What a session under this identity really allocated, if one ever was."""
        return self._effective.get(digest)

    def put_effective(self, digest: str, effective: EffectiveKV) -> None:
        """Keeps it from now on."""
        self._effective[digest] = effective


def _found(store: Store, keys: Iterable[str]) -> dict[str, Answer]:
    return {key: answer for key in keys if (answer := store.get(key)) is not None}


def _complete(answer: Answer, blobs: BlobFolder) -> bool:
    ref: BlobRef | None = answer.blob if isinstance(answer, Base) else None
    if isinstance(answer, Generation):
        ref = answer.base
    return ref is None or blobs.has(ref)


def _checksum(key: str, kind: object, body: bytes) -> str:
    digest = hashlib.sha256(f"{key}\n{kind}\n".encode())
    digest.update(body)
    return digest.hexdigest()


def _file_state(file: Path) -> str:
    """A digest of where the file is and everything the system says of its content's age. Raises: StoreError."""
    try:
        place, state = file.resolve(), file.stat()
    except OSError as error:
        message = f"cannot look at {file}: {error.strerror or error}"
        raise StoreError(message, hint="check the path and its permissions") from error
    parts = (place, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
