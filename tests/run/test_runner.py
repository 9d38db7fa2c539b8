from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from refract.axes.base import AxisPlan, PlanContext
from refract.engine import Blobs, Capability, LoadSpec, Session
from refract.errors import CorpusError, FloorError, IncompleteError, KVUnsupportedError, UsageError
from refract.kv import parse_kv
from refract.run.progress import Answered, Event, PhaseEnded, PhaseStarted, RunEnded, RunStarted, SessionLoaded
from refract.run.runner import run
from refract.run.store import MemoryStore
from refract.testing import Behaviour, FakeEngine
from refract.work import Answer, Divergence, Failure, Generate, Generation, Request

from .scenario import CANDIDATES, REFERENCE, Talk, Text, corpus, essence, prompt_set, small_spec

KINDS = frozenset(Capability)


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path / "blobs")


def test_n_candidates_cost_n_plus_one_loads_and_a_stored_run_none(store: MemoryStore) -> None:
    engine, spec = FakeEngine(), small_spec()
    first = run(spec, engine, store)
    assert engine.loads == [REFERENCE, *CANDIDATES]
    assert first.loads == 3
    assert first.answers == {"stored": 0, "computed": 22}
    assert engine.open_sessions == 0
    second = run(spec, engine, store)
    assert second.loads == 0
    assert second.answers == {"stored": 22, "computed": 0}
    assert len(engine.answered) == 22
    assert essence(second, spec) == essence(first, spec)


def test_no_request_is_answered_twice_and_the_axes_share_them(store: MemoryStore) -> None:
    engine = FakeEngine()
    spec = small_spec(axes=(Talk(), Talk(name="talk again"), Text()), measure_floor=False)
    run(spec, engine, store)
    per_load = 2 + 2, 4 + 2, 4 + 2
    assert len(engine.answered) == sum(per_load)


def test_the_result_names_model_configurations_and_what_they_allocated(store: MemoryStore) -> None:
    found = run(small_spec(options={"ngl": "99"}), FakeEngine(), store)
    assert found.model.name == "fake"
    assert found.model.engine == "fake 1"
    assert found.model.fingerprint.startswith("sha256:")
    assert found.model.details["options"] == {"ngl": "99"}
    assert found.reference.kv == REFERENCE
    assert found.reference.effective.layers_compressed == 0
    assert [candidate.kv for candidate in found.candidates] == list(CANDIDATES)
    assert [candidate.effective.k for candidate in found.candidates] == ["q8_0", "turbo3"]
    assert found.floor is not None
    assert found.floor.kv == REFERENCE
    assert found.floor.composite.score is not None
    assert found.floor.composite.score.value == 100.0
    assert set(found.seconds) == {"reference", "floor", *CANDIDATES, "scoring", "total"}
    assert found.parameters == {"talk": {"prompts": 2}, "text": {"ctx": 24}}


def test_events_tell_the_run_in_order(store: MemoryStore) -> None:
    events: list[Event] = []
    run(small_spec(), FakeEngine(), store, progress=events.append)
    phases = ("reference", "floor", *CANDIDATES)
    assert events[0] == RunStarted(phases=phases)
    assert [event.phase for event in events if isinstance(event, PhaseStarted)] == list(phases)
    assert [event.phase for event in events if isinstance(event, PhaseEnded)] == list(phases)
    assert [event.kv for event in events if isinstance(event, SessionLoaded)] == [REFERENCE, *CANDIDATES]
    for phase in phases:
        started = next(event for event in events if isinstance(event, PhaseStarted) and event.phase == phase)
        answered = [event for event in events if isinstance(event, Answered) and event.phase == phase]
        assert len(answered) == started.requests
        assert sum(event.cost for event in answered) == pytest.approx(started.cost)
    last = events[-1]
    assert isinstance(last, RunEnded)
    assert (last.loads, last.stored, last.computed) == (3, 0, 22)


# Refusals, all of them before anything is loaded.


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"candidates": (parse_kv(CANDIDATES[0]),) * 2}, UsageError, "candidate .* is given 2 times"),
        ({"candidates": (), "measure_floor": False}, UsageError, "there is no candidate"),
        ({"candidates": (parse_kv("ctk=fp8_e5m2,ctv=f16"),)}, KVUnsupportedError, "has no fp8_e5m2"),
        ({"reference": parse_kv("ctk=fp8_e5m2,ctv=f16")}, KVUnsupportedError, "has no fp8_e5m2"),
        ({"axes": (Talk(), Talk())}, UsageError, "axis talk is given 2 times"),
        ({"axes": ()}, UsageError, "no axis can be measured"),
        ({"n_predict": 100_000}, UsageError, "talk needs sequences of 1000.. tokens, the model takes 65536"),
    ],
)
def test_refusals_come_before_any_load(
    store: MemoryStore, changes: dict[str, object], kind: type[Exception], message: str
) -> None:
    engine = FakeEngine()
    with pytest.raises(kind, match=message):
        run(small_spec(**changes), engine, store)
    assert engine.loads == []


