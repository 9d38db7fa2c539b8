"""`prune`: says what there is and what it frees, frees nothing in a dry run or under somebody's feet."""

from __future__ import annotations

import argparse

import pytest

from refract.cli.options import size_bytes
from refract.cli.prune import size
from refract.run.store import AnswerStore
from tests.cli.conftest import Shell


def test_a_dry_run_says_what_the_same_command_frees(refract: Shell) -> None:
    refract.score()
    loads = len(refract.engine.loads)
    dry = refract("prune", "--max-size", "0", "--dry-run")
    assert dry.code == 0
    assert "would remove " in dry.out
    refract.score()
    assert len(refract.engine.loads) == loads
    real = refract("prune", "--max-size", "0")
    assert real.out.replace("removed", "would remove") == dry.out
    assert refract("prune").out.endswith("\nnothing to remove\n")
    assert refract.score("--json-out", "-").code == 0
    assert len(refract.engine.loads) == 2 * loads


def test_without_a_limit_no_answer_goes(refract: Shell) -> None:
    refract.score()
    loads = len(refract.engine.loads)
    assert refract("prune").out.endswith("nothing to remove\n")
    assert refract("prune", "--older-than", "1").out.endswith("nothing to remove\n")
    refract.score()
    assert len(refract.engine.loads) == loads


def test_a_folder_in_use_is_left_alone(refract: Shell) -> None:
    refract.score()
    with AnswerStore(refract.folder / "cache"):
        ran = refract("prune", "--max-size", "0")
        assert (ran.code, ran.out) == (3, "")
        assert "another refract uses" in ran.err
        assert refract("prune", "--max-size", "0", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("800", 800),
        ("1k", 1024),
        ("500M", 500 << 20),
        ("2G", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("2 tb", 2 << 40),
    ],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "2X", "G", "1e3", "two", "1,5G"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size such as 500M or 2G"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), (3 << 29, "1.5 GiB")]
)
def test_sizes_are_shown(number: int, shown: str) -> None:
    assert size(number) == shown
