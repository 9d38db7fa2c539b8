"""Broken candidates through the whole pipeline, all four axes: none may look good, and the diagnosis names each one.

Known ways to fool such a tool, on the fake engine; tests/engines/test_mlx_fooled.py breaks real caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from axes.support import corpus, prose
from fooled import breakages as broken
from fooled.bench import (
    CANDIDATE,
    KNOWS,
    NEEDLES,
    REFERENCE,
    Bench,
    Knowledge,
    axes_of,
    diagnosis,
    high,
    passes,
    says,
    spec,
    summary,
)
from fooled.engines import Relabelled, allocated

from refract.axes.kld import Kld
from refract.axes.plad import Plad
from refract.axes.trajectory import Trajectory
from refract.errors import ConfigMismatchError, CorpusError, EngineError, FloorError, UsageError
from refract.kv import parse_kv
from refract.results import CandidateResult, Estimate
from refract.testing import Behaviour, FakeEngine
from refract.testing.behaviour import Rewrite
from refract.work import Answer, Failure, Generate, Generation, Request

TRAJECTORY, KLD, RNIAH, PLAD = "trajectory", "kld", "rniah", "plad"
EVERY = frozenset({TRAJECTORY, KLD, RNIAH, PLAD})
SPOKEN = EVERY - {KLD}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("fooled"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A candidate, the axes that should see what is wrong with it, and patterns that its diagnosis must hold.

    `passes` where the breakage leaves two axes or more alone, so that the composite may be good.
    """

    name: str
    behaviour: Behaviour | Rewrite | None = None
    seen_by: frozenset[str]
    says: tuple[str, ...]
    passes: bool = False
    engine: FakeEngine | None = None

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def case(
    name: str, behaviour: Behaviour | Rewrite | None, seen_by: set[str] | frozenset[str], *says: str, **more: object
) -> Broken:
    return Broken(name=name, behaviour=behaviour, seen_by=frozenset(seen_by), says=says, **more)  # type: ignore[arg-type]


def claiming(**changes: object) -> FakeEngine:
    return Relabelled(respond=KNOWS, claims={CANDIDATE: allocated(CANDIDATE, **changes)})


def relabelled(kv: str, behaviour: Rewrite | None = None) -> FakeEngine:
    return Relabelled(respond=KNOWS, really={CANDIDATE: kv}, candidate_behaviour=behaviour, break_reference=True)


