"""Attribution: which side of the cache carries the loss, from runs of each side alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refract.errors import KVUnsupportedError
from refract.kv import KVConfig, parse_kv
from refract.results import CandidateResult
from refract.run.explain import attribution, cut_blocks, layer_shares
from refract.run.runner import RunResult, run
from refract.run.store import MemoryStore
from refract.testing import Behaviour, FakeEngine
from refract.testing.engine import LAYERS
from tests.run.scenario import REFERENCE
from tests.run.test_control import controlled_spec

BAD, GOOD = "ctk=turbo2,ctv=q8_0", "ctk=q8_0,ctv=q8_0"


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path)


def explained(engine: FakeEngine, store: MemoryStore, *candidates: str, allow_load: bool = True) -> RunResult:
    spec = replace(controlled_spec(*candidates, control="none"), explain="sides")
    return run(spec, engine, store, allow_load=allow_load)


def loss_finding(candidate: CandidateResult) -> str:
    (finding,) = [text for text in candidate.findings if "the loss" in text]
    return finding


def test_a_broken_side_is_named_with_figures_from_one_run_of_each(store: MemoryStore) -> None:
    engine = FakeEngine()
    found = explained(engine, store, BAD)
    assert engine.loads == [REFERENCE, BAD, "ctk=turbo2,ctv=f16", "ctk=f16,ctv=q8_0"]
    assert found.loads == 4
    finding = loss_finding(found.candidates[0])
    assert finding.startswith("keys carry ")
    assert " % of the loss: ctk alone " in finding
    assert found.seconds["explain"] >= 0.0


def test_stored_answers_are_read_back_also_for_scoring_again(store: MemoryStore) -> None:
    engine = FakeEngine()
    first = explained(engine, store, BAD)
    again = explained(engine, store, BAD, allow_load=False)
    assert again.loads == 0
    assert again.candidates == first.candidates
    assert len(engine.loads) == 4


def test_a_side_that_is_a_candidate_itself_is_not_run_again(store: MemoryStore) -> None:
    engine = FakeEngine()
    explained(engine, store, BAD, "ctk=turbo2,ctv=f16")
    assert engine.loads.count("ctk=turbo2,ctv=f16") == 1


def test_answers_that_are_missing_are_no_reason_to_fail_when_nothing_may_be_loaded(store: MemoryStore) -> None:
    engine = FakeEngine()
    run(controlled_spec(BAD, control="none"), engine, store)
    (candidate,) = explained(engine, store, BAD, allow_load=False).candidates
    assert "not known: keys alone was not measured" in loss_finding(candidate)


@pytest.mark.parametrize("candidate", [GOOD, "ctk=turbo2,ctv=f16"])
def test_what_passes_or_has_one_compressed_side_is_not_explained(store: MemoryStore, candidate: str) -> None:
    engine = FakeEngine()
    explained(engine, store, candidate)
    assert len(engine.loads) == 2


def test_what_never_acted_is_not_explained(store: MemoryStore) -> None:
    engine = FakeEngine(candidate_behaviour=Behaviour.NEVER_COMPRESSED)
    explained(engine, store, BAD)
    assert len(engine.loads) == 2


def test_a_side_the_engine_cannot_run_alone_is_said_and_no_error(store: MemoryStore) -> None:
    class Joined(FakeEngine):
        def check_kv(self, model: str, kv: KVConfig) -> None:
            if kv.k.compressed != kv.v.compressed:
                raise KVUnsupportedError(f"{kv}: this engine compresses both sides or none")

    (candidate,) = explained(Joined(), store, BAD).candidates
    assert "this engine compresses both sides or none" in loss_finding(candidate)


def test_without_windows_there_is_nothing_to_explain_by(store: MemoryStore) -> None:
    engine = FakeEngine()
    spec = controlled_spec(BAD, control="none")
    run(replace(spec, explain="sides", axes=spec.axes[:1]), engine, store)
    assert len(engine.loads) == 2


@pytest.mark.parametrize(
    ("keys", "values", "sentence"),
    [
        (0.17, 0.015, "keys carry 92 % of the loss: ctk alone 0.17 nats, ctv alone 0.015"),
        (0.01, 0.03, "values carry 75 % of the loss: ctk alone 0.01 nats, ctv alone 0.03"),
        (0.02, 0.025, "both sides carry the loss, values 56 % of it: ctk alone 0.02 nats, ctv alone 0.025"),
        (0.0, 0.0, "neither side alone loses anything: ctk alone 0 nats, ctv alone 0"),
    ],
)
def test_the_sentence_by_hand(keys: float, values: float, sentence: str) -> None:
    assert attribution(keys, values) == sentence


def test_modifiers_stay_where_they_can_act(store: MemoryStore) -> None:
    engine = FakeEngine()
    explained(engine, store, "ctk=turbo2,ctv=turbo2,boundary_v=1")
    assert "ctk=turbo2,ctv=f16" in engine.loads
    assert str(parse_kv("ctk=f16,ctv=turbo2,boundary_v=1")) in engine.loads


def test_layers_are_run_in_blocks_and_the_worst_block_layer_by_layer(store: MemoryStore) -> None:
    engine = FakeEngine()
    spec = replace(controlled_spec(BAD, control="none"), explain="layers")
    (candidate,) = run(spec, engine, store).candidates
    assert [kv for kv in engine.loads if "layers=" in kv] == [f"{BAD},layers={layer}" for layer in range(LAYERS)]
    (finding,) = [text for text in candidate.findings if text.startswith("blocks of layers compressed alone: ")]
    assert " % of " in finding
    assert not any("not known" in text for text in candidate.findings)


def test_an_engine_without_single_layers_says_so(store: MemoryStore) -> None:
    class Whole(FakeEngine):
        def check_kv(self, model: str, kv: KVConfig) -> None:
            if kv.get("layers") != "all":
                raise KVUnsupportedError("this engine compresses all layers or none")

    spec = replace(controlled_spec(BAD, control="none"), explain="layers")
    (candidate,) = run(spec, Whole(), store).candidates
    assert "which layers carry the loss is not known: this engine compresses all layers or none" in candidate.findings


def test_blocks_are_even_and_in_order() -> None:
    blocks = cut_blocks(range(30))
    assert [layer for block in blocks for layer in block] == list(range(30))
    assert {len(block) for block in blocks} == {3, 4}
    assert cut_blocks([2, 5, 7]) == [(2,), (5,), (7,)]


def test_shares_by_hand() -> None:
    losses = {(0, 1): 0.03, (2, 3): 0.01}
    expected = "blocks of layers compressed alone: 0-1 carries 75 % of 0.04 nats (0-1 0.03, 2-3 0.01)"
    assert layer_shares("blocks of layers", losses) == expected
    assert layer_shares("layers", {}) == ""
    assert layer_shares("layers", {(3,): 0.0}) == "layers compressed alone lose nothing (3 0)"