def test_an_axis_that_cannot_be_planned_refuses_the_run(store: MemoryStore) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Short(Text):
        def plan(self, context: PlanContext) -> AxisPlan:  # type: ignore[override]
            raise CorpusError("the corpus is shorter than one window")

    engine = FakeEngine()
    with pytest.raises(CorpusError):
        run(small_spec(axes=(Talk(), Short())), engine, store)
    assert engine.loads == []


def test_an_axis_whose_needs_are_not_met_is_not_run_and_says_why(store: MemoryStore) -> None:
    engine = FakeEngine(offered=KINDS - {Capability.KL_PREFILL})
    found = run(small_spec(), engine, store)
    for candidate in found.candidates:
        talk, text = candidate.axes
        assert talk.status == "ok"
        assert (text.status, text.score) == ("not-run", None)
        assert text.reason == f"fake under {REFERENCE} lacks {Capability.KL_PREFILL.value}"
        assert candidate.composite.score is None
    with pytest.raises(KVUnsupportedError, match="the axis text cannot be measured: fake under"):
        run(small_spec(required=frozenset({"text"})), engine, store)
    with pytest.raises(UsageError, match="no axis can be measured: text: fake under"):
        run(small_spec(axes=(Text(),)), engine, store)


def test_a_need_that_only_the_candidate_lacks_counts_too(store: MemoryStore) -> None:
    class Partial(FakeEngine):
        def capabilities(self, kv: object) -> frozenset[Capability]:
            return KINDS if str(kv) != CANDIDATES[1] else KINDS - {Capability.GENERATE}

    found = run(small_spec(), Partial(), store)
    assert [candidate.axes[0].status for candidate in found.candidates] == ["not-run", "not-run"]
    assert found.candidates[0].axes[0].reason == f"fake under {CANDIDATES[1]} lacks {Capability.GENERATE.value}"


def test_every_session_is_loaded_for_the_longest_sequence_of_all_axes(store: MemoryStore) -> None:
    seen = []

    class Watching(FakeEngine):
        def load(self, spec: LoadSpec, blobs: Blobs) -> AbstractContextManager[Session]:
            seen.append(spec.max_tokens)
            return FakeEngine.load(self, spec, blobs)

    run(small_spec(), Watching(), store)
    longest = max(len(text) for text in ("Where is the harbour?", "Count to three.")) + 4 + 6
    assert seen == [longest] * 3


# Two traps, and what else must not be read back.


def test_a_candidate_equal_to_the_reference_is_asked_anew(store: MemoryStore) -> None:
    engine = FakeEngine()
    spec = small_spec(candidates=(parse_kv(REFERENCE),), measure_floor=False)
    found = run(spec, engine, store)
    assert engine.loads == [REFERENCE, REFERENCE]
    talk, text = found.candidates[0].axes
    assert talk.score is not None
    assert text.score is not None
    assert talk.score.value == text.score.value == 100.0
    assert found.candidates[0].findings == ()
    asked = [request for request in engine.answered if isinstance(request, Generate)]
    assert [request.salt for request in asked].count("candidate") == 2


def test_a_lossy_reference_as_its_own_candidate_is_measured(store: MemoryStore) -> None:
    lossy = parse_kv(CANDIDATES[1])
    found = run(small_spec(reference=lossy, candidates=(lossy,)), FakeEngine(), store)
    assert [axis.status for axis in found.candidates[0].axes] == ["ok", "ok"]
    assert found.floor is not None
    assert [axis.status for axis in found.floor.axes] == ["ok", "ok"]


def test_the_floor_is_not_read_back_and_a_low_one_ends_the_run(store: MemoryStore) -> None:
    def drift(request: Request, answer: Answer | Failure) -> Answer | Failure:
        if isinstance(answer, Generation) and request.salt == "floor":
            return replace(answer, tokens=(65,) * len(answer.tokens))
        return answer

    engine = FakeEngine(candidate_behaviour=drift, break_reference=True)
    with pytest.raises(FloorError, match=r"the reference scores .* against itself, below 99.5") as caught:
        run(small_spec(), engine, store)
    assert caught.value.hint
    assert engine.loads == [REFERENCE], "no candidate is asked when the floor is broken"
    found = run(small_spec(floor_minimum=0.0), engine, store)
    assert found.floor is not None
    assert found.floor.axes[0].score is not None
    assert found.floor.axes[0].score.value == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": prompt_set("Where is the harbour?", "Count to four.")},
        {"corpus": corpus("It was a noisy town by the sea, and everybody in it had always been in a hurry.")},
        {"n_predict": 7},
        {"options": {"kernel": "other"}},
        {"model": "another"},
    ],
)
def test_what_changed_is_asked_again(store: MemoryStore, changes: dict[str, object]) -> None:
    run(small_spec(), FakeEngine(), store)
    engine = FakeEngine()
    found = run(small_spec(**changes), engine, store)
    assert found.loads == 3
    assert found.answers["computed"] > 0
    if "prompts" in changes or "corpus" in changes:
        assert found.answers["stored"] > 0


