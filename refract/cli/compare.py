"""`refract compare`: several reports side by side, or one against an earlier one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from refract.cli.options import output_file
from refract.errors import ReportError, UsageError

if TYPE_CHECKING:
    from refract.cli.collecting import Collected
    from refract.cli.parser import Commands
    from refract.report.changes import Changes

_DESCRIPTION = (
    "Ranks the candidates of several JSON reports, in one table for each methodology, model and engine, differences "
    "paired on the same prompts and windows, and says what differs between the reports. Reports of refract-llm are "
    "listed and never ranked. With --fail-on-regression it takes two reports, OLD and NEW, shows what changed, and "
    "exits with 10 when a score is worse: a paired interval below 0 after Holm's correction over all scores, or a "
    "score that is gone."
)
REGRESSED = 10


def add_parser(commands: Commands) -> None:
    """Adds `compare` to the commands."""
    parser = commands.add_parser("compare", help="put several JSON reports side by side", description=_DESCRIPTION)
    text = "files that --json-out wrote, or folders of them"
    parser.add_argument("reports", type=Path, nargs="+", metavar="REPORT", help=text)
    text = "take two reports, OLD and NEW, and exit with 10 when a score of NEW is worse"
    parser.add_argument("--fail-on-regression", action="store_true", help=text)
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of tables")
    parser.add_argument("--markdown-out", type=output_file, metavar="FILE", help="also write Markdown")
    parser.add_argument("--html-out", type=output_file, metavar="FILE", help="also write one HTML file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; returns 0, or 10 when a regression was looked for and found."""
    from refract.cli.collecting import collect
    from refract.cli.output import check_outputs

    check_outputs({"--markdown-out": args.markdown_out, "--html-out": args.html_out})
    if args.fail_on_regression and len(args.reports) != 2:
        message = f"--fail-on-regression takes two reports, OLD and NEW, found {len(args.reports)}"
        raise UsageError(message, hint="refract compare old.json new.json --fail-on-regression")
    found = collect(args.reports)
    return _regressions(found, args) if args.fail_on_regression else _ranked(found, args)


def _ranked(found: Collected, args: argparse.Namespace) -> int:
    from refract.cli.reporting import text_form
    from refract.report.compare import compare
    from refract.report.compare_html import comparison_html
    from refract.report.compare_text import comparison_text
    from refract.report.markdown import comparison_markdown

    comparison = compare(found.reports, found.legacy)
    _show(
        args,
        text=lambda: comparison_text(comparison, **text_form()),
        markdown=lambda: comparison_markdown(comparison),
        html=lambda: comparison_html(comparison),
    )
    return 0


def _regressions(found: Collected, args: argparse.Namespace) -> int:
    from refract.cli.output import say
    from refract.report.compare_text import regression_line

    changes = _changes(found)
    _show_changes(changes, args)
    for change in changes.regressions:
        say(regression_line(change))
    return REGRESSED if changes.regressions else 0


def _changes(found: Collected) -> Changes:
    """Raises: ReportError unless there are two reports of ours that compare."""
    from refract.report.changes import changes

    if found.legacy:
        name = found.legacy[0].name
        raise ReportError(f"{name} is a report of refract-llm, another methodology", hint="score the candidate again")
    if len(found.reports) != 2:
        raise ReportError(f"found {len(found.reports)} reports, expected OLD and NEW", hint="name the two files")
    return changes(found.reports[0][1], found.reports[1][1])


def _show_changes(changes: Changes, args: argparse.Namespace) -> None:
    from refract.cli.reporting import text_form
    from refract.report.compare_html import changes_html
    from refract.report.compare_text import changes_text
    from refract.report.markdown import changes_markdown

    _show(
        args,
        text=lambda: changes_text(changes, **text_form()),
        markdown=lambda: changes_markdown(changes),
        html=lambda: changes_html(changes),
    )


def _show(
    args: argparse.Namespace, *, text: Callable[[], str], markdown: Callable[[], str], html: Callable[[], str]
) -> None:
    """Prints the text or the Markdown, and writes the files asked for."""
    from refract.cli.output import emit, say
    from refract.report.output import write_text_atomic

    emit(markdown() if args.markdown else text())
    for path, form in ((args.markdown_out, markdown), (args.html_out, html)):
        if path is not None:
            write_text_atomic(path, form())
            say(f"wrote {path}")
