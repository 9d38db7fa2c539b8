"""Broken candidates through the whole pipeline, all four axes: none may look good, and the diagnosis names each one.

CASES.md 1-15 and more of our own, on the fake engine; tests/engines/test_mlx_fooled.py breaks real caches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from axes.support import corpus, prose
from fooled import breakages as broken
from fooled.bench import (
    AXES,
    CANDIDATE,
    KNOWS,
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
from refract.axes.trajectory import Trajectory
from refract.errors import ConfigMismatchError, CorpusError, FloorError, UsageError
from refract.results import CandidateResult
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
    # CASES 1: early stop.
    case("ends after 1 token", Behaviour.EARLY_STOP, {TRAJECTORY, KLD, PLAD}, r"end after at most 5 tokens"),
    case(
        "text ends after 1 token", broken.stops_after(1), {TRAJECTORY, RNIAH, PLAD}, "30 of 30 .* end after at most 5"
    ),
    case("text ends after 5 tokens", broken.stops_after(5), {TRAJECTORY, PLAD}, "30 of 30 .* end after at most 5"),
    case(
        "text is cut after 5 tokens", broken.stops_after(5, quietly=True), {TRAJECTORY, PLAD}, r"0\.\d+ times as long"
    ),
    # CASES 2: silence.
    case("silent", Behaviour.EMPTY, EVERY, "30 of 30 candidate answers are empty"),
    case("silent on 29 of 30", broken.silent_but_for(7, ended=True), SPOKEN, "29 of 30 candidate answers are empty"),
    case("no token on 29 of 30", broken.silent_but_for(7, ended=False), SPOKEN, "29 of 30 candidate answers are empty"),
    # CASES 3: retrieval.
    case("retrieves nothing", Behaviour.RETRIEVES_NOTHING, {RNIAH}, r"misses \d+ of \d+ needles"),
    case("forgets needles", broken.forgets_needles, {RNIAH}, r"misses \d+ of \d+ needles"),
    case("forgets needles beyond 600", broken.forgets_beyond(600), {RNIAH}, r"misses 9 of 12 .*3 at 4096 tokens"),
    case("thinks for ever", broken.thinks_for_ever, {RNIAH}, "did not finish thinking", passes=True),
    # CASES 4: junk.
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
    # CASES 5 and 9: nothing compressed.
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
    # CASES 10: one protocol is blind.
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
    # CASES 7: not a number.
    case("NaN at 99 %", Behaviour.NAN_LOGITS, {TRAJECTORY, KLD, RNIAH, PLAD}, "not finite"),
    case("NaN everywhere", Behaviour.NAN_EVERYWHERE, EVERY, "not finite"),
    case("NaN in 99 % of KL", broken.not_finite(0.99, np.nan), {KLD}, "not finite at", passes=True),
    case("inf at one position", broken.not_finite(0.001, np.inf), {KLD}, "not finite at", passes=True),
    case("bad windows time out", broken.measuring(broken.failing_where_bad), {KLD}, "timeout", passes=True),
    case("negative KL", broken.negative, {KLD}, "below 0", passes=True),
    # CASES 8: beyond the listed tokens.
    case(
        "mass moves to the tail",
        Behaviour.TAIL_SHIFT,
        {KLD},
        "kl-top16|nats",
        passes=True,
        engine=FakeEngine(respond=KNOWS, candidate_behaviour=Behaviour.TAIL_SHIFT, estimator_top_k=16),
    ),
    case("tail shifts", Behaviour.TAIL_SHIFT, {KLD}, "distributions are .* nats apart"),
    # CASES 12 and 13.
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
