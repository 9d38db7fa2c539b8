"""The command line: `main` runs one command and turns every error into an exit code and at most two lines."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from refract import __version__
from refract.cli import (
    compare,
    completion,
    engines,
    fetch,
    formats,
    leaderboard,
    prune,
    render,
    repeatability,
    rescore,
    score,
    selftest,
)
from refract.cli.legacy import translated
from refract.cli.output import prepare_streams, say
from refract.cli.parser import Parser, commands_of, parse
from refract.errors import RefractError
from refract.report import plain

COMMANDS = (
    score,
    selftest,
    compare,
    leaderboard,
    repeatability,
    fetch,
    prune,
    engines,
    render,
    rescore,
    formats,
    completion,
)
INTERRUPTED = 130
_LONGEST = 400  # characters of a message that are shown: it may quote what a user or a server gave
UNEXPECTED = 1
_GC_THRESHOLD = 100_000  # a run makes many small values and no cycles: collecting often only costs time
# Options whose values mean something else in other commands, so that one variable cannot serve both.
_VARIABLES = {
    "fetch": {
        "--model": "REFRACT_FETCH_MODEL",
        "--corpus": "REFRACT_FETCH_CORPUS",
        "--list": "REFRACT_FETCH_LIST",
    },
    "formats": {"--backend": "REFRACT_FORMATS_BACKEND", "--json": "REFRACT_FORMATS_JSON"},
    "render": {"--text": "REFRACT_RENDER_TEXT"},
}
_DEBUG = "show the traceback of an error"


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="refract",
        description="Tells how far a compressed KV cache moves a language model away from itself.",
        epilog="Exit codes: 0 ok, 2 usage, 3 setup, 4 engine, 5 incomplete (what was answered is kept: run again), "
        "10 a threshold is missed, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"refract {__version__}")
    parser.add_argument("--debug", action="store_true", help=_DEBUG)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for command in COMMANDS:
        command.add_parser(commands)
    for name, child in commands_of(parser).items():
        child.add_argument("--debug", action="store_true", help=_DEBUG)
        for option, variable in _VARIABLES.get(name, {}).items():
            child.rename_variable(option, variable)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; an error is a line and a hint on stderr, never a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(_GC_THRESHOLD)
    try:
        prepare_streams()
        args = parse(build_parser(), translated(words, say), os.environ)
        args.words = words
        code: int = args.run(args)
        return code
    except RefractError as error:
        return _refused(error, debug=_debug(words))
    except KeyboardInterrupt:
        say("interrupted: everything answered so far is kept, the same command goes on from there")
        return INTERRUPTED
    except SystemExit as end:
        return _ended(end)
    except Exception as error:  # noqa: BLE001 - the edge of the process: what is left is a fault of this program
        return _unexpected(error, debug=_debug(words))


def _debug(words: Sequence[str]) -> bool:
    return "--debug" in words or os.environ.get("REFRACT_DEBUG", "0").lower() not in ("", "0", "false", "no", "off")


def _refused(error: RefractError, *, debug: bool) -> int:
    if debug:
        _show_traceback(error)
    say(plain.line(error.message, _LONGEST))
    if hint := error.hint or error.usual_hint:
        say(plain.line(hint, _LONGEST), prefix="  hint: ")
    return error.exit_code


def _show_traceback(error: Exception) -> None:
    from traceback import format_exception

    say("".join(format_exception(error)).rstrip(), prefix="")


def _ended(end: SystemExit) -> int:
    """The code of --help and --version, and 0 where the reader of stdout has gone (rich ends the process then)."""
    if isinstance(end.__context__, BrokenPipeError):
        return 0
    return end.code if isinstance(end.code, int) else 0


def _unexpected(error: Exception, *, debug: bool) -> int:
    if debug:
        _show_traceback(error)
    say(plain.line(f"unexpected {type(error).__name__}: {' '.join(str(error).split())}", _LONGEST))
    again = (
        "please report it with the traceback above" if debug else "run it again with --debug and report what it shows"
    )
    say(f"this is a fault of refract; {again}", prefix="  hint: ")
    return UNEXPECTED
