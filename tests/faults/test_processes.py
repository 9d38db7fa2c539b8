"""The whole program killed at any moment, twice at once, and on a disk that takes no more."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refract.run.prune import take_inventory

from . import program

Ask = Callable[..., dict[str, Any]]
KILLS = 20


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Gives the helper process a job and waits for its answer."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))}
    for name in [name for name in environ if name.startswith("REFRACT_")]:
        del environ[name]
    helper = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.program"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert helper.stdin is not None
    assert helper.stdout is not None
    stdin, stdout = helper.stdin, helper.stdout

    def asked(**job: Any) -> dict[str, Any]:
        stdin.write(json.dumps(job) + "\n")
        stdin.flush()
        found = json.loads(stdout.readline())
        assert isinstance(found, dict)
        return found

    yield asked
    stdin.close()
    assert helper.wait(timeout=30) == 0
    stdout.close()


@pytest.fixture(scope="module")
def whole(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """The report of a run that nothing disturbed, and how long it took."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    ran = ask(what="time", folder=str(folder))
    assert ran["code"] == 0, ran["said"]
    return program.essence((folder / "report.json").read_text()), ran["seconds"]


def report_of(folder: Path) -> dict[str, Any]:
    return program.essence((folder / "report.json").read_text())


def test_killed_at_twenty_moments_each_resumes_to_the_identical_report(
    ask: Ask, whole: tuple[dict[str, Any], float], tmp_path: Path
) -> None:
    expected, seconds = whole
    chosen = random.Random(20)
    stopped = 0
    for number in range(KILLS):
        folder = tmp_path / "run"  # the same name for all, since reports hold the command
        ran = ask(what="kill", folder=str(folder), after_s=chosen.random() * seconds)
        assert ran["first"] in (-9, 0), ran
        stopped += ran["first"] == -9
        assert ran["whole"]
        assert not [name for name in ran["left"] if name.startswith("report.json") and name != "report.json"]
        assert ran["second"] == 0, ran["said"]
        assert report_of(folder) == expected, f"kill {number}"
        left = set((folder / "cache").rglob("*.tmp"))  # of a blob that was being written
        assert left == set(take_inventory(folder / "cache").leftovers), "what refract prune removes"
        folder.rename(tmp_path / f"done-{number}")
    print(f"{stopped} of {KILLS} runs were really killed, all {KILLS} resumed to the identical report")
    assert stopped >= KILLS // 2


def test_two_at_once_share_a_cache_and_agree(ask: Ask, whole: tuple[dict[str, Any], float], tmp_path: Path) -> None:
    ran = ask(what="together", folder=str(tmp_path), names=["a", "b"])
    assert ran["codes"] == [0, 0], ran["said"]
    first, second = report_of(tmp_path / "a"), report_of(tmp_path / "b")
    assert first == second
    del first["provenance"]["command"]
    assert first == {**whole[0], "provenance": {k: v for k, v in whole[0]["provenance"].items() if k != "command"}}


@pytest.mark.parametrize("size_bytes", [0, 2_000, 9_000, 40_000, 60_000])
def test_no_file_may_grow_further(
    ask: Ask, whole: tuple[dict[str, Any], float], tmp_path: Path, size_bytes: int
) -> None:
    """What a full disk or a quota does, at several moments: a line, a hint, exit 3, and nothing lost."""
    folder = tmp_path / "run"
    ran = ask(what="limit", folder=str(folder), bytes=size_bytes)
    if ran["code"] != 0:
        assert ran["code"] == 3, ran["said"]
    assert "Traceback" not in ran["said"]
    assert "unexpected" not in ran["said"]
    assert ran["second"] == 0, program.said(folder)
    assert report_of(folder) == whole[0]


def test_a_disk_that_is_full(ask: Ask, whole: tuple[dict[str, Any], float], tmp_path: Path) -> None:
    """A file system of 160 KiB: the run stops with a line and a hint, goes on when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs more rights than this user has")
    try:
        folder = disk / "run"
        ran = ask(what="time", folder=str(folder))
        assert ran["code"] == 3, ran["said"]
        line, hint = ran["said"].splitlines()[-2:]
        assert "full" in line or "No space left" in line
        assert hint.startswith("  hint: ")
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        again = ask(what="time", folder=str(folder))
        assert again["code"] == 0, again["said"]
        assert report_of(folder) == whole[0]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