CASES = [
    # Early stop.
    case("ends after 1 token", Behaviour.EARLY_STOP, {TRAJECTORY, KLD, PLAD}, r"end after at most 5 tokens"),
    case(
        "text ends after 1 token", broken.stops_after(1), {TRAJECTORY, RNIAH, PLAD}, "30 of 30 .* end after at most 5"
    ),
    case("text ends after 5 tokens", broken.stops_after(5), {TRAJECTORY, PLAD}, "30 of 30 .* end after at most 5"),
    case(
        "text is cut after 5 tokens", broken.stops_after(5, quietly=True), {TRAJECTORY, PLAD}, r"0\.\d+ times as long"
    ),
    # Silence.
    case("silent", Behaviour.EMPTY, EVERY, "30 of 30 candidate answers are empty"),
    case("silent on 29 of 30", broken.silent_but_for(7, ended=True), SPOKEN, "29 of 30 candidate answers are empty"),
    case("no token on 29 of 30", broken.silent_but_for(7, ended=False), SPOKEN, "29 of 30 candidate answers are empty"),
    # Retrieval.
    case("retrieves nothing", Behaviour.RETRIEVES_NOTHING, {RNIAH}, r"misses \d+ of \d+ needles"),
    case("forgets needles", broken.forgets_needles, {RNIAH}, r"misses \d+ of \d+ needles"),
    case("forgets needles beyond 600", broken.forgets_beyond(600), {RNIAH}, r"misses 9 of 12 .*3 at 4096 tokens"),
    case("thinks for ever", broken.thinks_for_ever, {RNIAH}, "did not finish thinking", passes=True),
    # Junk.
    case("constant junk", Behaviour.CONSTANT_JUNK, EVERY, "one and the same text in 30 of 30"),
    case(
        "constant text only",
        broken.constant_junk,
        SPOKEN,
        "one and the same text in 30 of 30",
        "its drift means nothing",
    ),
    case("junk with a counter", broken.junk_with_a_counter, SPOKEN, "hardly differ from prompt to prompt"),
    case("one of two texts", broken.two_texts, SPOKEN, "only 2 different texts"),
    case("echo", broken.echoes, {TRAJECTORY, RNIAH}, "times as long as the reference's"),
    case("rows mixed up", broken.mixed_up_rows, {TRAJECTORY, RNIAH}, r"misses \d+ of \d+ needles"),
    # Nothing compressed.
    case("same server twice", Behaviour.SILENTLY_UNCOMPRESSED, EVERY, "equal the reference's bit for bit"),
    case(
        "same server for texts",
        None,
        SPOKEN,
        "trajectory and rniah and plad not exercised: .*bit for bit",
        engine=relabelled(REFERENCE, broken.measuring(lambda _, a: broken.constant(a, 0.9, delta=0.9))),
    ),
    case("never compressed", Behaviour.NEVER_COMPRESSED, EVERY, "compressed none of 4 layers"),
    case(
        "fallback to f16",
        None,
        EVERY,
        r"compressed none of 4 layers \(it stores f16/f16\)",
        engine=claiming(k="f16", v="f16", layers_compressed=0),
    ),
    case(
        "half the layers",
        None,
        EVERY,
        "compressed 2 of 4 layers, 4 were asked for",
        engine=claiming(layers_compressed=2),
    ),
    case("V stays f16", None, EVERY, "V was asked for as q8_0, the engine stores f16", engine=claiming(v="f16")),
    case(
        "no byte saved",
        None,
        EVERY,
        r"bytes a token .* no fewer than the reference",
        engine=claiming(bytes_per_token=allocated(REFERENCE).bytes_per_token),
    ),
    case("compressed from 64 on", broken.uncompressed_before(40), {KLD}, "prefill protocol", passes=True),
    # One protocol is blind.
    case(
        "prefill blind",
        broken.blind("prefill"),
        {KLD},
        "kld not exercised: every divergence in prefill protocol is exactly 0",
        passes=True,
    ),
    case(
        "decode blind",
        broken.blind("decode"),
        {KLD},
        "kld not exercised: every divergence in decode protocol is exactly 0",
        passes=True,
    ),
    case(
        "prefill nearly blind",
        broken.nearly_blind("prefill"),
        {KLD},
        "kld not exercised: .*prefill protocol .*decode protocol",
        passes=True,
    ),
    # Not a number.
    case("NaN at 99 %", Behaviour.NAN_LOGITS, {TRAJECTORY, KLD, RNIAH, PLAD}, "not finite"),
    case("NaN everywhere", Behaviour.NAN_EVERYWHERE, EVERY, "not finite"),
    case("NaN in 99 % of KL", broken.not_finite(0.99, np.nan), {KLD}, "not finite at", passes=True),
    case("inf at one position", broken.not_finite(0.001, np.inf), {KLD}, "not finite at", passes=True),
    case("bad windows time out", broken.measuring(broken.failing_where_bad), {KLD}, "timeout", passes=True),
    case("negative KL", broken.negative, {KLD}, "below 0", passes=True),
    # Beyond the listed tokens.
    case(
        "mass moves to the tail",
        Behaviour.TAIL_SHIFT,
        {KLD},
        "kl-top16|nats",
        passes=True,
        engine=FakeEngine(respond=KNOWS, candidate_behaviour=Behaviour.TAIL_SHIFT, estimator_top_k=16),
    ),
    case("tail shifts", Behaviour.TAIL_SHIFT, {KLD}, "distributions are .* nats apart"),
    case("perplexity improves", broken.flattering, {KLD}, r"1\.1 nats apart", r"perplexity .* lower .* no merit"),
    case("cosine 0.98", broken.cosine, {KLD}, r"13\.5 nats apart"),
    # Degeneration.
    case("loop from the start", Behaviour.LOOP, {TRAJECTORY, KLD, PLAD}, "end in a loop"),
    case("loop", broken.loops, {TRAJECTORY}, "candidate answers end in a loop"),
    case("runaway", broken.runs_away, {TRAJECTORY}, "run on to the token limit where the reference stopped"),
    case("never ends", Behaviour.RUNAWAY, {KLD}, "run on to the token limit"),
    case("invalid UTF-8", broken.breaks_characters, {RNIAH}, r"invalid UTF-8"),
    # PLAD.
    case("stale answers", broken.stale_answers(), {PLAD}, "reacts less"),
    case("jumpy", broken.generating(broken.jumpy), {PLAD}, "reacts more"),
    case("excesses cancel", broken.generating(broken.cancelling), {PLAD}, "cancel", passes=True),
]


def only(bench: Bench, engine: FakeEngine, **changes: object) -> CandidateResult:
    (result,) = bench.run(engine, spec(CANDIDATE, **changes)).candidates
    return result


def test_a_healthy_candidate_passes_on_all_axes(bench: Bench) -> None:
    """Without it nothing below would mean anything."""
    result = only(bench, FakeEngine(respond=KNOWS))
    print(summary("healthy", result))
    assert all(high(axis) for axis in result.axes), summary("healthy", result)
    assert result.composite.band == "EXCELLENT"
    assert diagnosis(result) == ""


