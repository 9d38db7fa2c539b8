"""A report in the forms a command line asks for."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TypedDict

from refract.cli.output import STDOUT, check_outputs, emit, say
from refract.errors import ReportError
from refract.report import from_json, to_json, to_text, write_text_atomic
from refract.results import Report

_WIDEST, _PIPED = 100, 80


def check_report_outputs(args: argparse.Namespace) -> None:
    """Makes sure that every report file asked for can be written. Raises: UsageError, SetupError."""
    check_outputs({"--json-out": args.json_out, "--html-out": args.html_out, "--markdown-out": args.markdown_out})


def write_report(report: Report, args: argparse.Namespace, *, text: bool) -> None:
    """Writes the text to stdout if that is wanted, then the files asked for.

    Raises:
        SetupError: a file or stdout cannot be written.
    """
    if text:
        emit(to_text(report, **text_form()))
    for path, form in ((args.json_out, to_json), (args.html_out, _html), (args.markdown_out, _markdown)):
        if path == STDOUT:
            emit(form(report))
        elif path is not None:
            write_text_atomic(path, form(report))
            say(f"wrote {path}")


def _html(report: Report) -> str:
    from refract.report import to_html  # with its template engine, which nothing else needs

    return to_html(report)


def _markdown(report: Report) -> str:
    from refract.report import to_markdown

    return to_markdown(report)


def read_report(path: Path) -> Report:
    """The report in a file, or on stdin for `-`. Raises: ReportError, naming the file."""
    try:
        text = sys.stdin.read() if path == STDOUT else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ReportError(f"{path} cannot be read: {reason}", hint="name a file that --json-out wrote") from None
    return from_json(text, source=str(path))


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
