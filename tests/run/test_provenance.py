from __future__ import annotations

import getpass
import json
import re
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from refract.results import Report
from refract.run.machine import machine, packages
from refract.run.provenance import build_report, methodology
from refract.run.runner import RunResult, run
from refract.run.spec import RunSpec
from refract.run.store import MemoryStore
from refract.testing import FakeEngine
from refract.work import Answer, Failure, Request

from .scenario import Talk, corpus, prompt_set, small_spec


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(small_spec(), FakeEngine(), MemoryStore(tmp_path_factory.mktemp("blobs")))


def test_the_report_says_what_was_run_and_what_it_cost(result: RunResult) -> None:
    report = build_report(result, small_spec(), ["refract", "score", "--model", "a model"])
    assert report.schema == "refract.report/1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report.created)
    assert report.provenance.command == "refract score --model 'a model'"
    assert report.provenance.loads == 3
    assert report.provenance.answers == {"stored": 0, "computed": 22}
    assert set(report.provenance.machine) == {"os", "cpu", "cores", "memory_gib", "python"}
    assert "numpy" in report.provenance.packages
    assert report.methodology.prompts.startswith("small@")
    assert report.methodology.corpus.startswith("small@")
    assert json.dumps(asdict(report), allow_nan=False)


def _id(result: RunResult, spec: RunSpec) -> str:
    return methodology(result, spec).id


def test_the_methodology_id_follows_what_makes_scores_comparable(result: RunResult) -> None:
    spec = small_spec()
    own = _id(result, spec)
    assert own == _id(replace(result, loads=0, seconds={}, candidates=result.candidates[:1]), spec)
    assert own == _id(result, replace(spec, model="another", measure_floor=False, options={"x": "y"}))
    others = {
        _id(result, replace(spec, n_predict=7)),
        _id(result, replace(spec, prompts=prompt_set("Other"))),
        _id(result, replace(spec, corpus=corpus("Other"))),
        _id(replace(result, parameters={**result.parameters, "text": {"ctx": 512}}), spec),
        _id(replace(result, parameters={"talk": result.parameters["talk"]}), spec),
        _id(_with_estimator(result), spec),
    }
    assert len(others | {own}) == 7


def _with_estimator(result: RunResult) -> RunResult:
    candidates = tuple(
        replace(candidate, axes=tuple(replace(axis, estimator="kl-top64") for axis in candidate.axes))
        for candidate in result.candidates
    )
    return replace(result, candidates=candidates)


def _texts(report: Report) -> str:
    return json.dumps(asdict(report), ensure_ascii=False)


def test_no_home_folder_user_host_or_credential_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "people" / "jdoe"
    model = home / "models" / "a.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"weights")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "jdoe")
    monkeypatch.setattr(socket, "gethostname", lambda: "workbench7")
    assert getpass.getuser() == "jdoe"

    def fail(request: Request, answer: Answer | Failure) -> Answer | Failure:
        return Failure(kind="http", message=f"http://jdoe:secret@workbench7:80/?key=secret refused, log in {home}/log")

    spec = small_spec(model=str(model), options={"extra": f"--log {home}/log --api-key secret"})
    found = run(spec, FakeEngine(candidate_behaviour=fail), MemoryStore(tmp_path / "blobs"))
    command = ["refract", "score", "--model", str(model), "--server", "http://a:secret@workbench7/?t=secret"]
    report = build_report(found, spec, command)
    text = _texts(report)
    for word in ("jdoe", "workbench7", "secret", str(tmp_path)):
        assert word not in text, f"{word}: …{text[max(0, text.find(word) - 80) : text.find(word) + 40]}…"
    assert report.model.name == "a.gguf"
    assert "~/models/a.gguf" in report.provenance.command
    assert "refused, log in ~/log" in text


def test_what_the_model_wrote_is_left_as_it_is(result: RunResult) -> None:
    axis = result.candidates[0].axes[0]
    wrote = replace(axis.samples[0], detail={"text": "cd /home/somebody && token=abc"})
    candidate = replace(result.candidates[0], axes=(replace(axis, samples=(wrote, *axis.samples[1:])),))
    report = build_report(replace(result, candidates=(candidate,)), small_spec(axes=(Talk(),)), "refract")
    assert report.candidates[0].axes[0].samples[0].detail == {"text": "cd /home/somebody && token=abc"}


def test_machine_and_packages_are_plain_values() -> None:
    found = machine()
    assert isinstance(found["cpu"], str)
    assert isinstance(found["cores"], int)
    assert found["cores"] >= 1
    assert isinstance(found["memory_gib"], float)
    assert found["memory_gib"] > 0.0
    assert socket.gethostname() not in json.dumps(found)
    assert all(re.match(r"\d", version) for version in packages().values())
