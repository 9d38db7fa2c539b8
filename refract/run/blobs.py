"""The folder of large binary answers: files named by the sha256 of their content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from refract.atomic import write_atomically
from refract.errors import StoreError
from refract.work import BlobRef

_CHUNK_BYTES = 1 << 20


class BlobFolder:
    """Content-addressed files, written whole or not at all; fulfils `refract.engine.Blobs`.

    The content of a file is verified the first time this process reads it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._verified: set[str] = set()

    def put(self, data: bytes, *, format: str) -> BlobRef:
        """Stores `data` durably and names it. Raises: StoreError when the folder cannot be written."""
        ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data), format=format)
        target = self._file(ref)
        try:
            if not target.is_file() or target.stat().st_size != ref.size_bytes:
                write_atomically(target, data)
        except OSError as error:
            raise StoreError(
                f"cannot write {target}: {error.strerror or error}",
                hint="make room on that disk, or name another folder with --cache-dir",
            ) from error
        return ref

    def has(self, ref: BlobRef) -> bool:
        """Whether the blob's file is there, damaged or not."""
        return self._file(ref).is_file()

    def path(self, ref: BlobRef) -> Path:
        """The file that holds the blob, its size and sha256 verified. Raises: StoreError: missing or damaged."""
        file = self._file(ref)
        try:
            size = file.stat().st_size
            if size != ref.size_bytes:
                raise _damaged(file, f"holds {size} bytes, expected {ref.size_bytes}")
            if ref.sha256 not in self._verified and _sha256(file) != ref.sha256:
                raise _damaged(file, "is damaged: its content has another sha256 than its name")
        except FileNotFoundError:
            raise StoreError(f"the stored blob {file} is missing", hint="run the same command again") from None
        except OSError as error:
            raise StoreError(f"cannot read {file}: {error.strerror or error}", hint="check its permissions") from error
        self._verified.add(ref.sha256)
        return file

    def _file(self, ref: BlobRef) -> Path:
        return self.folder / ref.sha256[:2] / ref.sha256


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _damaged(file: Path, what: str) -> StoreError:
    return StoreError(f"the stored blob {file} {what}", hint="delete that file and run the same command again")
