"""`refract repeatability`: runs a candidate several times and compares the spread with the stated interval."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from refract.cli.options import at_least_two, output_file
from refract.cli.score import add_measurement, add_progress

if TYPE_CHECKING:
    from refract.cli.parser import Commands

_DESCRIPTION = (
    "Runs one candidate several times, each in a session of its own, and compares how far its scores move with the "
    "interval that one run states. HEALTHY: the range is at most a quarter of the interval's width; NOISY: at most all "
    "of it; UNSTABLE: more, and the exit code is 10."
)


def add_parser(commands: Commands) -> None:
    """Adds `repeatability` to the commands."""
    summary = "run a candidate several times and see how far its scores move"
    parser = commands.add_parser("repeatability", help=summary, description=_DESCRIPTION)
    parser.add_argument("-n", "--runs", type=at_least_two, default=3, metavar="N", help="how often (default: 3)")
    add_measurement(parser)
    group = parser.add_argument_group("report")
    text = "also write the result as JSON; with - it goes to stdout instead of the text"
    group.add_argument("--json-out", type=output_file, metavar="FILE", help=text)
    add_progress(group)
    parser.set_defaults(run=run, fail_under=None, fail_over_kld=None)
    parser.set_defaults(control=False, no_control=True, explain=None, no_explain=True)


def run(args: argparse.Namespace) -> int:
    """Runs, compares and reports; returns 0, or 10 when something is UNSTABLE."""
    from refract.cli import repeating

    return repeating.repeat(args)