def test_a_new_build_of_the_engine_is_asked_again(store: MemoryStore) -> None:
    run(small_spec(), FakeEngine(), store)
    assert run(small_spec(), FakeEngine(build="2"), store).answers["stored"] == 0


def test_the_same_model_file_under_another_path_is_the_same_model(tmp_path: Path, store: MemoryStore) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "elsewhere" / "b.gguf"
    second.parent.mkdir()
    first.write_bytes(b"weights")
    second.write_bytes(b"weights")
    run(small_spec(model=str(first)), FakeEngine(), store)
    assert run(small_spec(model=str(second)), FakeEngine(), store).loads == 0
    first.write_bytes(b"other weights")
    assert run(small_spec(model=str(first)), FakeEngine(), store).answers["stored"] == 0


def test_scoring_again_needs_no_load_and_says_when_answers_are_missing(store: MemoryStore) -> None:
    engine, spec = FakeEngine(), small_spec()
    with pytest.raises(IncompleteError, match=r"^4 answers are not stored for ctk=f16,ctv=f16 \(reference\)"):
        run(spec, engine, store, allow_load=False)
    first = run(spec, engine, store)
    engine.loads.clear()
    again = run(spec, engine, store, allow_load=False)
    assert engine.loads == []
    assert essence(again, spec) == essence(first, spec)


def test_a_base_that_was_deleted_is_written_again(store: MemoryStore) -> None:
    engine, spec = FakeEngine(), small_spec()
    first = run(spec, engine, store)
    for file in store.blobs.folder.rglob("*"):
        if file.is_file():
            file.unlink()
    second = run(spec, engine, store)
    assert second.loads == 1
    assert essence(second, spec) == essence(first, spec)


def test_failures_reach_the_axes_and_the_warnings_and_not_the_store(store: MemoryStore) -> None:
    def fail(request: Request, answer: Answer | Failure) -> Answer | Failure:
        if isinstance(request, Generate) and request.prompt[2] == ord("C"):
            return Failure(kind="timeout", message="no answer in 60 s")
        return answer

    spec = small_spec(candidates=(parse_kv(CANDIDATES[0]),))
    found = run(spec, FakeEngine(candidate_behaviour=fail), store)
    talk, text = found.candidates[0].axes
    assert len(talk.samples) == 1
    assert talk.warnings == ("1 of 4 candidate requests failed: timeout: no answer in 60 s",)
    assert text.warnings == ()
    healthy = FakeEngine()
    again = run(spec, healthy, store)
    assert again.candidates[0].axes[0].warnings == ()
    assert len(healthy.answered) == 1


@pytest.mark.parametrize("behaviour", [Behaviour.NEVER_COMPRESSED, Behaviour.SILENTLY_UNCOMPRESSED])
def test_a_candidate_that_never_acted_has_no_score(store: MemoryStore, behaviour: Behaviour) -> None:
    found = run(small_spec(), FakeEngine(candidate_behaviour=behaviour), store)
    for candidate in found.candidates:
        assert [axis.status for axis in candidate.axes] == ["not-exercised", "not-exercised"]
        assert all(axis.score is None and axis.reason for axis in candidate.axes)
        assert candidate.composite.score is None
        assert candidate.findings[0].startswith("duplicates: ")
        assert candidate.findings[1].startswith("not exercised: ")


def test_a_prefill_that_reads_raw_keys_costs_that_axis_its_score_and_no_other(store: MemoryStore) -> None:
    """KL exactly 0 in prefill protocol for any format, while generation reads the compressed cache."""

    def blind(request: Request, answer: Answer | Failure) -> Answer | Failure:
        if isinstance(answer, Divergence):
            zeros = np.zeros_like(answer.kl)
            return replace(answer, kl=zeros, token_nll_delta=zeros, token_p_delta=zeros)
        return answer

    found = run(small_spec(), FakeEngine(candidate_behaviour=blind), store).candidates[1]
    assert [axis.status for axis in found.axes] == ["ok", "not-exercised"]
    assert found.composite.score is None
    assert found.findings[0].startswith("text not exercised: every divergence in prefill protocol is exactly 0")
