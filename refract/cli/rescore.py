"""`refract rescore`: scores a finished run again from its stored answers, without running the engine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from refract.cli.score import add_run_options

if TYPE_CHECKING:
    from refract.cli.parser import Commands

_DESCRIPTION = (
    "Scores again what was answered already, as after an update of refract; takes the options of the `refract score` "
    "that answered it. No weights are loaded; a missing answer ends it with exit code 5."
)


def add_parser(commands: Commands) -> None:
    """Adds `rescore` to the commands."""
    parser = commands.add_parser(
        "rescore", help="score a finished run again from its answers", description=_DESCRIPTION
    )
    add_run_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Scores and reports; returns 0, or 10 when a threshold is missed."""
    from refract.cli import scoring

    return scoring.score(args, allow_load=False)
