"""What a model is, whatever it is called and wherever it lies: the sha256 of its files' contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from refract.atomic import write_atomically
from refract.errors import ModelError

_CACHE_VERSION = 1


def fingerprint(files: Sequence[Path], cache_dir: Path | None) -> str:
    """`sha256:…` over the contents of `files`, in order.

    Each file's hash is remembered under `cache_dir` by device, inode, size and modification time, so that a large
    model is read once and not on every run. Raises: ModelError when a file cannot be read.
    """
    known = _Known(cache_dir)
    whole = hashlib.sha256()
    for file in files:
        whole.update(known.digest(file).encode())
    known.save()
    return f"sha256:{whole.hexdigest()}"


class _Known:
    """The file hashes remembered from earlier runs; a missing or damaged memory only costs time."""

    def __init__(self, cache_dir: Path | None) -> None:
        self._path = None if cache_dir is None else cache_dir / "fingerprints.json"
        self._hashes: dict[str, str] = {}
        self._changed = False
        with suppress(OSError, ValueError, AttributeError, LookupError, TypeError):
            if self._path is not None:
                content = json.loads(self._path.read_text("utf-8"))
                self._hashes = dict(content["hashes"]) if content.get("version") == _CACHE_VERSION else {}

    def digest(self, file: Path) -> str:
        try:
            facts = file.stat()
            key = f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}"
            if key not in self._hashes:
                with file.open("rb") as stream:
                    self._hashes[key] = hashlib.file_digest(stream, "sha256").hexdigest()
                self._changed = True
        except OSError as error:
            raise ModelError(
                f"cannot read {file.name}: {error.strerror}", hint="check the path and its permissions"
            ) from None
        return self._hashes[key]

    def save(self) -> None:
        if self._path is None or not self._changed:
            return
        with suppress(OSError):
            content = json.dumps({"version": _CACHE_VERSION, "hashes": self._hashes})
            write_atomically(self._path, content.encode())
