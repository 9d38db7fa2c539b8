"""Files that are complete or not there at all."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from refract.atomic import write_atomically


def test_an_atomic_write_replaces_and_makes_missing_folders(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.json"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert [file.name for file in target.parent.iterdir()] == ["report.json"]
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_write_that_ends_early_keeps_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: BaseException
) -> None:
    target = tmp_path / "report.json"
    write_atomically(target, b"two")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(f"refract.atomic.os.{call}", fail)
    with pytest.raises(type(failure)):
        write_atomically(target, b"three")
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert target.read_bytes() == b"two"
