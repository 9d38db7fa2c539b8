"""A run that ends at any point, in any way, goes on where it ended, and its report is that of an uninterrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refract.errors import EngineError
from refract.run.runner import run
from refract.run.store import AnswerStore
from refract.testing import FakeEngine, Fault

from . import scenario
from .scenario import essence, small_spec

TOTAL = 22


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    with AnswerStore(tmp_path_factory.mktemp("whole")) as store:
        found = run(small_spec(), FakeEngine(), store)
    assert found.answers == {"stored": 0, "computed": TOTAL}
    return essence(found, small_spec())


@pytest.mark.parametrize("after", range(TOTAL))
@pytest.mark.parametrize(("how", "error"), [("bug", EngineError), ("interrupt", KeyboardInterrupt)])
def test_resuming_after_every_answer(
    tmp_path: Path, uninterrupted: dict[str, object], after: int, how: str, error: type[BaseException]
) -> None:
    engine = FakeEngine(fault=Fault(after=after, how=how))  # type: ignore[arg-type]
    with AnswerStore(tmp_path) as store, pytest.raises(error):
        run(small_spec(), engine, store)
    assert engine.open_sessions == 0
    with AnswerStore(tmp_path) as store:
        found = run(small_spec(), engine, store)
    assert found.answers == {"stored": after, "computed": TOTAL - after}
    assert len(engine.answered) == TOTAL
    assert essence(found, small_spec()) == uninterrupted


@pytest.mark.parametrize(
    ("how", "after"), [*(("kill", after) for after in (0, 1, 3, 4, 9, 10, 15, 16, 21)), ("exit", 4), ("exit", 21)]
)
def test_resuming_after_kill_9(tmp_path: Path, uninterrupted: dict[str, object], how: str, after: int) -> None:
    command = [sys.executable, "-m", f"{__package__}.scenario", str(tmp_path), str(after), how]
    folder = Path(scenario.__file__).parents[1]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), *sys.path]))}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == (-signal.SIGKILL if how == "kill" else 9), ended.stderr
    engine = FakeEngine()
    with AnswerStore(tmp_path) as store:
        found = run(small_spec(), engine, store)
    assert found.answers == {"stored": after, "computed": TOTAL - after}
    assert len(engine.answered) == TOTAL - after
    assert essence(found, small_spec()) == uninterrupted


def test_dying_again_and_again_still_gets_there(tmp_path: Path, uninterrupted: dict[str, object]) -> None:
    engine = FakeEngine()
    for _ in range(TOTAL // 3):
        engine.fault = Fault(after=3, how="bug")
        with AnswerStore(tmp_path) as store, pytest.raises(EngineError):
            run(small_spec(), engine, store)
    engine.fault = None
    with AnswerStore(tmp_path) as store:
        found = run(small_spec(), engine, store)
    assert len(engine.answered) == TOTAL
    assert essence(found, small_spec()) == uninterrupted


def test_two_runs_at_once_share_a_store(tmp_path: Path, uninterrupted: dict[str, object]) -> None:
    command = [sys.executable, "-m", f"{__package__}.scenario", str(tmp_path), "0", "none"]
    folder = Path(scenario.__file__).parents[1]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), *sys.path]))}
    runs = [subprocess.Popen(command, env=environ) for _ in range(2)]
    assert [each.wait(timeout=60) for each in runs] == [0, 0]
    with AnswerStore(tmp_path) as store:
        found = run(small_spec(), FakeEngine(), store)
    assert found.loads == 0
    assert essence(found, small_spec()) == uninterrupted
