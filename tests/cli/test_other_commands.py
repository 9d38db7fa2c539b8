"""`rescore`, `render` and `repeatability`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from refract.cli import repeating
from refract.cli.repeating import Spread
from refract.results import Estimate
from refract.testing import FakeEngine
from refract.work import Answer, CompareBase, Divergence, Failure, Request
from tests.cli.conftest import CANDIDATE, Shell


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    monkeypatch.setattr(repeating, "load_engine", lambda *_: engine)


def test_rescore_gives_the_same_scores_and_loads_nothing(refract: Shell) -> None:
    scored = refract.score("--json-out", "-").report
    rescored = refract("rescore", *refract.small, "--json-out", "-")
    assert rescored.code == 0
    assert rescored.report["candidates"] == scored["candidates"]
    assert len(refract.engine.loads) == 2


def test_rescore_of_a_run_that_never_was_is_incomplete(refract: Shell) -> None:
    ran = refract("rescore", *refract.small)
    assert ran.code == 5
    assert "refract score" in ran.err.splitlines()[-1]
    assert refract.engine.loads == []


def test_render_shows_what_score_showed(refract: Shell) -> None:
    scored = refract.score("--json-out", "r.json")
    rendered = refract("render", "r.json")
    assert (rendered.code, rendered.out) == (0, scored.out)
    assert rendered.err == ""


def test_render_writes_files_and_the_text_only_on_request(refract: Shell) -> None:
    refract.score("--json-out", "r.json")
    ran = refract("render", "r.json", "--html-out", "r.html")
    assert (ran.code, ran.out) == (0, "")
    assert CANDIDATE in Path("r.html").read_text()
    assert CANDIDATE in refract("render", "r.json", "--html-out", "r.html", "--text").out


def test_render_writes_every_form(refract: Shell) -> None:
    refract.score("--json-out", "r.json")
    forms = {"--html-out": "r.html", "--markdown-out": "r.md", "--model-card-out": "c.md", "--junit": "j.xml"}
    forms["--badge"] = "b.svg"
    ran = refract("render", "r.json", *(word for pair in forms.items() for word in pair))
    assert (ran.code, ran.out) == (0, "")
    assert all(CANDIDATE in Path(file).read_text().replace("\\_", "_") for file in forms.values())
    assert refract("render", "r.json", "--junit", "same", "--badge", "same").code == 2


def test_render_shows_several_reports_and_writes_one(refract: Shell) -> None:
    scored = refract.score("--json-out", "r.json")
    several = refract("render", "r.json", "r.json")
    assert several.code == 0
    assert several.out == f"==> r.json <==\n{scored.out}\n" * 2
    refused = refract("render", "r.json", "r.json", "--badge", "b.svg")
    assert (refused.code, refused.out, Path("b.svg").exists()) == (2, "", False)


def test_score_gives_junit_the_thresholds_that_were_missed(refract: Shell) -> None:
    ran = refract.score("--fail-under", "100", "--junit", "j.xml", "--progress", "none")
    assert ran.code == 10
    missed = ElementTree.fromstring(Path("j.xml").read_text()).find(".//failure")
    assert missed is not None
    assert missed.get("message", "").endswith("is below --fail-under 100")


@pytest.mark.parametrize("damage", [lambda text: text[:400], lambda text: text.replace("refract.report/1", "other/9")])
def test_render_refuses_a_damaged_report(refract: Shell, damage: Callable[[str], str]) -> None:
    refract.score("--json-out", "r.json")
    Path("r.json").write_text(damage(Path("r.json").read_text()))
    ran = refract("render", "r.json")
    assert ran.code == 2
    assert ran.err.startswith("refract: r.json")
    assert ran.out == ""


def test_colours_are_for_terminals_only(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in refract.score().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" in refract.score("--progress", "none").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in refract.score("--progress", "none").out


def test_a_repeatable_candidate_is_healthy_and_the_reference_is_answered_once(refract: Shell) -> None:
    ran = refract("repeatability", "-n", "3", *refract.small)
    assert ran.code == 0
    assert "UNSTABLE" not in ran.out
    assert ran.out.splitlines()[0] == f"{CANDIDATE}: HEALTHY  3 runs"
    assert ran.out.count("HEALTHY") == 4
    assert max(map(len, ran.out.splitlines())) <= 80
    assert refract.engine.loads == ["ctk=f16,ctv=f16", CANDIDATE, CANDIDATE, CANDIDATE]


def test_repetitions_start_with_what_score_found(refract: Shell) -> None:
    refract.score()
    refract("repeatability", "-n", "2", *refract.small)
    assert refract.engine.loads == ["ctk=f16,ctv=f16", CANDIDATE, CANDIDATE]


def test_an_engine_that_varies_is_found_out(refract: Shell, engine: FakeEngine) -> None:
    def vary(request: Request, answer: Answer | Failure) -> Answer | Failure:
        """KL that grows from one session to the next."""
        if isinstance(request, CompareBase) and isinstance(answer, Divergence):
            answer.kl[:] = answer.kl * np.float32(10.0 ** len(engine.loads))
        return answer

    engine.candidate_behaviour = vary
    ran = refract("repeatability", "-n", "2", *refract.small, "--json-out", "-")
    document = json.loads(ran.out)
    found = {row["score"]: row["verdict"] for row in document["spreads"]}
    assert document["verdict"] == "UNSTABLE"
    assert found["kld"] == "UNSTABLE"
    assert found["trajectory"] == "HEALTHY"
    assert ran.code == 10


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((80.0, 80.0), "HEALTHY"),
        ((80.0, 82.5), "HEALTHY"),
        ((80.0, 90.0), "NOISY"),
        ((80.0, 90.1), "UNSTABLE"),
        ((80.0, None), "UNSTABLE"),
        ((None, None), "not measured"),
    ],
)
def test_the_range_is_judged_by_the_stated_interval(scores: tuple[float | None, ...], verdict: str) -> None:
    stated = Estimate(value=80.0, low=75.0, high=85.0, n=10, clusters=10, method="test")
    assert Spread(name="kld", scores=scores, interval=stated).verdict == verdict


def test_repeatability_takes_one_candidate_and_two_runs(refract: Shell) -> None:
    ran = refract("repeatability", *refract.small, "--candidate", "ctk=q8_0,ctv=q8_0")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "refract: repeatability takes one candidate")
    assert refract("repeatability", "-n", "1", *refract.small).code == 2
