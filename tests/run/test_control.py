"""The control: every configuration once more under a harmless change, told apart from what a format loses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refract.axes.kld import Kld
from refract.axes.trajectory import Trajectory
from refract.errors import IncompleteError
from refract.kv import parse_kv
from refract.results import Report, plain_number, within_noise
from refract.run.provenance import build_report
from refract.run.runner import run
from refract.run.spec import ControlScope, RunSpec
from refract.run.store import MemoryStore
from refract.testing import FakeEngine
from tests.run.scenario import CANDIDATES, REFERENCE, corpus, prompt_set

TEXT = " ".join(f"{n} boats passed the quiet town of number {n * n}." for n in range(80))


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path)


def controlled_spec(*candidates: str, control: ControlScope | None = "all") -> RunSpec:
    return RunSpec(
        model="fake",
        reference=parse_kv(REFERENCE),
        candidates=tuple(map(parse_kv, candidates or CANDIDATES)),
        axes=(Trajectory(), Kld(chunks=6, ctx=48)),
        prompts=prompt_set("Where is the harbour?", "Count to three."),
        corpus=corpus(TEXT),
        n_predict=8,
        control=control,
    )


def measured(engine: FakeEngine, store: MemoryStore, *candidates: str) -> Report:
    spec = controlled_spec(*candidates)
    return build_report(run(spec, engine, store), spec, "refract score --control")


def test_every_configuration_costs_a_second_load_and_a_stored_run_none(store: MemoryStore) -> None:
    engine = FakeEngine()
    found = run(controlled_spec(), engine, store)
    assert sorted(engine.loads) == sorted([REFERENCE, *CANDIDATES] * 2)
    assert found.loads == 6
    again = run(controlled_spec(), engine, store, allow_load=False)
    assert again.loads == 0
    assert (again.control, again.candidates) == (found.control, found.candidates)
    with pytest.raises(IncompleteError):
        run(controlled_spec("ctk=q4_0,ctv=q4_0"), engine, store, allow_load=False)


def test_without_it_nothing_more_is_asked(store: MemoryStore) -> None:
    engine = FakeEngine()
    found = run(controlled_spec(control="none"), engine, store)
    assert len(engine.loads) == 3
    assert found.control is None
    assert [candidate.control for candidate in found.candidates] == [None, None]


def test_the_reference_under_the_change_is_measured_on_every_axis(store: MemoryStore) -> None:
    control = measured(FakeEngine(kernel_noise=0.01), store).control
    assert control is not None
    assert control.kv == REFERENCE
    assert [axis.axis for axis in control.axes] == ["trajectory", "kld"]
    assert control.control is not None
    assert control.control.change == "chunk 128"
    assert control.mean_kl_nats == plain_number(control.control.mean_kl_nats)
    assert (control.mean_kl_nats or 0.0) > 0.0


def test_a_candidate_under_the_change_is_compared_with_itself(store: MemoryStore) -> None:
    calm = measured(FakeEngine(kernel_noise=0.0, chaos=0.0), store).candidates[1]
    assert calm.control is not None
    assert plain_number(calm.control.mean_kl_nats) == 0.0
    assert plain_number(calm.control.top1_agreement) == 1.0
    assert calm.control.positions > 0


def test_noise_and_loss_are_told_apart(store: MemoryStore) -> None:
    candidate = measured(FakeEngine(chaos=0.7), store).candidates[1]
    assert candidate.control is not None
    loss, noise = candidate.mean_kl_nats, plain_number(candidate.control.mean_kl_nats)
    assert loss is not None
    assert noise is not None
    assert loss / 5 < noise < loss
    (sentence,) = [text for text in candidate.findings if text.startswith("systematic loss")]
    assert f"systematic loss {loss:.3g} nats" in sentence
    assert f"token-level noise {noise:.3g} nats" in sentence
    assert "under chunk 128" in sentence


def test_a_candidate_within_twice_the_control_cannot_be_told_from_noise(store: MemoryStore) -> None:
    report = measured(FakeEngine(kernel_noise=0.02), store)
    close, far = report.candidates
    assert report.control is not None
    assert within_noise(close, report.control)
    assert not within_noise(far, report.control)
    assert close.findings[0].startswith("not distinguishable from kernel noise: its mean KL of ")
    assert not any("kernel noise" in text for text in far.findings)


def test_the_change_goes_on_top_of_the_users_options(store: MemoryStore) -> None:
    engine = FakeEngine(control={"batch": "8"})
    spec = controlled_spec()

    run(replace(spec, options={"batch": "32", "dtype": "x"}), engine, store)
    assert engine.control_options({}, parse_kv(REFERENCE)) == {"batch": "8"}
    assert len(engine.loads) == 6


def test_an_engine_without_a_harmless_change_has_no_control_and_the_report_says_so(store: MemoryStore) -> None:
    engine = FakeEngine(control=None)
    report = measured(engine, store)
    assert report.control is None
    assert report.findings == ("no control: the engine fake has no harmless change to run under",)
    assert len(engine.loads) == 3


def test_the_reference_as_its_own_candidate_has_a_control_of_its_own(store: MemoryStore) -> None:
    report = measured(FakeEngine(kernel_noise=0.01), store, REFERENCE)
    (candidate,) = report.candidates
    assert candidate.mean_kl_nats == 0.0
    assert candidate.findings[0].startswith("not distinguishable from kernel noise")
    assert candidate.control is not None
    assert report.control is not None
    assert plain_number(candidate.control.mean_kl_nats) == report.control.mean_kl_nats