@pytest.mark.parametrize("fault", CASES, ids=str)
def test_a_broken_candidate_never_looks_good(bench: Bench, fault: Broken) -> None:
    engine = fault.engine or FakeEngine(respond=KNOWS, candidate_behaviour=fault.behaviour)
    result = only(bench, engine)
    print(summary(fault.name, result))
    for name, axis in axes_of(result).items():
        if name in fault.seen_by:
            assert not high(axis), f"{name} of {summary(fault.name, result)}\n{diagnosis(result)}"
    assert fault.passes or not passes(result), summary(fault.name, result)
    says(result, *fault.says)


# Runs that must not end in a score, and what several candidates say of each other.


def test_the_wrong_server_ends_the_run(bench: Bench) -> None:
    """The engine says that it runs another configuration."""
    with pytest.raises(ConfigMismatchError, match="the engine runs ctk=f16,ctv=f16"):
        only(bench, FakeEngine(respond=KNOWS, candidate_behaviour=Behaviour.WRONG_SERVER))


def test_positions_that_an_adapter_left_out_end_the_run(bench: Bench) -> None:
    """NaN at 99 % of the positions, dropped before anyone could count them."""
    engine = FakeEngine(respond=KNOWS, candidate_behaviour=broken.measuring(broken.drop_not_finite))
    with pytest.raises(EngineError, match=r"expected \[\d+\] positions, found \[1\]"):
        only(bench, engine)


def test_no_axis_no_verdict(bench: Bench) -> None:
    """Nothing that could be measured is no success."""
    engine = FakeEngine(respond=KNOWS, offered=frozenset())
    with pytest.raises(UsageError, match=r"this engine cannot measure|no axis can be measured"):
        bench.run(engine, spec(CANDIDATE))


def test_duplicates_are_named_on_both(bench: Bench) -> None:
    """Two formats decoded as one."""
    kvs = ("ctk=q5_0,ctv=q5_0", "ctk=turbo4,ctv=turbo4")
    found = bench.run(Relabelled(respond=KNOWS, really={kvs[1]: kvs[0]}), spec(*kvs)).candidates
    for own, other in zip(found, kvs[::-1], strict=True):
        says(
            own, f"duplicates: every answer equals that of {other} bit for bit; likely the engine decodes both formats"
        )


def test_nobody_retrieves_and_there_is_no_score(bench: Bench) -> None:
    """Both sides fail every needle."""
    ignorant = Knowledge(needles={})
    result = bench.run(FakeEngine(respond=ignorant), spec(CANDIDATE), fresh=True).candidates[0]
    rniah = axes_of(result)[RNIAH]
    assert (rniah.status, rniah.score) == ("low-confidence", None)
    says(result, "the reference retrieved 0 of 12 needles, 6 are needed")
    assert RNIAH not in result.composite.axes


def test_five_needles_are_too_few(bench: Bench) -> None:
    five = dict(list(NEEDLES.items())[:5])
    result = bench.run(FakeEngine(respond=Knowledge(needles=five)), spec(CANDIDATE), fresh=True).candidates[0]
    assert axes_of(result)[RNIAH].score is None
    says(result, "the reference retrieved 5 of 12 needles, 6 are needed")


@pytest.mark.parametrize("behaviour", [Behaviour.CONSTANT_JUNK, Behaviour.NAN_EVERYWHERE, Behaviour.EMPTY])
def test_a_reference_as_broken_as_its_candidate_proves_nothing(bench: Bench, behaviour: Behaviour) -> None:
    engine = FakeEngine(respond=KNOWS, candidate_behaviour=behaviour, break_reference=True)
    result = bench.run(engine, spec(CANDIDATE), fresh=True).candidates[0]
    print(summary(f"both sides {behaviour.name}", result))
    found = axes_of(result)
    assert not high(found[TRAJECTORY])
    assert not high(found[PLAD])
    assert not high(found[RNIAH])
    assert not passes(result)
    says(result, "the reference gives one and the same text in 30 of 30|both sides gave an empty answer")


def test_a_reference_that_varies_ends_the_run(bench: Bench) -> None:
    """A floor below 99.5 makes every score meaningless."""
    engine = FakeEngine(respond=KNOWS, candidate_behaviour=wavering, break_reference=True)
    with pytest.raises(FloorError, match=r"the reference scores [\d.]+ against itself, below 99.5"):
        bench.run(engine, spec(CANDIDATE, measure_floor=True), fresh=True)
    shown = bench.run(engine, spec(CANDIDATE, measure_floor=True, floor_minimum=0.0), fresh=True)
    assert shown.floor is not None
    assert shown.floor.composite.score is not None
    assert shown.floor.composite.score.value < 99.5


