"""`selftest`: each line ok, warn or fail with the fix, and a canary that must lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from refract.cli import checking, trial
from refract.engine import Capability
from refract.errors import ConfigMismatchError, MissingPackageError, SetupError
from refract.kv import KVConfig
from refract.testing import Behaviour, FakeEngine, Fault
from refract.work import Generate
from tests.cli.conftest import CANDIDATE, Shell


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    monkeypatch.setattr(checking, "load_engine", lambda *_: engine)


def lines(text: str) -> list[str]:
    """The checks, each with what was wrapped below it."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            found[-1] += f" {line.strip()}"
        else:
            found.append(" ".join(line.split()))
    return found


def test_without_a_model_it_says_what_is_there(refract: Shell) -> None:
    ran = refract("selftest")
    said = lines(ran.out)
    assert ran.code == 0
    for name in ("refract", "system", "numpy", "memory", "disk", "answer store", "fake"):
        assert any(line.startswith(f"ok {name} ") for line in said), name
    assert said[-1] == "warn model the default model is not here yet fix: refract fetch --model smollm2"
    assert refract.engine.loads == []
    assert max(map(len, ran.out.splitlines())) <= 80


def test_an_engine_whose_programs_are_missing_fails_without_a_model(
    refract: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: FakeEngine, kv: KVConfig) -> frozenset[Capability]:
        raise SetupError("no llama-server on the PATH", hint="build it")

    monkeypatch.setattr(FakeEngine, "capabilities", missing)
    ran = refract("selftest")
    assert ran.code == 3
    assert "fail fake no llama-server on the PATH fix: build it" in lines(ran.out)


def test_with_a_model_it_generates_and_the_canary_loses(refract: Shell) -> None:
    ran = refract("selftest", "--model", "fake", "--candidate", CANDIDATE)
    said = lines(ran.out)
    assert ran.code == 0
    assert refract.engine.loads[:2] == ["ctk=f16,ctv=f16", CANDIDATE]
    assert len(refract.engine.loads) == 3
    asked = [request for request in refract.engine.answered if isinstance(request, Generate)]
    assert [request.max_new_tokens for request in asked] == [16, 16, 16]
    assert any("4 of 4 layers compressed" in line for line in said)
    assert said[-1].startswith(f"ok canary {refract.engine.loads[2]} scores ")
    assert f"as it must; {CANDIDATE} scores 9" in said[-1]
    assert any(line.startswith("ok chat template ") for line in said)


@pytest.mark.parametrize("broken", [Fault(after=0, how="engine"), Behaviour.WRONG_SERVER, Behaviour.EMPTY])
def test_it_fails_where_generation_does(refract: Shell, engine: FakeEngine, broken: Fault | Behaviour) -> None:
    if isinstance(broken, Fault):
        engine.fault = broken
    else:
        engine.candidate_behaviour = broken
    ran = refract("selftest", "--model", "fake")
    assert ran.code == 3
    assert any(line.startswith(("fail generation ", "fail ctk=")) for line in lines(ran.out))


@pytest.mark.parametrize("blind", [Behaviour.SILENTLY_UNCOMPRESSED, Behaviour.NAN_EVERYWHERE])
def test_a_canary_that_lives_fails(refract: Shell, engine: FakeEngine, blind: Behaviour) -> None:
    """Nothing is compressed though the engine says so, or the distributions are no numbers."""
    engine.candidate_behaviour = blind
    ran = refract("selftest", "--model", "fake")
    assert ran.code == 3
    assert lines(ran.out)[-1].startswith("fail canary ")


def test_a_canary_that_cannot_be_run_is_a_warning(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is already running has one configuration only."""
    real = FakeEngine.load

    def load(self: FakeEngine, spec: object, blobs: object) -> object:
        if str(spec.kv) not in ("ctk=f16,ctv=f16", CANDIDATE):  # type: ignore[attr-defined]
            raise ConfigMismatchError("the server runs another configuration", hint="start another")
        return real(self, spec, blobs)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeEngine, "load", load)
    ran = refract("selftest", "--model", "fake", "--candidate", CANDIDATE)
    assert ran.code == 0
    assert lines(ran.out)[-1].startswith("warn canary ")


def test_a_template_that_opens_a_thinking_part_is_a_warning(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "opens_thinking", lambda text: True)
    ran = refract("selftest", "--model", "fake")
    assert ran.code == 0
    assert any(line.startswith("warn thinking ") and "--n-predict" in line for line in lines(ran.out))


def test_it_names_what_is_missing_and_how_to_get_it(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> FakeEngine:
        raise MissingPackageError("the backend mlx needs the package mlx", hint="pip install 'refract-kv[mlx]'")

    monkeypatch.setattr(checking, "load_engine", missing)
    ran = refract("selftest")
    assert ran.code == 3
    assert lines(ran.out)[-1] == "fail mlx the backend mlx needs the package mlx fix: pip install 'refract-kv[mlx]'"


def test_it_reports_a_damaged_store(refract: Shell) -> None:
    refract.score()
    next(refract.folder.rglob("*.sqlite")).write_bytes(b"not a database " * 500)
    ran = refract("selftest")
    assert ran.code == 3
    assert any(line.startswith("fail answer store ") for line in lines(ran.out))


def test_it_shows_no_home_folder(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """These lines are asked for in bug reports."""
    monkeypatch.setattr(Path, "home", lambda: refract.folder)
    said = refract("selftest").out
    assert str(refract.folder) not in said
    assert "~/cache" in said


def test_colours_repeat_what_words_say(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in refract("selftest").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[32mok" in refract("selftest").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in refract("selftest").out
