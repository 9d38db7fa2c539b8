"""Starting: what is imported, where words come from, and what happens when nobody reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refract import __version__
from refract.cli import COMMANDS, build_parser
from refract.cli.parser import commands_of, parse
from refract.errors import UsageError

HEAVY = ("numpy", "rich", "jinja2", "requests", "sqlite3", "mlx", "gguf", "transformers", "torch")


def run(*words: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """`python -m refract` in a process of its own."""
    command = [sys.executable, "-m", "refract", *words]
    return subprocess.run(command, text=True, capture_output=True, **kwargs)  # type: ignore[call-overload,no-any-return]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from refract.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert "score" in done.stdout
    assert set(done.stderr.split()).isdisjoint(HEAVY)


def test_version_and_help_are_for_stdout() -> None:
    assert run("--version").stdout == f"refract {__version__}\n"
    for command in COMMANDS:
        done = run(command.__name__.rpartition(".")[2], "--help")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["formats", "--help", "fetch --list"])
def test_a_reader_that_has_gone_is_no_error(words: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "REFRACT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "refract", *words.split()]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_streams_are_no_error() -> None:
    command = f"{sys.executable} -m refract formats >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_said(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "refract", "fetch", "--list", "--cache-dir", str(tmp_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert "stdout cannot be written: No space left on device" in done.stderr


def test_an_ascii_terminal_gets_every_character_in_some_form() -> None:
    done = run("formats", "--nö", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 2
    assert "unknown option --n\\xf6" in done.stderr


def parsed(words: str, **environ: str) -> object:
    return vars(parse(build_parser(), words.split(), environ))


def test_every_option_has_a_variable() -> None:
    for command in commands_of(build_parser()).values():
        options = {name for action in command._actions for name in action.option_strings if name.startswith("--")}
        named = {name for action in command.variables.values() for name in action.option_strings}
        assert options - named <= {"--help"}


def test_a_variable_stands_for_its_option_and_the_command_line_wins() -> None:
    assert parsed("score", REFRACT_CTX="256")["ctx"] == 256  # type: ignore[index]
    assert parsed("score --ctx 128", REFRACT_CTX="256")["ctx"] == 128  # type: ignore[index]
    assert parsed("score --ctx=128", REFRACT_CTX="256")["ctx"] == 128  # type: ignore[index]
    assert parsed("score", REFRACT_CTX="")["ctx"] == 512  # type: ignore[index]


def test_flags_and_repeated_options_have_variables_too() -> None:
    assert parsed("score", REFRACT_QUICK="yes")["quick"] is True  # type: ignore[index]
    assert parsed("score", REFRACT_QUICK="0")["quick"] is False  # type: ignore[index]
    several = parsed("score", REFRACT_CANDIDATE="ctk=q8_0,ctv=q8_0; ctk=q8_0,ctv=turbo3")
    assert several["candidate"] == ["ctk=q8_0,ctv=q8_0", "ctk=q8_0,ctv=turbo3"]  # type: ignore[index]
    replaced = parsed("score --candidate x", REFRACT_CANDIDATE="ctk=q8_0,ctv=q8_0")
    assert replaced["candidate"] == ["x"]  # type: ignore[index]
    assert parsed("score --full", REFRACT_QUICK="1")["quick"] is False  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("REFRACT_CTX", "abc", "REFRACT_CTX: expected a whole number of at least 1, found 'abc'"),
        ("REFRACT_QUICK", "maybe", "REFRACT_QUICK is 'maybe', expected 1 or 0"),
        ("REFRACT_PROGRESS", "plian", "REFRACT_PROGRESS is 'plian', expected one of auto, bar, plain, json, none"),
    ],
)
def test_a_bad_variable_is_reported_under_its_own_name(name: str, value: str, line: str) -> None:
    with pytest.raises(UsageError) as raised:
        parsed("score", **{name: value})
    assert raised.value.message == line
    assert raised.value.hint
