"""`completion`: scripts that shells accept, with every command and option, and files where files belong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from refract.cli import COMMANDS, build_parser
from refract.cli.completion import SHELLS
from refract.cli.parser import commands_of
from tests.cli.conftest import Shell

CHECKED = {"bash": ("bash", "-n"), "zsh": ("zsh", "-n"), "fish": ("fish", "--no-execute")}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(refract: Shell, shell: str) -> None:
    ran = refract("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    for name, command in commands_of(build_parser()).items():
        assert name in ran.out
        for option in command._option_string_actions:
            assert option in ran.out or option.lstrip("-") in ran.out, f"{name} {option}"
    assert len(COMMANDS) == len(commands_of(build_parser()))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_it(refract: Shell, shell: str) -> None:
    program = shutil.which(CHECKED[shell][0])
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = refract.folder / "script"
    script.write_text(refract("completion", shell).out)
    done = subprocess.run([program, *CHECKED[shell][1:], str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def completed(folder: Path, script: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    line = " ".join(words)
    code = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1};"
        f" f=$(complete -p refract | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $f refract '{words[-1]}' '{words[-2]}';"
        " printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run([bash, "-c", code], capture_output=True, text=True, cwd=folder, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_choices_and_files(refract: Shell) -> None:
    script = refract.folder / "script"
    script.write_text(refract("completion", "bash").out)
    (refract.folder / "inner").mkdir()
    assert completed(refract.folder, script, "refract", "lead") == ["leaderboard"]
    assert completed(refract.folder, script, "refract", "score", "--jun") == ["--junit"]
    assert completed(refract.folder, script, "refract", "completion", "z") == ["zsh"]
    assert "prompts.jsonl" in completed(refract.folder, script, "refract", "score", "--prompts", "pro")


def test_another_shell_is_refused_with_a_hint(refract: Shell) -> None:
    ran = refract("completion", "fsh")
    assert ran.code == 2
    assert "did you mean fish?" in ran.err
