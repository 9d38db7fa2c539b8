"""What a user can get wrong: one line, one hint, the right exit code, and no model loaded for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import CANDIDATE, Ran, Shell

BAD = {
    "unknown option": (["--candidat", "x"], 2, "unknown option --candidat", "did you mean --candidate?"),
    "value with dashes": (["--llama-extra-flags", "--no-repack"], 2, "is no option", "--llama-extra-flags=--no-repack"),
    "values with dashes": (
        ["--llama-extra-flags", "--rope-freq-scale 0.5"],
        2,
        "is no option",
        "--llama-extra-flags='--rope-freq-scale 0.5'",
    ),
    "option of another tool": (["--kv-bits", "4"], 2, "unknown option --kv-bits", "refract score --help"),
    "mistyped key": (["--candidate", "ctk=q8_0,cvt=q4_0"], 2, "--candidate: unknown key cvt", "ctv"),
    "unknown format": (["--candidate", "ctk=q8_0,ctv=turbo5x"], 2, "unknown format turbo5x", "turbo"),
    "reference mistyped": (["--reference", "f16"], 2, "--reference: f16 says no side", "ctk=f16,ctv=f16"),
    "unsupported format": (["--candidate", "ctk=fp8_e5m2,ctv=f16"], 2, "the fake engine has no fp8_e5m2", "another"),
    "same candidate twice": (["--candidate", CANDIDATE], 2, f"the candidate {CANDIDATE} is given 2 times", "once"),
    "unknown axis": (["--axes", "trajektory"], 2, "unknown axis trajektory", "did you mean trajectory?"),
    "empty axis": (["--axes", "kld,"], 2, "unknown axis without a name", "the axes are"),
    "axis twice": (["--axes", "kld,kld"], 2, "named twice", "once"),
    "not a number": (["--ctx", "many"], 2, "--ctx: expected a whole number of at least 1, found 'many'", "--help"),
    "zero": (["--n-predict", "0"], 2, "--n-predict: expected a whole number of at least 1", "--help"),
    "negative seed": (["--seed=-1"], 2, "--seed: expected a whole number of at least 0", "--help"),
    "score out of range": (["--fail-under", "101"], 2, "--fail-under: expected a number from 0 to 100", "--help"),
    "nan": (["--fail-over-kld", "nan"], 2, "--fail-over-kld: expected a number", "--help"),
    "unknown progress": (["--progress", "plian"], 2, "invalid choice: 'plian'", "did you mean plain?"),
    "engine option without value": (["--engine-arg", "threads"], 2, "expected key=value, found 'threads'", "--help"),
    "engine option twice": (["--engine-arg", "a=1", "--engine-arg", "a=2"], 2, "a is given twice", "one of them"),
    "batch twice": (["--engine-arg", "batch=1", "--batch", "2"], 2, "batch is given twice", "one of them"),
    "rniah twice": (["--rniah-lengths", "256", "--rniah-up-to", "512"], 2, "names every length", "keep one"),
    "rniah length": (
        ["--axes", "rniah", "--rniah-lengths", "512,x"],
        2,
        "--rniah-lengths: expected a whole number",
        "-h",
    ),
    "rniah length twice": (
        ["--axes", "rniah", "--rniah-lengths", "512,512"],
        2,
        "a length is given twice: 512, 512",
        "",
    ),
    "rniah too short": (["--axes", "rniah", "--rniah-lengths", "8"], 2, "expected at least 64, 1 and 1", ""),
    "rniah position": (
        ["--axes", "rniah", "--rniah-positions", "2"],
        2,
        "expected a number from 0 to 1, found '2'",
        "-h",
    ),
    "quick and full": (["--quick", "--full"], 2, "not allowed with", "--help"),
    "composite of one axis": (["--axes", "kld", "--fail-under", "90"], 2, "--fail-under needs a composite", "two axes"),
    "no kld to compare": (["--axes", "trajectory", "--fail-over-kld", "1"], 2, "needs the axis kld", "trajectory,kld"),
    "missing prompts": (["--prompts", "none.jsonl"], 2, "none.jsonl does not exist", "check the path"),
    "prompts a folder": (["--prompts", "."], 2, "is a folder", "file inside"),
    "missing corpus": (["--corpus", "none.txt"], 2, "none.txt does not exist", "check the path"),
    "corpus too short": (["--corpus", "short.txt"], 2, "short.txt", ""),
    "empty corpus": (["--corpus", "empty.txt"], 2, "empty.txt is empty", "check"),
    "binary corpus": (["--corpus", "binary.txt"], 2, "binary.txt is binary", "path"),
    "window above the context": (["--ctx", "100000"], 2, "--ctx 100000 needs 100000 tokens", "--ctx"),
    "default model missing": (["--model", "smollm2"], 3, "the default model is not here yet", "refract fetch"),
    "named model missing": (
        ["--model", "gemma3"],
        3,
        "the model gemma3 is not here yet",
        "refract fetch --model gemma3",
    ),
    "report path a folder": (["--json-out", "."], 2, "--json-out . is a folder", "write --json-out"),
    "report path with a slash": (
        ["--html-out", "new/"],
        2,
        "--html-out: expected a file, found the folder new/",
        "--help",
    ),
    "report path under a file": (["--json-out", "corpus.txt/r.json"], 3, "cannot be written", "choose a folder"),
    "one file for two reports": (["--json-out", "r", "--html-out", "./r"], 2, "name the same file", "its own"),
    "cache folder a file": (["--cache-dir", "corpus.txt"], 3, "cannot be written", "--cache-dir"),
}


@pytest.mark.parametrize(("words", "code", "line", "hint"), BAD.values(), ids=BAD)
def test_bad_input_is_a_line_and_a_hint(refract: Shell, words: list[str], code: int, line: str, hint: str) -> None:
    (refract.folder / "short.txt").write_text("Ten bytes.")
    (refract.folder / "empty.txt").write_text("")
    (refract.folder / "binary.txt").write_bytes(b"\0\1\2")
    ran = refract.score(*words)
    assert ran.code == code, ran.err
    _is_line_and_hint(ran, line, hint)
    assert refract.engine.loads == []


def _is_line_and_hint(ran: Ran, line: str, hint: str) -> None:
    said = ran.err.splitlines()
    assert line in said[0]
    assert said[0].startswith("refract: ")
    assert len(said) <= 2
    assert hint in said[-1]
    assert len(said) == 1 or said[1].startswith("  hint: ")
    assert ran.out == ""


def test_a_prompt_that_cannot_be_read_is_named_by_file_and_line(refract: Shell) -> None:
    (refract.folder / "bad.jsonl").write_text('{"prompt": "fine"}\n{"promt": "typo"}\n')
    ran = refract.score("--prompts", "bad.jsonl")
    assert ran.code == 2
    assert "bad.jsonl line 2: unknown key 'promt'" in ran.err


def test_a_folder_that_cannot_be_written_is_named_before_the_run(
    refract: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    ran = refract.score("--json-out", "locked/r.json")
    assert ran.code == 3
    _is_line_and_hint(ran, "--json-out locked/r.json cannot be written: Permission denied", "can write")
    assert refract.engine.loads == []


@pytest.mark.parametrize(
    ("words", "line", "hint"),
    [
        ([], "no command given", "--help"),
        (["scroe"], "unknown command scroe", "did you mean score?"),
        (["--versoin"], "unknown option --versoin", "did you mean --version?"),
        (["score"], "there is no candidate", "--candidate ctk=q8_0,ctv=turbo3"),
        (["score", "--candidate"], "--candidate: expected one argument", "--help"),
        (["score", "stray"], "unrecognized arguments: stray", "--help"),
        (["fetch"], "nothing to fetch", "--list"),
        (["fetch", "--model", "smolm2"], "no model smolm2 to fetch", "did you mean smollm2?"),
        (["formats", "--backend", "mxl"], "invalid choice: 'mxl'", "did you mean mlx?"),
        (["render"], "required: REPORT", "--help"),
        (["render", "none.json"], "none.json cannot be read: No such file or directory", "--json-out"),
        (["render", "corpus.txt"], "corpus.txt", ""),
    ],
)
def test_the_other_commands_refuse_the_same_way(refract: Shell, words: list[str], line: str, hint: str) -> None:
    ran = refract(*words)
    assert ran.code == 2
    _is_line_and_hint(ran, line, hint)


def test_an_unknown_backend_is_a_usage_error() -> None:
    from refract.backends import load_engine
    from refract.errors import UsageError

    with pytest.raises(UsageError, match="no backend mxl here") as raised:
        load_engine("mxl")
    assert raised.value.hint == "did you mean mlx?"


def test_a_backend_whose_package_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from refract import backends
    from refract.errors import MissingPackageError

    monkeypatch.setattr(backends, "BACKENDS", {"mlx": "package_that_is_nowhere.engine:Engine"})
    with pytest.raises(MissingPackageError, match="needs the Python package package_that_is_nowhere") as raised:
        backends.load_engine("mlx")
    assert raised.value.hint == "pip install 'refract-kv[mlx]'"
    assert raised.value.exit_code == 3


def test_a_backend_may_come_from_another_distribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from refract import backends

    package = tmp_path / "other_engine"
    (tmp_path / "other_engine-1.dist-info").mkdir(parents=True)
    (tmp_path / "other_engine-1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: other-engine\nVersion: 1\n"
    )
    (tmp_path / "other_engine-1.dist-info/entry_points.txt").write_text(
        "[refract.backends]\nother = other_engine:make\n"
    )
    package.mkdir()
    (package / "__init__.py").write_text("def make(options, cache_dir):\n    return dict(options)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert backends.load_engine("other", {"a": "1"}) == {"a": "1"}
    assert backends.backend_names()[-1] == "other"
