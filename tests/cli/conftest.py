"""A command line whose engine is fake, whose inputs are small, and whose cache lies in the test's own folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from refract.cli import main, scoring
from refract.testing import FakeEngine

CANDIDATE = "ctk=q8_0,ctv=turbo3"
WORDS = "the slow river carried boats and cargo past seven quiet towns before winter closed the locks again "


@dataclass
class Ran:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, object]:
        """stdout as a JSON report."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


@dataclass
class Shell:
    """Runs commands in a folder with small inputs: `prompts.jsonl` and `corpus.txt`."""

    folder: Path
    engine: FakeEngine
    asked: list[tuple[str | None, Mapping[str, str]]]
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Ran:
        """What the command prints and returns."""
        self.capture.readouterr()
        code = main([*words])
        said = self.capture.readouterr()
        return Ran(code, said.out, said.err)

    def score(self, *words: str) -> Ran:
        """`refract score` over the small inputs."""
        return self("score", *self.small, *words)

    @property
    def small(self) -> tuple[str, ...]:
        """Options that make a run take a moment."""
        options = "--model fake --prompts prompts.jsonl --corpus corpus.txt --chunks 6 --ctx 48 --n-predict 12"
        return (*options.split(), "--candidate", CANDIDATE)


@pytest.fixture
def engine() -> FakeEngine:
    """The engine that every backend name gives."""
    return FakeEngine()


@pytest.fixture
def refract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: FakeEngine
) -> Shell:
    """The command `refract`."""
    for name in [name for name in os.environ if name.startswith("REFRACT_") or name in ("NO_COLOR", "COLUMNS")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REFRACT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    prompts = [json.dumps({"prompt": f"Write a line about {topic}."}) for topic in WORDS.split()[:6]]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    (tmp_path / "corpus.txt").write_text("".join(f"{n} {WORDS}{n * n}\n" for n in range(40)))
    asked: list[tuple[str | None, Mapping[str, str]]] = []

    def load_engine(name: str | None, options: Mapping[str, str], cache_dir: Path) -> FakeEngine:
        asked.append((name, options))
        return engine

    monkeypatch.setattr(scoring, "load_engine", load_engine)
    return Shell(tmp_path, engine, asked, capsys)
