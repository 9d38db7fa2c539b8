"""`--non-inferior-to CANDIDATE --margin POINTS`: a loss is ruled out by the whole interval, or the exit code is 10."""

from __future__ import annotations

import pytest

from refract.cli.inputs import kv_config
from refract.testing import Behaviour
from tests.cli.conftest import CANDIDATE, Shell

CLOSE, FAR = "ctk=q8_0,ctv=q8_0", "ctk=turbo2,ctv=turbo2"


def test_a_loss_beyond_the_margin_is_exit_10_and_the_line_has_interval_and_margin(refract: Shell) -> None:
    ran = refract.score("--candidate", FAR, "--non-inferior-to", CANDIDATE, "--margin", "2.5")
    assert ran.code == 10
    (line,) = [line for line in ran.err.splitlines() if "non-inferior" in line]
    assert line.startswith(f"refract: {FAR}: not shown non-inferior to {CANDIDATE}: -")
    assert " points do not rule out a loss of the margin, 2.5" in line
    assert "[" in line


def test_a_closer_candidate_and_the_comparator_itself_pass(refract: Shell) -> None:
    ran = refract.score("--candidate", CLOSE, "--non-inferior-to", CANDIDATE, "--margin", "60")
    assert ran.code == 0, ran.err


def test_one_axis_is_compared_by_its_own_score(refract: Shell) -> None:
    words = ("--axes", "kld", "--candidate", FAR, "--non-inferior-to", CANDIDATE, "--margin", "1")
    assert refract.score(*words).code == 10


def test_the_comparator_is_known_by_what_it_means(refract: Shell) -> None:
    spelled = "ctv=turbo3 , ctk=q8_0"
    assert str(kv_config("--candidate", spelled)) == CANDIDATE
    assert refract.score("--candidate", CLOSE, "--non-inferior-to", spelled, "--margin", "100").code == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--non-inferior-to", CANDIDATE), "--non-inferior-to needs --margin"),
        (("--margin", "2"), "--margin needs --non-inferior-to"),
        (("--non-inferior-to", CANDIDATE, "--margin", "2"), "is the only candidate"),
        (("--non-inferior-to", FAR, "--margin", "2"), "is not a candidate of this run"),
        (("--non-inferior-to", "ctk=q8_0", "--margin", "2"), "--non-inferior-to: ctv is missing"),
        (("--non-inferior-to", CANDIDATE, "--margin", "0"), "expected more than 0"),
    ],
)
def test_what_means_nothing_is_refused_before_any_load(refract: Shell, words: tuple[str, ...], line: str) -> None:
    ran = refract.score(*words)
    assert ran.code == 2
    assert line in ran.err
    assert refract.engine.loads == []


def test_what_was_not_measured_passes_nothing(refract: Shell) -> None:
    refract.engine.candidate_behaviour = Behaviour.NEVER_COMPRESSED
    ran = refract.score("--candidate", FAR, "--non-inferior-to", CANDIDATE, "--margin", "100")
    assert ran.code == 10
    assert f"{FAR}: cannot be compared with {CANDIDATE}: axes that are ok: none; of the other: none" in ran.err
