"""A report in the forms a command line asks for."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from refract.cli.forms import FORMS
from refract.cli.output import STDOUT, check_outputs, emit, say
from refract.errors import ReportError
from refract.report import from_json, to_json, to_text, write_text_atomic
from refract.results import Report

_WIDEST, _PIPED = 100, 80
LARGEST = 256 << 20  # characters of a report; forty candidates of 240 prompts are a tenth of it


def report_outputs(args: argparse.Namespace) -> dict[str, Path | None]:
    """The files that a command line asks for, by option."""
    return {option: getattr(args, option[2:].replace("-", "_")) for option in ("--json-out", *FORMS)}


def check_report_outputs(args: argparse.Namespace) -> None:
    """Makes sure that every report file asked for can be written. Raises: UsageError, SetupError."""
    check_outputs(report_outputs(args))


def write_report(
    report: Report, args: argparse.Namespace, *, text: bool, missed: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Writes the text to stdout if that is wanted, then the files asked for.

    `missed` has a line for each threshold that a candidate misses, by its KV text.

    Raises:
        SetupError: a file or stdout cannot be written.
    """
    if text:
        emit(to_text(report, **text_form()))
    for option, path in report_outputs(args).items():
        if path is None:
            continue
        form = _form(option, report, missed or {})
        if path == STDOUT:
            emit(form)
        else:
            write_text_atomic(path, form)
            say(f"wrote {path}")


def _form(option: str, report: Report, missed: Mapping[str, Sequence[str]]) -> str:
    """The report in the form of an option; each brings the modules it needs and no other's."""
    match option:
        case "--html-out":
            from refract.report import to_html

            return to_html(report)
        case "--markdown-out":
            from refract.report import to_markdown

            return to_markdown(report)
        case "--model-card-out":
            from refract.report.modelcard import to_model_card

            return to_model_card(report)
        case "--junit":
            from refract.report.junit import to_junit

            return to_junit(report, missed)
        case "--badge":
            from refract.report.badge import to_badge

            return to_badge(report)
    return to_json(report)


def read_report(path: Path) -> Report:
    """The report in a file, or on stdin for `-`. Raises: ReportError, naming the file."""
    return from_json(read_text(path), source=str(path))


def read_text(path: Path) -> str:
    """The text of a report's file, or stdin for `-`. Raises: ReportError, naming the file."""
    hint = "name a file that --json-out wrote"
    try:
        if path == STDOUT:
            text = sys.stdin.read(LARGEST + 1)
        else:
            with path.open(encoding="utf-8") as file:
                text = file.read(LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ReportError(f"{path} cannot be read: {reason}", hint=hint) from None
    if len(text) > LARGEST:
        raise ReportError(f"{path} is longer than any report, {LARGEST >> 20} Mi characters", hint=hint)
    return text


class TextForm(TypedDict):
    """What the text forms of `refract.report` take."""

    width: int
    color: bool
    ascii: bool


def text_form() -> TextForm:
    """What suits stdout: a terminal's width up to 100 and its colours, 80 plain columns for files and pipes.

    NO_COLOR and TERM=dumb turn colours off; an encoding without the characters of tables and bars gets ASCII.
    """
    terminal = sys.stdout.isatty()
    width = min(_WIDEST, shutil.get_terminal_size().columns) if terminal else _PIPED
    color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return {"width": width, "color": color, "ascii": not (sys.stdout.encoding or "").lower().startswith("utf")}
