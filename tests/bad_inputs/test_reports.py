"""Files that are no report, or not any more, given to the commands that read reports."""

from __future__ import annotations

import pytest

from .conftest import Bad
from .files import unreadable

AGAIN, WRITTEN = "run refract score again", "a file that --json-out wrote"
REPORTS = {
    "r-empty.json": ("is cut off", "not written to its end"),
    "r-cut.json": ("is cut off: Unterminated string", "not written to its end"),
    "r-text.json": ("is not JSON: Expecting value at line 1, column 1", "not a report"),
    "r-array.json": ("expected a report of schema 'refract.report/1', found no schema", "refract score"),
    "r-null.json": ("found no schema", "refract score"),
    "r-other.json": ("found schema 'someone.else/9'", "refract score"),
    "r-newer.json": ("found schema 'refract.report/2'", "refract score"),
    "r-no-schema.json": ("found no schema", "refract score"),
    "r-extra.json": ("$.extra is not a field of refract.report/1", "edited or is newer"),
    "r-missing.json": ("$.model is missing", "damaged or was edited"),
    "r-nan.json": ("NaN is not a JSON number", "refract score"),
    "r-huge.json": ("level: expected a finite number, found inf", AGAIN),
    "r-twice.json": ("the key 'schema' appears twice", "refract score"),
    "r-candidates.json": ("$.candidates: expected an array", AGAIN),
    "r-created.json": ("$.created: expected a string, found 7", AGAIN),
    "r-inside-out.json": ("low is missing", "damaged or was edited"),
    "r-latin1.json": ("it is not UTF-8", WRITTEN),
    "r-binary.json": ("it is not UTF-8", WRITTEN),
    "r-deep.json": ("is not a report", "refract score"),
    "page.html": ("is not JSON", "not a report"),
    "loop.json": ("Too many levels of symbolic links", WRITTEN),
    "dangling.json": ("No such file or directory", WRITTEN),
    "absent.json": ("No such file or directory", WRITTEN),
    "kept.json/x": ("Not a directory", WRITTEN),
    "r" * 300: ("File name too long", WRITTEN),
}


@pytest.mark.parametrize(
    "words",
    [["render"], ["render", "--html-out", "new.html"], ["compare"], ["compare", "kept.json"]],
    ids=["render", "to html", "compare", "compare with a good one"],
)
@pytest.mark.parametrize(("name", "expected"), REPORTS.items(), ids=[name[:20] for name in REPORTS])
def test_refused(bad: Bad, words: list[str], name: str, expected: tuple[str, str]) -> None:
    ran = bad.refuses(*words, name, code=2, line=expected[0], hint=expected[1])
    assert name in ran.err


def test_a_folder_is_no_report(bad: Bad) -> None:
    bad.refuses("render", "empty-folder", code=2, line="Is a directory", hint=WRITTEN)
    bad.refuses("compare", "empty-folder", code=2, line="no report in empty-folder", hint="--json-out")


@pytest.mark.usefixtures("no_root_powers")
def test_without_the_right_to_read(bad: Bad) -> None:
    unreadable(bad.folder, "kept.json")
    bad.refuses("render", "kept.json", code=2, line="kept.json cannot be read: Permission denied", hint=WRITTEN)


def test_a_report_that_never_ends_is_given_up(bad: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refract.cli.reporting.LARGEST", 1 << 20)
    bad.refuses("render", "/dev/zero", code=2, line="longer than any report, 1 Mi characters", hint=WRITTEN)
