"""Progress: what each form shows of the same events, with a clock that the test moves."""

from __future__ import annotations

import json

import pytest

from refract.cli.progress import BarProgress, PlainProgress, duration, json_lines, listener
from refract.run.progress import Answered, Event, PhaseEnded, PhaseStarted, RunEnded, RunStarted, SessionLoaded, Warned
from tests.cli.conftest import Shell

EVENTS: list[tuple[float, Event]] = [
    (0.0, RunStarted(phases=("reference", "ctk=q8_0,ctv=q8_0"))),
    (0.0, PhaseStarted(phase="reference", requests=4, stored=0, cost=400.0)),
    (5.0, SessionLoaded(phase="reference", kv="ctk=f16,ctv=f16", seconds=5.0)),
    (10.0, Answered(phase="reference", kind="Generate", cost=100.0)),
    (25.0, Answered(phase="reference", kind="Generate", cost=100.0)),
    (30.0, Warned(message="something odd")),
    (45.0, PhaseEnded(phase="reference", seconds=45.0)),
    (45.0, PhaseStarted(phase="ctk=q8_0,ctv=q8_0", requests=4, stored=4, cost=0.0)),
    (45.0, PhaseEnded(phase="ctk=q8_0,ctv=q8_0", seconds=0.01)),
    (45.0, RunEnded(seconds=3725.0, loads=1, stored=4, computed=4)),
]


def test_plain_lines_give_time_left_at_the_measured_rate() -> None:
    lines: list[str] = []
    now = [0.0]
    show = PlainProgress(lines.append, lambda: now[0])
    for at, event in EVENTS:
        now[0] = at
        show(event)
    assert lines == [
        "reference (1 of 2): 4 requests, 0 already answered",
        "reference (1 of 2): model loaded in 5.0 s",
        "reference (1 of 2): 50%, 20 s left",
        "something odd",
        "reference (1 of 2): done in 45 s",
        "ctk=q8_0,ctv=q8_0 (2 of 2): 4 requests, 4 already answered",
        "ctk=q8_0,ctv=q8_0 (2 of 2): done in 0.0 s",
        "4 answers computed, 4 read back, 1 model load, 1:02 h",
    ]


def test_json_lines_name_the_event(capsys: pytest.CaptureFixture[str]) -> None:
    for _, event in EVENTS:
        json_lines(event)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == {
        "schema": "refract.progress/1",
        "event": "run-started",
        "phases": ["reference", "ctk=q8_0,ctv=q8_0"],
    }
    assert [line["event"] for line in lines[1:3]] == ["phase-started", "session-loaded"]
    assert all("schema" not in line for line in lines[1:])


def test_a_bar_leaves_nothing_behind_but_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    with listener("bar") as show:
        for _, event in EVENTS:
            show(event)
    said = capsys.readouterr()
    assert said.out == ""
    assert "refract: something odd" in said.err


@pytest.mark.parametrize(("term", "kind"), [("xterm", BarProgress), ("dumb", PlainProgress)])
def test_a_bar_is_for_terminals_that_can_move_their_cursor(
    monkeypatch: pytest.MonkeyPatch, term: str, kind: type[object]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    with listener("auto") as show:
        assert isinstance(show, kind)


def test_warnings_give_the_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("bar", "plain"):
        with listener(mode) as show:  # type: ignore[arg-type]
            show(Warned(message="\x1b[31mred\x07"))
        assert "\\x1b[31mred" in capsys.readouterr().err


def test_none_says_nothing(refract: Shell) -> None:
    assert refract.score("--progress", "none").err == ""


def test_json_is_all_there_is_on_stderr(refract: Shell) -> None:
    ran = refract.score("--progress", "json", "--json-out", "-")
    events = [json.loads(line)["event"] for line in ran.err.splitlines()]
    assert (events[0], events[-1]) == ("run-started", "run-ended")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (9.96, "10 s"), (59.4, "59 s"), (185, "3:05 min"), (7800, "2:10 h")]
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
