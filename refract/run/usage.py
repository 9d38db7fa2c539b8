"""Who uses a cache folder at the moment: claims that many processes may share, and one that needs it alone.

A claim is a lock of SQLite on an empty file of its own, so that it works on every system that SQLite does and ends with
the process, however that ends.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Self

from refract.errors import StoreError

FILE = "in-use.lock"
WAIT_S = 30.0  # for whoever has the folder alone: deleting takes moments


class Claim:
    """A cache folder in use for as long as this lives; usable as a context manager.

    With `alone`, nobody else uses the folder in that time.

    Raises: StoreError: somebody does, or the lock file cannot be used.
    """

    def __init__(self, folder: Path, *, alone: bool = False) -> None:
        file = folder / FILE
        try:
            self._connection = sqlite3.connect(file, timeout=0.0 if alone else WAIT_S, isolation_level=None)
            try:
                self._connection.execute("BEGIN EXCLUSIVE" if alone else "BEGIN")
                self._connection.execute("SELECT name FROM sqlite_master").fetchall()  # what takes a shared lock
            except sqlite3.Error:
                self._connection.close()
                raise
        except sqlite3.OperationalError as error:
            raise _refused(folder, error, alone=alone) from error
        except sqlite3.Error as error:
            raise StoreError(f"the lock file {file} is damaged", hint=f"delete the file {file}") from error

    def close(self) -> None:
        """Ends the claim."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refused(folder: Path, error: sqlite3.OperationalError, *, alone: bool) -> StoreError:
    if "locked" not in str(error):
        hint = "name a folder that can be written with --cache-dir, or keep nothing with --no-cache"
        return StoreError(f"the cache folder {folder} cannot be claimed: {error}", hint=hint)
    if alone:
        return StoreError(f"another refract uses the cache folder {folder}", hint="wait until it has ended")
    return StoreError(f"the cache folder {folder} is being pruned", hint="run the same command again in a moment")
