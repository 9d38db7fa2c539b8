from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from refract.errors import RefractError, SetupError, UsageError
from refract.report.output import write_text_atomic


def test_writes_whole_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "r é.json"
    write_text_atomic(path, "é\n")
    write_text_atomic(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_lone_surrogates_do_not_stop_a_file(tmp_path: Path) -> None:
    write_text_atomic(tmp_path / "r", "\ud800")
    assert (tmp_path / "r").read_text() == r"\ud800"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text_atomic(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    write_text_atomic(tmp_path / "r", "x")
    (tmp_path / "plain").write_text("x")
    assert (tmp_path / "r").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder") as caught:
        write_text_atomic(tmp_path, "x")
    assert caught.value.hint


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(UsageError, match="part of the path is a file"):
        write_text_atomic(tmp_path / "f" / "r.json", "x")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name"):
        write_text_atomic(tmp_path / ("x" * 300), "x")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_devices_are_written_to_and_never_replaced() -> None:
    with pytest.raises(SetupError, match="disk is full"):
        write_text_atomic(Path("/dev/full"), "x")
    write_text_atomic(Path("/dev/null"), "x")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, SetupError, "disk is full"),
        (errno.EROFS, SetupError, "no permission"),
        (errno.EACCES, SetupError, "no permission"),
        (errno.EIO, SetupError, "I/O error"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[RefractError], message: str, call: str
) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number).replace("Input/output", "I/O"))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(kind, match=message) as caught:
        write_text_atomic(path, "new")
    monkeypatch.undo()
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
