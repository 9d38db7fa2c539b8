"""`refract selftest`: what is installed here and whether it works."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from refract.cli import presets
from refract.cli.engine_options import add_engine_options
from refract.cli.options import add_cache_dir

if TYPE_CHECKING:
    from refract.cli.parser import Commands

_DESCRIPTION = (
    "Checks versions, the engine, memory, disk and the answer store. With --model it also runs the model for a moment "
    "under the reference, under the candidate, and under the coarsest format the engine has, which must score lower. "
    "Each line says ok, warn or fail, and what to do. Exits with 3 when something fails."
)


def add_parser(commands: Commands) -> None:
    """Adds `selftest` to the commands."""
    summary = "check what is installed here and whether it works"
    parser = commands.add_parser("selftest", help=summary, description=_DESCRIPTION)
    text = "run this model too: a GGUF file, a folder, a hub name or a name of `refract fetch --list`"
    parser.add_argument("--model", metavar="MODEL", help=text)
    text = "the configuration to try besides the reference (default: ctk=q8_0,ctv=q8_0)"
    parser.add_argument("--candidate", default="ctk=q8_0,ctv=q8_0", metavar="KV", help=text)
    text = f"the reference's configuration (default: {presets.REFERENCE})"
    parser.add_argument("--reference", default=presets.REFERENCE, metavar="KV", help=text)
    add_engine_options(parser, parser)
    add_cache_dir(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints a line for every check; returns 0, or 3 when one failed."""
    from refract.cli import checking

    return checking.selftest(args)
