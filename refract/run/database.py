"""The store's SQLite file: opened, checked, versioned, and every failure of it turned into one line and a hint."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

from refract.errors import StoreError

FORMAT_VERSION = 1
BUSY_TIMEOUT_S = 30.0

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE answers (key TEXT PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL, sha256 TEXT NOT NULL,
                      created TEXT NOT NULL);
CREATE TABLE fingerprints (file TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, sha256 TEXT NOT NULL);
"""
_TABLES = {"meta", "answers", "fingerprints"}


class Database:
    """One connection. `meta.keys` is the XOR of the sha256 of all keys: an index that lost one is found at opening."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the folder {file.parent}: {error.strerror or error}", hint="name another with --cache-dir"
            ) from error
        with self._translated():
            self._connection = sqlite3.connect(file, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        with ExitStack() as unless_prepared:
            unless_prepared.callback(self._connection.close)
            self._prepare()
            unless_prepared.pop_all()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query. Raises: StoreError."""
        with self._translated(), closing(self._connection.execute(sql, parameters)) as cursor:
            return cursor.fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, committed at the end or, on any exception, as if it never was. Raises: StoreError."""
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def add_key(self, connection: sqlite3.Connection, key: str) -> None:
        """Takes a new key into the database's checksum; call it in the transaction that inserts the key."""
        (total,) = connection.execute("SELECT value FROM meta WHERE name = 'keys'").fetchone()
        connection.execute("UPDATE meta SET value = ? WHERE name = 'keys'", (f"{int(total, 16) ^ _digest(key):064x}",))

    def remove(self, keys: Sequence[str]) -> None:
        """Deletes these answers, and gives their room back to the disk. Raises: StoreError."""
        with self.writing() as connection:
            connection.executemany("DELETE FROM answers WHERE key = ?", [(key,) for key in keys])
            for key in keys:
                self.add_key(connection, key)  # a second time takes it out again
        with self._translated():
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _prepare(self) -> None:
        with self._translated():
            self._connection.text_factory = _text
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
        if not self._tables():
            self._create()
        if missing := _TABLES - self._tables():
            raise self._damaged(f"lacks the table {min(missing)}")
        self._check_version()
        self._check_keys()

    def _tables(self) -> set[str]:
        return {str(name) for (name,) in self.read("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def _create(self) -> None:
        """Makes the tables, unless another process did meanwhile."""
        with self.writing() as connection:
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    connection.execute(statement)
                meta = [("format", str(FORMAT_VERSION)), ("keys", f"{0:064x}")]
                connection.executemany("INSERT INTO meta VALUES (?, ?)", meta)

    def _check_version(self) -> None:
        rows = self.read("SELECT value FROM meta WHERE name = 'format'")
        found = str(rows[0][0]) if rows else "none"
        if found.isdecimal() and int(found) > FORMAT_VERSION:
            raise StoreError(
                f"{self.file} has format version {found}, this program reads {FORMAT_VERSION}",
                hint="update refract, or name another folder with --cache-dir",
            )
        if found != str(FORMAT_VERSION):
            raise self._damaged(f"has format version {found}, expected {FORMAT_VERSION}")

    def _check_keys(self) -> None:
        """Both the table and its index hold the keys that were put, the index in order: searches find what is there."""
        rows = self.read(
            "SELECT 0, value FROM meta WHERE name = 'keys'"
            " UNION ALL SELECT 1, key FROM answers INDEXED BY sqlite_autoindex_answers_1"
            " UNION ALL SELECT 2, key FROM answers NOT INDEXED"
        )  # one statement, hence one snapshot
        kept, index, table = ([str(value) for source, value in rows if source == part] for part in range(3))
        for keys in (index, table):
            if [f"{reduce(xor, map(_digest, keys), 0):064x}"] != kept:
                raise self._damaged("lost some of its keys")
        if index != sorted(index, key=str.encode):
            raise self._damaged("has keys out of order")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns SQLite's errors into StoreError."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise self._operational(error) from error
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where SQLite quotes damaged text
            raise self._damaged(f"is not a sound database ({error})") from error

    def _operational(self, error: sqlite3.OperationalError) -> StoreError:
        text = str(error)
        hints = {
            "locked": "another process kept it locked for 30 s: wait for it, or name another folder with --cache-dir",
            "full": "make room on that disk, or name another folder with --cache-dir",
            "I/O": "make room on that disk, or name another folder with --cache-dir",
            "unable to open": "name a folder that can be written with --cache-dir, or keep nothing with --no-cache",
            "readonly": "name a folder that can be written with --cache-dir, or keep nothing with --no-cache",
        }
        for word, hint in hints.items():
            if word in text:
                return StoreError(f"the answer store {self.file} cannot be used: {text}", hint=hint)
        return self._damaged(f"is not a sound database ({text})")

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            f"the answer store {self.file} {what}",
            hint=f"delete the file {self.file} (with -wal and -shm beside it) and run the same command again",
        )


def _text(data: bytes) -> str:
    """Damaged text still compares, unequal, instead of failing without a name."""
    return data.decode("utf-8", "replace")


def _digest(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest(), "big")
