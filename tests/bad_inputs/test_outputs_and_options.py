"""Places that cannot be written, and options that mean nothing, over every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refract.report import from_json

from .conftest import Bad

SCORE = ("score", "--model", "fake", "--prompts", "prompts.jsonl", "--corpus", "corpus.txt", "--chunks", "6")
SMALL = (*SCORE, "--ctx", "48", "--n-predict", "12", "--candidate", "ctk=q8_0,ctv=turbo3")
HELP = "--help lists the options"
PLACES = {
    "no name": (("--json-out", ""), 2, "is a folder, expected a file", "write --json-out"),
    "a folder": (("--json-out", "empty-folder"), 2, "--json-out empty-folder is a folder", "empty-folder/report"),
    "the folder itself": (("--badge", "."), 2, "--badge . is a folder", "write --badge"),
    "a slash": (("--html-out", "new/"), 2, "expected a file, found the folder new/", HELP),
    "below a file": (("--json-out", "kept.json/x"), 3, "kept.json/x cannot be written", "choose a folder"),
    "a link to itself": (("--json-out", "loop.json"), 2, "loop.json is a symbolic link that leads round", "another"),
    "a long name": (("--json-out", "é" * 200), 2, "a file name of 200 characters is too long", "another"),
    "a long path": (("--json-out", "a/" * 3000 + "x"), 3, "--json-out a/a/a", "choose a folder"),
    "below /proc": (("--json-out", "/proc/nothing/r.json"), 3, "cannot be written", "choose a folder"),
    "twice": (("--json-out", "r", "--junit", "./r"), 2, "name the same file", "each its own"),
    "cache a file": (("--cache-dir", "kept.json"), 3, "the cache folder kept.json cannot be written", "--cache-dir"),
    "cache a loop": (("--cache-dir", "loop.json"), 3, "the cache folder loop.json cannot be written", "--cache-dir"),
    "cache of nobody": (("--cache-dir", "~nobody-of-this-name/c"), 3, "no cache folder: Could not", "--cache-dir"),
    "cache below /proc": (("--cache-dir", "/proc/nothing"), 3, "/proc/nothing cannot be written", "--no-cache"),
}
OPTIONS = {
    "n-predict": (("--n-predict", "1e9"), "--n-predict: expected a whole number of at least 1, found '1e9'", HELP),
    "n-predict above the context": (("--n-predict", "99999999"), "fits the model's context", "lower --n-predict"),
    "chunks": (("--chunks", "0"), "--chunks: expected a whole number of at least 1", HELP),
    "chunks beyond the corpus": (("--chunks", "999999999"), "corpus.txt is too short", "lower --chunks"),
    "no prompts": (("--max-prompts", "0"), "--max-prompts: expected a whole number", HELP),
    "seed": (("--seed", "x"), "--seed: expected a whole number of at least 0", HELP),
    "depth": (("--depth", "-1"), "--depth: expected a whole number of at least 0", HELP),
    "depth beyond the context": (("--depth", "100000000"), "the model's context has", "use --depth"),
    "window of one token": (("--ctx", "1"), "expected at least 1 window of 8 tokens", "raise --ctx"),
    "parallel": (("--parallel", "0"), "--parallel: expected a whole number of at least 1", HELP),
    "batch": (("--batch", "x"), "--batch: expected a whole number of at least 1", HELP),
    "engine option": (("--engine-arg", "=1"), "--engine-arg: expected key=value, found '=1'", HELP),
    "axes": (("--axes", "plad,rniah,x"), "unknown axis x", "the axes are"),
    "same axis": (("--axes", "kld,kld"), "named twice", "once"),
    "threshold": (("--fail-under", "-1"), "--fail-under: expected a number from 0 to 100", HELP),
    "threshold in nats": (("--fail-over-kld", "inf"), "--fail-over-kld: expected a number", HELP),
    "margin alone": (("--margin", "2"), "--margin needs --non-inferior-to", "for example"),
    "comparator": (
        ("--non-inferior-to", "ctk=q8_0,ctv=q8_0", "--margin", "2"),
        "is not a candidate",
        "add --candidate",
    ),
    "trials": (("--axes", "rniah", "--rniah-trials", "0"), "--rniah-trials: expected a whole number", HELP),
    "positions": (("--axes", "rniah", "--rniah-positions", "nan"), "expected a number from 0 to 1", HELP),
    "lengths": (("--axes", "rniah", "--rniah-lengths", ""), "expected a whole number of at least 1", HELP),
    "short lengths": (("--axes", "rniah", "--rniah-lengths", "8"), "expected at least 64", "lengths from 64 up"),
    "same lengths": (("--axes", "rniah", "--rniah-lengths", "99,99"), "a length is given twice", "name each once"),
    "control": (("--control", "--no-control"), "not allowed with argument", HELP),
    "explain": (("--explain", "x"), "invalid choice: 'x'", HELP),
    "progress": (("--progress", ""), "invalid choice: ''", HELP),
    "stray word": (("stray",), "unrecognized arguments: stray", HELP),
    "unknown option": (("--candidat", "x"), "unknown option --candidat", "did you mean --candidate?"),
}
COMMANDS = {
    "nothing": ((), "no command given", "--help"),
    "an empty word": (("",), "unknown command", "--help"),
    "dashes": (("--",), "", "--help"),
    "unknown": (("scroe",), "unknown command scroe", "did you mean score?"),
    "render nothing": (("render",), "required: REPORT", HELP),
    "render to a folder": (("render", "kept.json", "--html-out", "empty-folder"), "is a folder", "--html-out"),
    "compare nothing": (("compare",), "required: REPORT", HELP),
    "regression of one": (("compare", "kept.json", "--fail-on-regression"), "takes two reports", "old.json new.json"),
    "compare to a folder": (("compare", "kept.json", "--html-out", "empty-folder"), "is a folder", "--html-out"),
    "formats": (("formats", "stray"), "unrecognized arguments: stray", HELP),
    "formats of nobody": (("formats", "--backend", "mxl"), "invalid choice: 'mxl'", "did you mean mlx?"),
    "fetch nothing": (("fetch",), "nothing to fetch", "--list"),
    "fetch unknown": (("fetch", "--model", "smolm2"), "no model smolm2 to fetch", "did you mean smollm2?"),
    "repeat once": (("repeatability", *SMALL[1:], "-n", "1"), "expected a whole number of at least 2", HELP),
    "repeat nothing": (("repeatability",), "there is no candidate", "--candidate"),
    "rescore nothing": (("rescore",), "there is no candidate", "--candidate"),
    "engines": (("engines",), "required: action", HELP),
    "build unknown": (("engines", "build-x"), "invalid choice: 'build-x'", HELP),
    "leaderboard of nothing": (("leaderboard", "empty-folder"), "no report in empty-folder", "--json-out"),
    "selftest": (("selftest", "stray"), "unrecognized arguments: stray", HELP),
}


@pytest.mark.parametrize(("words", "code", "line", "hint"), PLACES.values(), ids=PLACES)
def test_places_that_cannot_be_written(bad: Bad, words: tuple[str, ...], code: int, line: str, hint: str) -> None:
    bad.refuses(*SMALL, *words, code=code, line=line, hint=hint)


@pytest.mark.parametrize(("words", "line", "hint"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_mean_nothing(bad: Bad, words: tuple[str, ...], line: str, hint: str) -> None:
    bad.refuses(*SMALL, *words, code=2, line=line, hint=hint)


@pytest.mark.parametrize(("words", "line", "hint"), COMMANDS.values(), ids=COMMANDS)
def test_commands_that_mean_nothing(bad: Bad, words: tuple[str, ...], line: str, hint: str) -> None:
    bad.refuses(*words, code=2, line=line, hint=hint)


def test_rescoring_what_was_never_answered_is_incomplete(bad: Bad) -> None:
    ran = bad.shell("rescore", *SMALL[1:])
    assert ran.code == 5
    assert ran.out == ""
    assert bad.shell.engine.loads == []


@pytest.mark.usefixtures("no_root_powers")
@pytest.mark.parametrize("option", ["--json-out", "--html-out", "--markdown-out", "--junit", "--badge"])
def test_a_folder_that_may_not_be_written(bad: Bad, option: str) -> None:
    (bad.folder / "empty-folder").chmod(0o555)
    line = f"{option} empty-folder/r cannot be written: Permission denied"
    bad.refuses(*SMALL, option, "empty-folder/r", code=3, line=line, hint="can write to")


@pytest.mark.usefixtures("no_root_powers")
def test_a_cache_that_may_not_be_written(bad: Bad) -> None:
    (bad.folder / "empty-folder").chmod(0o555)
    line = "the cache folder empty-folder cannot be written: Permission denied"
    bad.refuses(*SMALL, "--cache-dir", "empty-folder", code=3, line=line, hint="--no-cache")


def test_a_full_device_costs_no_report(bad: Bad) -> None:
    """The text is printed, the file's failure is a line, and what was answered is kept."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this machine")
    ran = bad.shell(*SMALL, "--json-out", "/dev/full")
    assert ran.code == 3
    assert "ctk=q8_0,ctv=turbo3" in ran.out
    assert ran.err.splitlines()[-2:] == [
        "refract: cannot write /dev/full: the disk is full",
        "  hint: free some space or choose another folder",
    ]
    loads = len(bad.shell.engine.loads)
    again = bad.shell(*SMALL, "--json-out", "kept.json")
    assert again.code == 0
    assert len(bad.shell.engine.loads) == loads
    assert from_json((bad.folder / "kept.json").read_text()).candidates


@pytest.mark.parametrize(("target", "code"), [("/dev/full", 3), ("closed", 0), ("gone", 0)])
def test_stdout_that_takes_nothing(bad: Bad, target: str, code: int) -> None:
    """A full device is said; a stdout that is closed, or whose reader has gone, is nobody's fault."""
    if target == "/dev/full" and not Path(target).exists():
        pytest.skip("no /dev/full on this machine")
    shell = {"/dev/full": '"$@" > /dev/full', "closed": '"$@" >&-', "gone": '{ "$@"; echo $? > code; } | true'}[target]
    words = [sys.executable, "-m", "refract", "render", "kept.json"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        ["sh", "-c", shell, "sh", *words], cwd=bad.folder, env=environ, capture_output=True, text=True, check=False
    )
    found = int((bad.folder / "code").read_text()) if target == "gone" else ended.returncode
    assert found == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[:1] == (
        ["refract: stdout cannot be written: No space left on device"] * (code > 0)
    )
