"""`refract leaderboard`: a folder of reports as one Markdown page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.options import output_file

if TYPE_CHECKING:
    from refract.cli.parser import Commands

_DESCRIPTION = (
    "Writes a Markdown page of all reports in and below a folder: a ranked table for each model, engine and "
    "methodology, with what is of low confidence flagged. Only rows of one table compare."
)


def add_parser(commands: Commands) -> None:
    """Adds `leaderboard` to the commands."""
    summary = "make a page of a folder of reports"
    parser = commands.add_parser("leaderboard", help=summary, description=_DESCRIPTION)
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder of files that --json-out wrote")
    parser.add_argument("--out", type=output_file, metavar="FILE", help="where to write it (default: stdout)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes or prints the page. Returns 0."""
    from refract.cli.collecting import collect
    from refract.cli.output import STDOUT, check_outputs, emit, say
    from refract.report.leaderboard import leaderboard
    from refract.report.output import write_text_atomic

    check_outputs({"--out": args.out})
    found = collect([args.folder])
    page = leaderboard(found.reports, found.legacy)
    if args.out in (None, STDOUT):
        emit(page)
    else:
        write_text_atomic(args.out, page)
        say(f"wrote {args.out}: {len(found.reports) + len(found.legacy)} reports")
    return 0
