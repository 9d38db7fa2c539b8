"""The reports in examples/ are what the program makes of what the engines answered, and every page is their rendering.

REFRACT_GOLDEN=write renews the pages, never the JSON: that holds what real engines answered.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from refract.report import from_json, to_html, to_json, to_text
from refract.results import CandidateResult, Report, Sample
from refract.stats.composite import composite
from refract.stats.sequences import common_prefix

FOLDER = Path(__file__).resolve().parents[2] / "examples"
REPORTS = sorted(FOLDER.glob("*.json"))
KINDS = {"clean", "degraded", "keys-broken", "catastrophic", "by-depth", "several"}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="examples/ is not part of this installation")


def read(path: Path) -> Report:
    return from_json(path.read_text("utf-8"), source=path.name)


def candidates() -> list[tuple[str, CandidateResult]]:
    return [(path.stem, candidate) for path in REPORTS for candidate in read(path).candidates]


def test_there_is_one_of_every_kind_and_the_readme_names_them() -> None:
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert {path.stem for path in REPORTS} >= KINDS
    for path in REPORTS:
        assert f"({path.stem}.html)" in readme
        assert f"({path.name})" in readme
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 6_000_000


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_the_pages_and_texts_are_renderings_of_the_json(path: Path) -> None:
    report = read(path)
    assert to_json(report) == path.read_text("utf-8")
    for suffix, form in ((".html", to_html(report)), (".txt", to_text(report))):
        file = path.with_suffix(suffix)
        if os.environ.get("REFRACT_GOLDEN") == "write":
            file.write_text(form, "utf-8")
        assert file.read_text("utf-8") == form, f"{file.name} is out of date: run with REFRACT_GOLDEN=write"


@pytest.mark.parametrize(("name", "candidate"), candidates(), ids=str)
def test_scores_come_out_of_the_recorded_answers_again(name: str, candidate: CandidateResult) -> None:
    """Where answers part follows from their tokens, axes from their samples, the composite from the axes."""
    for axis in candidate.axes:
        if axis.axis == "trajectory":
            for sample in axis.samples:
                assert sample.numerator / sample.denominator == pytest.approx(_shared(sample), abs=1e-9)
        if axis.link == "100*r" and axis.score is not None:
            ratio = sum(s.numerator for s in axis.samples) / sum(s.denominator for s in axis.samples)
            assert axis.score.value == pytest.approx(100.0 * ratio, abs=1e-6)
    assert composite(candidate.axes) == candidate.composite


def _shared(sample: Sample) -> float:
    """p / L of the two continuations in the sample."""
    sides = [sample.detail["reference"], sample.detail["candidate"]]
    tokens = [side["tokens"] for side in sides if isinstance(side, dict)]
    assert all(isinstance(each, list) for each in tokens)
    return common_prefix(*tokens) / max(1, *map(len, tokens))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_each_was_made_by_a_command_that_anybody_can_repeat(path: Path) -> None:
    report = read(path)
    assert report.provenance.command.startswith("refract score ")
    assert not re.search(r"/root|/home|/tmp|~/", path.read_text("utf-8"))
    assert report.model.engine != "fake"
