"""`refract render`: shows reports that were written as JSON as text, or one of them in another form."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.forms import add_forms
from refract.errors import UsageError

if TYPE_CHECKING:
    from refract.cli.parser import Commands

_DESCRIPTION = (
    "Shows JSON reports as text, one after the other, or writes one of them as HTML, Markdown, a block for a model "
    "card, JUnit XML or a badge. Nothing is measured, and the same report gives the same bytes."
)


def add_parser(commands: Commands) -> None:
    """Adds `render` to the commands."""
    summary = "show a JSON report as text, HTML, Markdown and more"
    parser = commands.add_parser("render", help=summary, description=_DESCRIPTION)
    text = "a file that --json-out wrote; - reads stdin"
    parser.add_argument("report", type=Path, nargs="+", metavar="REPORT", help=text)
    add_forms(parser)
    parser.add_argument("--text", action="store_true", help="print the text too when a file is written")
    parser.set_defaults(run=run, json_out=None)


def run(args: argparse.Namespace) -> int:
    """Prints reports as text, or writes one to the files asked for. Returns 0."""
    from refract.cli.output import emit
    from refract.cli.reporting import check_report_outputs, read_report, report_outputs, text_form, write_report
    from refract.report import to_text

    check_report_outputs(args)
    files = any(report_outputs(args).values())
    if len(args.report) == 1:
        write_report(read_report(args.report[0]), args, text=args.text or not files)
        return 0
    if files:
        message = f"a file shows one report, found {len(args.report)}"
        raise UsageError(message, hint="render them one by one, or put them side by side: refract compare")
    reports = [read_report(path) for path in args.report]
    for path, report in zip(args.report, reports, strict=True):
        emit(f"==> {path.name} <==\n{to_text(report, **text_form())}\n")
    return 0
