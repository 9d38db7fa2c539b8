"""`refract completion`: a script that lets a shell complete commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refract.cli.parser import Commands, Parser

SHELLS = ("bash", "zsh", "fish")
_DESCRIPTION = (
    "Prints a script that completes refract's commands, options and files. bash reads it from "
    "~/.local/share/bash-completion/completions/refract, fish from ~/.config/fish/completions/refract.fish, zsh from a "
    "file _refract in a folder of $fpath."
)
_FILES = frozenset({"FILE", "PATH", "REPORT", "MODEL"})
_FOLDERS = frozenset({"DIR"})


def add_parser(commands: Commands) -> None:
    """Adds `completion` to the commands."""
    summary = "print a script for a shell's completion"
    parser = commands.add_parser("completion", help=summary, description=_DESCRIPTION)
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the script. Returns 0."""
    import shtab

    from refract.cli import build_parser
    from refract.cli.output import emit
    from refract.cli.parser import commands_of

    parser = build_parser()
    for action in _actions([parser, *commands_of(parser).values()]):
        kind = _completed(action)
        if kind is not None:
            action.complete = {"file": shtab.FILE, "folder": shtab.DIRECTORY}[kind]  # type: ignore[attr-defined]
    script = shtab.complete(parser, shell=args.shell, root_prefix="_refract")
    emit(script if script.endswith("\n") else script + "\n")
    return 0


def _actions(parsers: list[Parser]) -> Iterator[argparse.Action]:
    for parser in parsers:
        yield from parser._actions


def _completed(action: argparse.Action) -> str | None:
    """What completes the action's values: names of files, of folders, or nothing."""
    if action.metavar in _FILES:
        return "file"
    return "folder" if action.metavar in _FOLDERS else None
