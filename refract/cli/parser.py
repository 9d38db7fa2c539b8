"""The argument parser: argparse with the house's error style, suggestions, and a variable for every option.

An option `--name` that is not on the command line is taken from `REFRACT_NAME`, for every command that has it. Flags
take 1/true/yes/on or 0/false/no/off, options that repeat take values separated by semicolons, empty means not set.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from refract.errors import UsageError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting, and knows the variable of each of its options."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})
        self._renamed: dict[str, str] = {}

    def rename_variable(self, option: str, variable: str) -> None:
        """Gives an option a variable other than the one its name makes."""
        self._renamed[option] = variable

    @property
    def variables(self) -> dict[str, argparse.Action]:
        """The options by the names of their variables."""
        options = {long_name(action): action for action in self._actions}
        return {
            self._renamed.get(name, "REFRACT_" + name.removeprefix("--").replace("-", "_").upper()): action
            for name, action in options.items()
            if name not in ("", "--help", "--version")
        }

    def error(self, message: str) -> NoReturn:
        """Raises: UsageError, always."""
        choice = re.search(r"invalid choice: '(.*?)' \((?:choose from|maybe)", message)
        hint = f"{self.prog} --help lists the options"
        if choice is not None:
            hint = suggestion(choice[1], re.findall(r"[\w.-]+", message[choice.end() :])) or hint
        raise UsageError(message.removeprefix("argument "), hint=hint)


def long_name(action: argparse.Action) -> str:
    """The option's first name with two dashes; empty for a positional argument."""
    return next((name for name in action.option_strings if name.startswith("--")), "")


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the closest known word, if one is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else None


def parse(parser: Parser, argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """The parsed command line, completed from the environment. Raises: UsageError; SystemExit after --help."""
    commands = commands_of(parser)
    at = next((i for i, word in enumerate(argv) if not word.startswith("-")), None)
    words = list(argv) if at is None else list(argv[:at])
    _check_options(parser, words)
    if at is None:
        parser.parse_args(words)  # --help and --version end here
        raise UsageError("no command given", hint=f"{parser.prog} --help lists the commands")
    command = commands.get(argv[at])
    if command is None:
        hint = suggestion(argv[at], commands) or f"{parser.prog} --help lists the commands"
        raise UsageError(f"unknown command {argv[at]}", hint=hint)
    given = list(argv[at + 1 :])
    _check_options(command, given)
    added = _from_environment(command, given, environ)
    return parser.parse_args([*words, argv[at], *added, *given])


def commands_of(parser: Parser) -> Mapping[str, Parser]:
    """The parsers of the commands, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def _check_options(parser: Parser, words: Sequence[str]) -> None:
    """Refuses unknown long options first, so that a typo is named rather than what it made missing."""
    known = parser._option_string_actions
    for before, word in pairwise(("", *words)):
        if word == "--":
            return
        name = word.partition("=")[0]
        if word.startswith("--") and name not in known:
            if before in known and known[before].nargs is None:
                hint = f"a value that begins with dashes is written {before}={shlex.quote(word)}"
                raise UsageError(f"{before} is followed by {word}, which is no option", hint=hint)
            hint = suggestion(name, known) or f"{parser.prog} --help lists the options"
            raise UsageError(f"unknown option {name}", hint=hint)


def _from_environment(parser: Parser, given: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Command-line words for every option that has a variable and is not given."""
    present = {word.partition("=")[0] for word in given}
    words: list[str] = []
    for variable, action in parser.variables.items():
        value = environ.get(variable, "").strip()
        if value and present.isdisjoint(action.option_strings) and not _excluded(parser, action, present):
            words += _words(variable, action, value)
    return words


def _excluded(parser: Parser, action: argparse.Action, present: set[str]) -> bool:
    """Whether the command line has an option that rules this one out."""
    groups = [group._group_actions for group in parser._mutually_exclusive_groups]
    return any(
        action in group and not present.isdisjoint(name for a in group for name in a.option_strings) for group in groups
    )


def _words(variable: str, action: argparse.Action, value: str) -> list[str]:
    name = long_name(action)
    if action.nargs == 0:
        if value.lower() not in (*_ON, *_OFF):
            raise UsageError(f"{variable} is {value!r}, expected 1 or 0", hint=f"it stands for {name}")
        return [name] if value.lower() in _ON else []
    values = value.split(";") if isinstance(action, argparse._AppendAction) else [value]
    _check_type(variable, action, values)
    return [f"{name}={item.strip()}" for item in values if item.strip()]


def _check_type(variable: str, action: argparse.Action, values: Sequence[str]) -> None:
    """Reads the values as argparse will, so that a bad one is reported under the variable's name."""
    for value in values:
        try:
            read = action.type(value) if callable(action.type) else value
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise UsageError(f"{variable}: {error}", hint=f"it stands for {long_name(action)}") from None
        if action.choices is not None and read not in action.choices:
            expected = ", ".join(map(str, action.choices))
            hint = suggestion(value, map(str, action.choices)) or f"it stands for {long_name(action)}"
            raise UsageError(f"{variable} is {value!r}, expected one of {expected}", hint=hint)
