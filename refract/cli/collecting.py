"""The reports that a command line names: files, and folders of them, with those of refract-llm beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from refract.cli.output import STDOUT, say
from refract.cli.reporting import read_text
from refract.data.textfile import is_folder
from refract.errors import ReportError
from refract.report import from_json
from refract.report.legacy import LegacyReport, read_legacy
from refract.results import Report

_MOST_NAMED = 5  # files of a folder that are no reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Reports with their names, and those of refract-llm."""

    reports: tuple[tuple[str, Report], ...]
    legacy: tuple[LegacyReport, ...]


def collect(paths: Sequence[Path]) -> Collected:
    """Every report among `paths`; of a folder, every report in and below it.

    A file that is named has to be a report; what else lies in a folder is passed over, and said on stderr.

    Raises: ReportError for a file that is no report, and where there is none at all.
    """
    found: list[Report | LegacyReport] = []
    names: list[str] = []
    passed_over: list[str] = []
    for path, name, chosen in _files(paths):
        try:
            found.append(read_any(path, name))
            names.append(name)
        except ReportError as error:
            if chosen:
                raise
            passed_over.append(error.message)
    _say_passed_over(passed_over)
    if not found:
        places = ", ".join(map(str, paths))
        raise ReportError(f"no report in {places}", hint="refract score --json-out FILE writes one")
    ours = [(name, report) for name, report in zip(names, found, strict=True) if isinstance(report, Report)]
    return Collected(reports=tuple(ours), legacy=tuple(report for report in found if isinstance(report, LegacyReport)))


def read_any(path: Path, name: str) -> Report | LegacyReport:
    """The report in a file, ours or refract-llm's, called `name`. Raises: ReportError."""
    text = read_text(path)
    return read_legacy(text, name=name) or from_json(text, source=str(path))


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, str, bool]]:
    """Each file, what to call it, and whether it was named itself."""
    for path in paths:
        if path != STDOUT and is_folder(path):
            yield from ((file, str(file.relative_to(path)), False) for file in sorted(path.rglob("*.json")))
        else:
            yield path, path.name, True


def _say_passed_over(lines: Sequence[str]) -> None:
    for line in lines[:_MOST_NAMED]:
        say(f"passed over: {line}")
    if len(lines) > _MOST_NAMED:
        say(f"passed over: {len(lines) - _MOST_NAMED} more files that are no reports")
