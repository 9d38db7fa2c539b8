"""`compare` and `leaderboard`: files, folders, other programs' reports, and what a regression costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refract.testing import Behaviour, FakeEngine
from tests.cli.conftest import CANDIDATE, Shell
from tests.report.test_legacy import document


@pytest.fixture
def reports(refract: Shell) -> Path:
    """A folder with two comparable reports, one of another methodology, and things that are no reports."""
    folder = refract.folder / "reports"
    refract.score("--json-out", "reports/a.json")
    small = [word for word in refract.small if word not in ("--candidate", CANDIDATE)]
    refract("score", *small, "--candidate", "ctk=turbo2,ctv=turbo2", "--json-out", "reports/deep/b.json")
    refract("score", *small, "--n-predict", "9", "--candidate", CANDIDATE, "--json-out", "reports/c.json")
    return folder


def test_the_candidates_of_comparable_reports_are_ranked(refract: Shell, reports: Path) -> None:
    both = refract("compare", "reports/a.json", "reports/deep/b.json", "--markdown-out", "c.md", "--html-out", "c.html")
    assert both.code == 0
    assert both.out.index("a.json") < both.out.index("b.json")
    assert "a.json" in Path("c.md").read_text()
    assert "a.json" in Path("c.html").read_text()
    assert refract("compare", "reports/a.json").code == 0


def test_what_differs_is_named_and_not_ranked(refract: Shell, reports: Path) -> None:
    mixed = refract("compare", "reports/a.json", "reports/c.json").out
    assert "n_predict" in mixed
    assert "must not be ranked" in mixed


def test_a_folder_stands_for_the_reports_in_it(refract: Shell, reports: Path) -> None:
    (reports / "old.json").write_text(document())
    (reports / "cut.json").write_text((reports / "a.json").read_text()[:500])
    (reports / "notes.json").write_text("{}")
    ran = refract("compare", "reports")
    assert ran.code == 0
    assert "deep/b.json" in ran.out
    assert "another methodology" in ran.out
    assert "29.1 FAIL" in ran.out
    assert [line for line in ran.err.splitlines() if "cut.json is cut off" in line]
    assert len([line for line in ran.err.splitlines() if line.startswith("refract: passed over: ")]) == 2


def test_very_many_other_files_are_counted(refract: Shell, reports: Path) -> None:
    for number in range(9):
        (reports / f"x{number}.json").write_text("{}")
    assert "passed over: 4 more files that are no reports" in refract("compare", "reports").err


@pytest.mark.parametrize("what", ["empty", "missing.json", "cut.json", "notes.json"])
def test_what_is_named_has_to_be_a_report(refract: Shell, reports: Path, what: str) -> None:
    (refract.folder / "empty").mkdir()
    (refract.folder / "cut.json").write_text((reports / "a.json").read_text()[:500])
    (refract.folder / "notes.json").write_text('{"schema": "other/1"}')
    ran = refract("compare", "reports/a.json", what) if what != "empty" else refract("compare", what)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 2


def test_markdown_goes_to_stdout_on_request(refract: Shell, reports: Path) -> None:
    assert "| candidate |" in refract("compare", "reports/a.json", "--markdown").out


def test_a_regression_is_an_exit_code_and_a_line(refract: Shell, engine: FakeEngine) -> None:
    refract.score("--json-out", "old.json")
    same = refract("compare", "old.json", "old.json", "--fail-on-regression")
    assert (same.code, same.err) == (0, "")
    engine.candidate_behaviour = Behaviour.CONSTANT_JUNK
    refract.score("--no-cache", "--json-out", "new.json")
    worse = refract("compare", "old.json", "new.json", "--fail-on-regression", "--html-out", "c.html", "--markdown")
    assert worse.code == 10
    assert "worse" in worse.out
    assert f"refract: {CANDIDATE}: kld fell from 99.7 to 0.0, by 99.7 points, [" in worse.err
    assert "are worse" in Path("c.html").read_text()
    assert refract("compare", "new.json", "old.json", "--fail-on-regression").code == 0


def test_text_of_a_report_gives_the_terminal_no_orders(refract: Shell, reports: Path) -> None:
    whole = json.loads((reports / "a.json").read_text())
    whole["candidates"][0]["kv"] = "\x1b[31mevil\x1b[0m"
    (refract.folder / "old.json").write_text(json.dumps(whole))
    for axis in whole["candidates"][0]["axes"]:
        axis |= {"score": None, "status": "failed", "reason": "\x1b]0;title\x07"}
    whole["candidates"][0]["composite"] |= {"score": None, "reason": "none", "band": None}
    (refract.folder / "new.json").write_text(json.dumps(whole))
    ran = refract("compare", "old.json", "new.json", "--fail-on-regression")
    assert ran.code == 10
    assert "\\x1b[31mevil" in ran.err
    assert not {"\x1b", "\x07"} & set(ran.out + ran.err)


def test_a_regression_needs_an_old_and_a_new_report_that_compare(refract: Shell, reports: Path) -> None:
    (refract.folder / "old.json").write_text(document())
    flag = "--fail-on-regression"
    assert refract("compare", "reports/a.json", flag).code == 2
    assert refract("compare", "reports/a.json", "reports", flag).code == 2
    assert "another methodology" in refract("compare", "old.json", "reports/a.json", flag).err
    assert "n_predict" in refract("compare", "reports/c.json", "reports/a.json", flag).err


def test_forty_reports_and_one(refract: Shell, reports: Path) -> None:
    whole = json.loads((reports / "a.json").read_text())
    many = refract.folder / "many"
    many.mkdir()
    for number in range(40):
        (many / f"{number:02d}.json").write_text(json.dumps(whole))
    ran = refract("compare", "many")
    assert ran.code == 0
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert "39.json" in ran.out


def test_a_leaderboard_of_a_folder(refract: Shell, reports: Path) -> None:
    (reports / "old.json").write_text(document())
    printed = refract("leaderboard", "reports")
    assert printed.code == 0
    assert printed.out.startswith("# Leaderboard\n")
    written = refract("leaderboard", "reports", "--out", "LEADERBOARD.md")
    assert (written.code, written.out) == (0, "")
    assert Path("LEADERBOARD.md").read_text() == printed.out
    assert "4 reports" in written.err
    assert refract("leaderboard", "nowhere").code == 2
