"""The answer store locked, damaged, read-only or gone, and a clock that jumps, as a whole command meets them."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from refract.run import database, provenance, store
from refract.testing import FakeEngine
from tests.bad_inputs import conftest as bad_inputs
from tests.cli import conftest
from tests.cli.conftest import Ran, Shell

from .program import essence

engine, refract, no_root_powers = conftest.engine, conftest.refract, bad_inputs.no_root_powers  # the fixtures


def score(refract: Shell) -> Ran:
    return refract.score("--json-out", "report.json", "--progress", "none")


def refused(ran: Ran, line: str, hint: str) -> None:
    said = ran.err.splitlines()
    assert ran.code == 3, ran.err
    assert len(said) == 2, ran.err
    assert line in said[0]
    assert hint in said[1]
    assert ran.out == ""


def answers(refract: Shell) -> Path:
    return refract.folder / "cache" / "answers.sqlite"


def test_a_locked_store_is_waited_for_then_named(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert score(refract).code == 0
    first = (refract.folder / "report.json").read_text()
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    other = sqlite3.connect(answers(refract), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        ran = refract.score("--candidate", "ctk=q4_0,ctv=q4_0", "--progress", "none")
        refused(ran, "database is locked", "another process")
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert score(refract).code == 0
    assert essence((refract.folder / "report.json").read_text()) == essence(first)


@pytest.mark.parametrize("damage", ["cut", "text", "middle", "zeros"])
def test_a_damaged_store_is_named_and_can_be_deleted(refract: Shell, damage: str) -> None:
    assert score(refract).code == 0
    first = (refract.folder / "report.json").read_text()
    file = answers(refract)
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(
        {
            "cut": data[: middle + 100],
            "text": b"no database" * 400,
            "middle": data[:middle] + bytes(2000) + data[middle + 2000 :],
            "zeros": bytes(len(data)),
        }[damage]
    )
    ran = score(refract)
    if ran.code:
        refused(ran, "answers.sqlite", "delete")
        assert (refract.folder / "report.json").read_text() == first, "the earlier report is still there"
        file.unlink()
        assert score(refract).code == 0
    assert essence((refract.folder / "report.json").read_text()) == essence(first)


def test_damage_anywhere_never_changes_a_report(refract: Shell) -> None:
    """Twenty random spots of the database and the blobs: the same report, or a line that names the file."""
    assert score(refract).code == 0
    first = essence((refract.folder / "report.json").read_text())
    files = [path for path in sorted((refract.folder / "cache").rglob("*")) if path.is_file() and path.stat().st_size]
    chosen, refusals = random.Random(7), 0
    for _ in range(20):
        file = chosen.choice(files)
        whole = file.read_bytes()
        at = chosen.randrange(len(whole))
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        ran = score(refract)
        if ran.code:
            refused(ran, file.name if file.suffix == ".sqlite" else "", "")
            refusals += 1
        else:
            assert essence((refract.folder / "report.json").read_text()) == first, f"{file.name} at {at}"
        file.write_bytes(whole)
    print(f"{refusals} of 20 damaged stores were refused, the others gave the same report")


def test_blobs_that_are_gone_are_made_again(refract: Shell) -> None:
    assert score(refract).code == 0
    first = essence((refract.folder / "report.json").read_text())
    blobs = [path for path in (refract.folder / "cache").rglob("*") if path.is_file() and path.suffix != ".sqlite"]
    assert blobs
    for blob in blobs:
        blob.unlink()
    assert score(refract).code == 0
    assert essence((refract.folder / "report.json").read_text()) == first


@pytest.mark.usefixtures("no_root_powers")
def test_a_store_that_may_not_be_written(refract: Shell) -> None:
    assert score(refract).code == 0
    first = (refract.folder / "report.json").read_text()
    answers(refract).chmod(0o444)
    ran = refract.score("--candidate", "ctk=q4_0,ctv=q4_0", "--progress", "none")
    refused(ran, "readonly", "--cache-dir")
    answers(refract).chmod(0o644)
    assert score(refract).code == 0
    assert essence((refract.folder / "report.json").read_text()) == essence(first)


class Jumping(datetime):
    """A calendar clock that leaps a day forward and two back."""

    leaps = itertools.cycle([timedelta(days=1), timedelta(days=-2), timedelta(), timedelta(days=36_500)])

    @classmethod
    def now(cls, tz: object = None) -> Jumping:
        moment = datetime(2026, 12, 1, tzinfo=UTC) + next(cls.leaps)
        return cls.fromisoformat(moment.isoformat())


def test_a_clock_that_jumps_changes_nothing_but_the_date(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert score(refract).code == 0
    first = essence((refract.folder / "report.json").read_text())
    turns = itertools.cycle([0.0, 1e6, -1e6, 3.0])
    monkeypatch.setattr(time, "time", lambda: 1_764_547_200.0 + next(turns))
    monkeypatch.setattr(provenance, "datetime", Jumping)
    monkeypatch.setattr(store, "datetime", Jumping)
    refract.engine.loads.clear()
    again = refract.score("--json-out", "report.json", "--progress", "none", "--cache-dir", "other")
    assert again.code == 0
    assert len(refract.engine.loads) == 2
    second = (refract.folder / "report.json").read_text()
    found = essence(second)
    found["provenance"]["command"] = first["provenance"]["command"]
    assert found == first
    assert all(value >= 0.0 for value in json.loads(second)["provenance"]["seconds"].values())
    third = refract.score("--json-out", "report.json", "--progress", "none", "--cache-dir", "other")
    assert third.code == 0
    assert len(refract.engine.loads) == 2, "answers of tomorrow are used today"


def test_an_engine_that_dies_again_and_again_still_gets_there(refract: Shell, engine: FakeEngine) -> None:
    from refract.testing import Fault

    for _ in range(6):
        engine.fault = Fault(after=4, how="bug")
        ran = score(refract)
        assert ran.code == 4
        assert "Traceback" not in ran.err
        assert ran.err.splitlines()[1].startswith("  hint: ")
    engine.fault = None
    assert score(refract).code == 0
    assert len(engine.answered) == 30
