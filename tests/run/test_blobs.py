from __future__ import annotations

import errno
from pathlib import Path

import pytest

from refract.engine import Blobs
from refract.errors import StoreError
from refract.run.blobs import BlobFolder


def test_a_blob_comes_back_under_the_name_of_its_content(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path)
    assert isinstance(folder, Blobs)
    ref = folder.put(b"content", format="x/1")
    assert folder.path(ref).read_bytes() == b"content"
    assert (ref.size_bytes, ref.format) == (7, "x/1")
    assert folder.put(b"content", format="x/1") == ref
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [ref.sha256]


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    ref = BlobFolder(tmp_path / "a").put(b"content", format="x/1")
    other = BlobFolder(tmp_path / "b")
    assert not other.has(ref)
    with pytest.raises(StoreError, match=f"{ref.sha256} is missing"):
        other.path(ref)


@pytest.mark.parametrize("damage", [b"contenT", b"cont", b""])
def test_a_damaged_blob_is_named_with_what_to_do(tmp_path: Path, damage: bytes) -> None:
    ref = BlobFolder(tmp_path).put(b"content", format="x/1")
    next(file for file in tmp_path.rglob("*") if file.is_file()).write_bytes(damage)
    with pytest.raises(StoreError, match=ref.sha256) as caught:
        BlobFolder(tmp_path).path(ref)
    assert caught.value.hint is not None
    assert "delete that file" in caught.value.hint


def test_a_blob_cut_short_is_written_again(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path)
    ref = folder.put(b"content", format="x/1")
    folder.path(ref).write_bytes(b"co")
    assert folder.put(b"content", format="x/1") == ref
    assert folder.path(ref).read_bytes() == b"content"


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("refract.atomic.os.fsync", full)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        BlobFolder(tmp_path).put(b"content", format="x/1")
    assert caught.value.hint is not None
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        BlobFolder(tmp_path / "file").put(b"content", format="x/1")