def wavering(request: Request, answer: Answer | Failure) -> Answer | Failure:
    """A reference that says something else when it is asked again."""
    if isinstance(request, Generate) and isinstance(answer, Generation) and request.salt:
        return broken.said((*answer.tokens[:12], *b"or so"), answer)
    return answer


def test_one_window_is_no_confidence(bench: Bench) -> None:
    axes = (Trajectory(), Kld(chunks=1, ctx=64))
    result = bench.run(FakeEngine(respond=KNOWS), spec(CANDIDATE, axes=axes), fresh=True).candidates[0]
    kld = axes_of(result)[KLD]
    assert kld.status == "low-confidence"
    assert kld.score is not None
    assert (kld.score.low, kld.score.high) == (0.0, 100.0)
    says(result, "one window says nothing about the spread")
    assert result.composite.score is None


def test_a_corpus_of_one_repeated_window_counts_once(bench: Bench) -> None:
    line = prose(12, seed=5)[:63].ljust(63, "x") + "\n"
    engine = FakeEngine(respond=KNOWS)
    axes = (Trajectory(), Kld(chunks=8, ctx=64))
    result = bench.run(engine, spec(CANDIDATE, axes=axes, corpus=corpus(one=line * 64)), fresh=True).candidates[0]
    assert not high(axes_of(result)[KLD])
    says(result, "7 of 8 windows repeat an earlier one", "one window says nothing about the spread")


def test_a_corpus_shorter_than_a_window_ends_the_run(bench: Bench) -> None:
    with pytest.raises(CorpusError, match="too short"):
        bench.run(FakeEngine(respond=KNOWS), spec(CANDIDATE, corpus=corpus(one="Too short.")), fresh=True)


def test_a_cache_compressed_from_some_depth_on_is_seen_with_deep_windows_too(bench: Bench) -> None:
    """A start offset. The deep windows differ, those that make the score do not."""
    axes = (Trajectory(), Kld(chunks=8, ctx=64, depth=1024, deep_chunks=2))
    engine = FakeEngine(respond=KNOWS, candidate_behaviour=broken.uncompressed_before(1000))
    result = bench.run(engine, spec(CANDIDATE, axes=axes), fresh=True).candidates[0]
    assert axes_of(result)[KLD].status == "not-exercised"
    says(result, "in 8 of 10 texts every divergence in prefill protocol is exactly 0")


def test_swapped_ranks_at_the_edge_of_the_list_are_no_loss(bench: Bench) -> None:
    """Top-64 lists whose last ranks change places are worth 5e-6 nats, not 0.05."""
    result = only(bench, FakeEngine(respond=KNOWS, estimator_top_k=64))
    kld = axes_of(result)[KLD]
    assert kld.estimator == "kl-top64"
    exact = axes_of(only(bench, FakeEngine(respond=KNOWS)))[KLD]
    assert kld.score is not None
    assert exact.score is not None
    assert exact.score.value <= kld.score.value <= exact.score.value + 0.01


def test_steady_answers_do_not_hide_junk(bench: Bench) -> None:
    """Where the reference hardly reacts to wording, neither does junk: its drift alone would look perfect."""
    steady = Knowledge(needles=NEEDLES, steady=True)
    for name, junk in (("constant", broken.constant_junk), ("counter", broken.junk_with_a_counter)):
        engine = FakeEngine(respond=steady, candidate_behaviour=junk)
        result = bench.run(engine, spec(CANDIDATE), fresh=True).candidates[0]
        print(summary(f"steady reference, {name}", result))
        assert axes_of(result)[PLAD].status == "failed"
        says(result, "its drift means nothing")


def test_plad_does_not_care_which_side_is_which(bench: Bench) -> None:
    """Exchanged, every excess drift changes its sign and the score stays."""
    kvs = ("ctk=turbo2,ctv=turbo2", "ctk=q4_0,ctv=q4_0")
    scores = []
    for reference, candidate in (kvs, kvs[::-1]):
        asked = spec(candidate, reference=parse_kv(reference), axes=(Trajectory(), Plad(prompts_limit=30)))
        plad = axes_of(bench.run(FakeEngine(), asked, fresh=True).candidates[0])[PLAD]
        assert plad.score is not None
        scores.append((plad.score.value, plad.statistics["mean_excess_drift"]))
    (one, ahead), (other, back) = scores
    assert one == pytest.approx(other, abs=1e-9)
    assert isinstance(ahead, Estimate)
    assert isinstance(back, Estimate)
    assert ahead.value == pytest.approx(-back.value, abs=1e-12)
    assert ahead.low < 0.0 < ahead.high, "noise is no loss"
