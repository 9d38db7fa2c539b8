"""`rescore`, `render`, `repeatability` and `selftest`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from refract.cli import checking, repeating
from refract.cli.repeating import Spread
from refract.errors import MissingPackageError
from refract.results import Estimate
from refract.testing import Behaviour, FakeEngine, Fault
from refract.work import Answer, CompareBase, Divergence, Failure, Generate, Request
from tests.cli.conftest import CANDIDATE, Shell


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    for module in (repeating, checking):
        monkeypatch.setattr(module, "load_engine", lambda *_: engine)


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


@pytest.mark.parametrize("damage", [lambda text: text[:400], lambda text: text.replace("refract.report/1", "other/9")])
def test_render_refuses_a_damaged_report(refract: Shell, damage: Callable[[str], str]) -> None:
    refract.score("--json-out", "r.json")
    Path("r.json").write_text(damage(Path("r.json").read_text()))
    ran = refract("render", "r.json")
    assert ran.code == 2
    assert ran.err.startswith("refract: r.json")
    assert ran.out == ""


def test_compare_ranks_the_candidates_of_comparable_reports(refract: Shell) -> None:
    refract.score("--json-out", "a.json")
    small = [word for word in refract.small if word not in ("--candidate", CANDIDATE)]
    refract("score", *small, "--candidate", "ctk=turbo2,ctv=turbo2", "--json-out", "b.json")
    refract("score", *small, "--n-predict", "9", "--candidate", CANDIDATE, "--json-out", "c.json")
    both = refract("compare", "a.json", "b.json", "--markdown-out", "c.md")
    assert both.code == 0
    assert both.out.index("a.json") < both.out.index("b.json")
    assert Path("c.md").read_text()
    assert refract("compare", "a.json").code == 0
    mixed = refract("compare", "a.json", "c.json").out
    assert "n_predict" in mixed
    assert "must not be ranked" in mixed


def test_compare_with_a_baseline_fails_on_a_worse_score_only(refract: Shell, engine: FakeEngine) -> None:
    refract.score("--json-out", "old.json")
    assert refract("compare", "old.json", "--baseline", "old.json").code == 0
    engine.candidate_behaviour = Behaviour.CONSTANT_JUNK
    refract.score("--no-cache", "--json-out", "new.json")
    worse = refract("compare", "new.json", "--baseline", "old.json")
    assert worse.code == 10
    assert "worse" in worse.out
    assert refract("compare", "old.json", "--baseline", "new.json").code == 0
    assert refract("compare", "old.json", "new.json", "--baseline", "old.json").code == 2


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
    assert ran.out.count("HEALTHY") == 3
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
    found = {row["score"]: row["verdict"] for row in json.loads(ran.out)["spreads"]}
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


def test_selftest_without_a_model_says_what_is_there(refract: Shell) -> None:
    ran = refract("selftest")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert any(line.startswith("ok    refract") for line in lines)
    assert any(line.startswith("ok    answer store") for line in lines)
    assert lines[-2:] == [
        "warn  model           the default model is not here yet",
        "      fix: refract fetch --model smollm2",
    ]
    assert refract.engine.loads == []


def test_selftest_with_a_model_generates_under_both_configurations(refract: Shell) -> None:
    ran = refract("selftest", "--model", "fake", "--candidate", CANDIDATE)
    assert ran.code == 0
    assert refract.engine.loads == ["ctk=f16,ctv=f16", CANDIDATE]
    assert [request.max_new_tokens for request in refract.engine.answered if isinstance(request, Generate)] == [16, 16]
    assert "4 of 4 layers compressed" in ran.out.splitlines()[-1]


@pytest.mark.parametrize("broken", [Fault(after=0, how="engine"), Behaviour.WRONG_SERVER, Behaviour.EMPTY])
def test_selftest_fails_where_generation_does(refract: Shell, engine: FakeEngine, broken: Fault | Behaviour) -> None:
    if isinstance(broken, Fault):
        engine.fault = broken
    else:
        engine.candidate_behaviour = broken
    ran = refract("selftest", "--model", "fake")
    failed = [line for line in ran.out.splitlines() if line.startswith("fail")]
    assert (ran.code, len(failed)) == (3, 1)


def test_selftest_names_what_is_missing_and_how_to_get_it(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> FakeEngine:
        raise MissingPackageError("the backend mlx needs the package mlx", hint="pip install 'refract-kv[mlx]'")

    monkeypatch.setattr(checking, "load_engine", missing)
    ran = refract("selftest")
    assert ran.code == 3
    assert ran.out.endswith(
        "fail  mlx             the backend mlx needs the package mlx\n      fix: pip install 'refract-kv[mlx]'\n"
    )


def test_selftest_reports_a_damaged_store(refract: Shell) -> None:
    refract.score()
    next(refract.folder.rglob("*.sqlite")).write_bytes(b"not a database " * 500)
    ran = refract("selftest")
    assert ran.code == 3
    assert any(line.startswith("fail  answer store") for line in ran.out.splitlines())
