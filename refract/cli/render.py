"""`refract render`: shows a report that was written as JSON as text, HTML or Markdown."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.forms import add_forms

if TYPE_CHECKING:
    from refract.cli.parser import Commands


def add_parser(commands: Commands) -> None:
    """Adds `render` to the commands."""
    summary = "show a JSON report as text, HTML or Markdown"
    parser = commands.add_parser("render", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.add_argument("report", type=Path, metavar="REPORT", help="a file that --json-out wrote; - reads stdin")
    add_forms(parser)
    parser.add_argument("--text", action="store_true", help="print the text too when a file is written")
    parser.set_defaults(run=run, json_out=None)


def run(args: argparse.Namespace) -> int:
    """Prints the report as text, or writes the files asked for. Returns 0."""
    from refract.cli.reporting import check_report_outputs, read_report, report_outputs, write_report

    check_report_outputs(args)
    text = args.text or not any(report_outputs(args).values())
    write_report(read_report(args.report), args, text=text)
    return 0
