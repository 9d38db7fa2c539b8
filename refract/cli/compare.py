"""`refract compare`: several reports side by side, or one against an earlier one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.options import output_file
from refract.errors import UsageError

if TYPE_CHECKING:
    from refract.cli.parser import Commands
    from refract.report.compare import Change, Comparison

_DESCRIPTION = (
    "Ranks the candidates of several JSON reports, in one table for each methodology and model, and says what differs "
    "between the reports. With --baseline, shows what changed since that report, and exits with 10 when a score is "
    "worse."
)
REGRESSED = 10


def add_parser(commands: Commands) -> None:
    """Adds `compare` to the commands."""
    parser = commands.add_parser("compare", help="put several JSON reports side by side", description=_DESCRIPTION)
    parser.add_argument("reports", type=Path, nargs="+", metavar="REPORT", help="files that --json-out wrote")
    text = "an earlier report of the same methodology and model to compare the one REPORT with"
    parser.add_argument("--baseline", type=Path, metavar="REPORT", help=text)
    parser.add_argument("--markdown-out", type=output_file, metavar="FILE", help="also write Markdown")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; returns 0, or 10 when there is a baseline and a score is worse than its."""
    from refract.cli.output import check_outputs
    from refract.cli.reporting import read_report
    from refract.report.compare import changes, compare

    check_outputs({"--markdown-out": args.markdown_out})
    if args.baseline is None:
        _show(compare([(path.name, read_report(path)) for path in args.reports]), args.markdown_out)
        return 0
    if len(args.reports) != 1:
        message = f"--baseline compares one report with it, found {len(args.reports)}"
        raise UsageError(message, hint="name one REPORT, or leave --baseline out to rank them all")
    found = changes(read_report(args.baseline), read_report(args.reports[0]))
    _show(found, args.markdown_out)
    return REGRESSED if any(change.is_regression for change in found) else 0


def _show(found: Comparison | tuple[Change, ...], markdown_out: Path | None) -> None:
    from refract.cli.output import emit, say
    from refract.cli.reporting import text_form
    from refract.report.compare_text import changes_text, comparison_text
    from refract.report.markdown import changes_markdown, comparison_markdown
    from refract.report.output import write_text_atomic

    if isinstance(found, tuple):
        text, markdown = changes_text(found, **text_form()), changes_markdown(found)
    else:
        text, markdown = comparison_text(found, **text_form()), comparison_markdown(found)
    emit(text)
    if markdown_out is not None:
        write_text_atomic(markdown_out, markdown)
        say(f"wrote {markdown_out}")
