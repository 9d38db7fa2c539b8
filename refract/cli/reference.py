"""docs/help.md and docs/environment.md, made from the parsers: `python -m refract.cli.reference docs`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from refract.cli import build_parser
from refract.cli.parser import Parser, commands_of, long_name

_MADE = "<!-- Made by `make docs` from the command line's own definitions; edits are lost. -->\n"
_HOW = """\
Every option of every command may also be given by an environment variable. The command line wins. An empty variable is
as good as none. Flags take `1`, `true`, `yes` or `on`, and `0`, `false`, `no` or `off`. An option that may be repeated
takes several values separated by semicolons: `REFRACT_CANDIDATE='ctk=q8_0,ctv=q8_0;ctk=q8_0,ctv=turbo3'`.

Besides these, `NO_COLOR` and `TERM=dumb` turn colours off, and `XDG_CACHE_HOME` moves the cache folder when neither
`--cache-dir` nor `REFRACT_CACHE_DIR` does. `REFRACT_API_KEY` is sent as a bearer token to servers that somebody else
started, and is never written anywhere.
"""


def help_page(parser: Parser) -> str:
    """docs/help.md: every command with its options."""
    parts = [_MADE, "# Commands\n", f"{parser.description}\n", f"{parser.epilog}\n"]
    for name, command in commands_of(parser).items():
        parts += [f"## refract {name}\n", f"{command.description}\n", "".join(_rows(command))]
    return "\n".join(parts)


def environment_page(parser: Parser) -> str:
    """docs/environment.md: every variable, the option it stands for and the commands that read it."""
    readers: dict[tuple[str, str], list[str]] = {}
    for name, command in commands_of(parser).items():
        for variable, action in command.variables.items():
            readers.setdefault((variable, long_name(action)), []).append(name)
    rows = [
        f"| `{variable}` | `{option}` | {', '.join(names)} |\n" for (variable, option), names in sorted(readers.items())
    ]
    table = "| variable | option | commands |\n|---|---|---|\n" + "".join(rows)
    return "\n".join([_MADE, "# Environment variables\n", _HOW, table])


def _rows(command: Parser) -> Iterator[str]:
    yield "| argument | what |\n|---|---|\n"
    for action in command._actions:
        if "--help" not in action.option_strings:
            text = (action.help or "").replace("|", "\\|")
            yield f"| `{_spelled(action)}` | {text} |\n"


def _spelled(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    choices = "\\|".join(map(str, action.choices)) if action.choices else ""
    value = action.metavar if isinstance(action.metavar, str) else choices or action.dest.upper()
    return f"{names} {value}".strip()


def main(folder: Path) -> None:
    """Writes both pages into the folder."""
    parser = build_parser()
    (folder / "help.md").write_text(help_page(parser), encoding="utf-8")
    (folder / "environment.md").write_text(environment_page(parser), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
