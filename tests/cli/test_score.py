"""`refract score`: what it prints where, what it writes, and the exit code of every outcome."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refract.axes import AXES
from refract.errors import EngineError, FloorError, SetupError
from refract.report.jsonfile import from_json
from refract.testing import Behaviour, FakeEngine, Fault
from tests.cli.conftest import CANDIDATE, Shell


def test_the_report_is_stdout_and_everything_else_stderr(refract: Shell) -> None:
    ran = refract.score()
    assert ran.code == 0
    assert CANDIDATE in ran.out
    assert "already answered" in ran.err
    assert "already answered" not in ran.out
    assert refract.engine.loads == ["ctk=f16,ctv=f16", CANDIDATE]


def test_asked_again_nothing_is_loaded_and_the_scores_are_the_same(refract: Shell) -> None:
    first = refract.score("--json-out", "-").report
    again = refract.score("--json-out", "-").report
    assert len(refract.engine.loads) == 2
    assert again["candidates"] == first["candidates"]


def test_no_cache_keeps_nothing(refract: Shell) -> None:
    refract.score("--no-cache")
    refract.score("--no-cache")
    assert len(refract.engine.loads) == 4
    assert not list(refract.folder.rglob("*.sqlite"))


def test_json_on_stdout_is_only_json(refract: Shell) -> None:
    ran = refract.score("--json-out", "-")
    report = from_json(ran.out)
    assert [candidate.kv for candidate in report.candidates] == [CANDIDATE]
    assert {axis.axis for axis in report.candidates[0].axes} == set(AXES) & {"trajectory", "kld"}


def test_files_are_written_besides_the_text(refract: Shell) -> None:
    ran = refract.score("--json-out", "new/folder/r.json", "--html-out", "r.html", "--markdown-out", "r.md")
    assert ran.code == 0
    assert CANDIDATE in ran.out
    assert from_json(Path("new/folder/r.json").read_text()).candidates[0].kv == CANDIDATE
    assert Path("r.html").read_text().lstrip().lower().startswith("<!doctype html")
    assert CANDIDATE in Path("r.md").read_text().replace("\\_", "_")
    assert sorted(path.name for path in refract.folder.iterdir() if path.name.startswith(".")) == []


def test_several_candidates_share_one_reference(refract: Shell) -> None:
    ran = refract.score("--candidate", "ctk=q8_0,ctv=q8_0")
    assert ran.code == 0
    assert len(refract.engine.loads) == 3


def test_the_engine_gets_its_name_and_options(refract: Shell) -> None:
    refract.score("--backend", "mlx", "--batch", "4", "--engine-arg", "threads=2")
    assert refract.asked == [("mlx", {"threads": "2", "batch": "4"})]


def test_the_command_in_the_report_shows_no_folder_of_the_user(refract: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(refract.folder))
    report = refract.score("--json-out", "-", "--cache-dir", str(refract.folder / "elsewhere")).report
    assert str(refract.folder) not in json.dumps(report)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--fail-under", "99.9"), "is below --fail-under 99.9"),
        (("--fail-over-kld", "0.0000001"), "is above --fail-over-kld 1e-07"),
    ],
)
def test_a_missed_threshold_is_exit_10_and_a_line(refract: Shell, words: tuple[str, ...], line: str) -> None:
    ran = refract.score(*words)
    assert ran.code == 10
    assert line in ran.err
    assert CANDIDATE in ran.out


def test_met_thresholds_are_exit_0(refract: Shell) -> None:
    assert refract.score("--fail-under", "0", "--fail-over-kld", "100").code == 0


def test_a_candidate_that_never_acted_passes_no_threshold(refract: Shell, engine: FakeEngine) -> None:
    engine.candidate_behaviour = Behaviour.NEVER_COMPRESSED
    ran = refract.score("--fail-under", "1", "--fail-over-kld", "100")
    assert ran.code == 10
    assert "no composite" in ran.err
    assert "no mean KL divergence" in ran.err


def test_an_engine_that_fails_is_exit_4_without_a_traceback(refract: Shell, engine: FakeEngine) -> None:
    engine.fault = Fault(after=3, how="engine")
    ran = refract.score()
    assert ran.code == EngineError.exit_code == 4
    assert "refract: the fake engine was told to fail" in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_the_wrong_effective_configuration_is_exit_4(refract: Shell, engine: FakeEngine) -> None:
    engine.candidate_behaviour = Behaviour.WRONG_SERVER
    assert refract.score().code == 4


def test_interrupted_is_exit_130_and_goes_on_from_there(refract: Shell, engine: FakeEngine) -> None:
    engine.fault = Fault(after=5, how="interrupt")
    ran = refract.score()
    assert ran.code == 130
    assert ran.err.splitlines()[-1].startswith("refract: interrupted: everything answered so far is kept")
    answers = refract.score("--json-out", "-").report["provenance"]["answers"]  # type: ignore[index]
    assert answers["stored"] >= 5


def test_a_fault_of_the_program_is_one_line_and_a_traceback_only_on_request(
    refract: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("refract.cli.scoring.run", crash)
    ran = refract.score()
    assert ran.code == 1
    assert ran.err.splitlines()[0] == "refract: unexpected RuntimeError: two lines"
    assert "--debug" in ran.err.splitlines()[1]
    assert len(ran.err.splitlines()) == 2
    assert "Traceback" in refract.score("--debug").err
    monkeypatch.setenv("REFRACT_DEBUG", "1")
    assert "Traceback" in refract.score().err


def test_a_file_that_cannot_be_written_after_all_does_not_cost_the_report(
    refract: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise SetupError("cannot write r.json: the disk is full")

    monkeypatch.setattr("refract.cli.reporting.write_text_atomic", full)
    ran = refract.score("--json-out", "r.json")
    assert ran.code == 3
    assert CANDIDATE in ran.out


def test_the_default_model_has_to_be_fetched_first(refract: Shell) -> None:
    ran = refract("score", "--candidate", CANDIDATE)
    assert ran.code == SetupError.exit_code == 3
    assert ran.err == "refract: the default model is not here yet\n  hint: refract fetch --model smollm2\n"
    assert refract.engine.loads == []


def test_a_fetched_model_has_a_short_name(refract: Shell) -> None:
    file = refract.folder / "cache/models/gemma3/gemma-3-270m-q4_k_m.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    ran = refract.score("--model", "gemma3", "--json-out", "-")
    assert ran.report["model"]["name"] == file.name  # type: ignore[index]


def test_the_floor_alone_needs_no_candidate(refract: Shell) -> None:
    words = [word for word in refract.small if word not in ("--candidate", CANDIDATE)]
    ran = refract("score", *words, "--measure-floor", "--json-out", "-")
    assert ran.code == 0
    assert ran.report["floor"]["composite"]["score"]["value"] == 100.0  # type: ignore[index]
    assert FloorError.exit_code == 4


def test_every_axis_can_be_asked_for_with_its_knobs(refract: Shell) -> None:
    ran = refract.score("--axes", ",".join(AXES), "--rniah-up-to", "256", "--depth", "64", "--json-out", "-")
    assert ran.code == 0, ran.err
    axes = {axis["axis"]: axis for axis in ran.report["candidates"][0]["axes"]}  # type: ignore[index]
    assert list(axes) == list(AXES)
    assert [row["depth"] for row in axes["kld"]["series"]["depths"]] == [64]
    parameters = ran.report["methodology"]["parameters"]  # type: ignore[index]
    assert parameters["rniah"]["parameters"]["lengths"] == [32, 64, 128, 256]


def test_the_cells_of_rniah_can_be_named_one_by_one(refract: Shell) -> None:
    words = ("--rniah-lengths", "200,256", "--rniah-positions", "0,1", "--rniah-trials", "2")
    ran = refract.score("--axes", "rniah", *words, "--json-out", "-")
    assert ran.code == 0, ran.err
    parameters = ran.report["methodology"]["parameters"]["rniah"]["parameters"]  # type: ignore[index]
    assert (parameters["lengths"], parameters["positions"], parameters["trials"]) == ([200, 256], [0.0, 1.0], 2)


def test_a_preset_decides_the_sizes_unless_they_are_given(refract: Shell) -> None:
    quick = refract.score("--quick", "--json-out", "-").report
    axes = {axis["axis"]: axis for axis in quick["candidates"][0]["axes"]}  # type: ignore[index]
    assert len(axes["trajectory"]["samples"]) == 6  # prompts without a tier belong to every tier
