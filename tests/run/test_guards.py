from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from refract.kv import parse_kv
from refract.results import AxisResult, Estimate, Sample
from refract.run.guards import (
    Measured,
    answers_digest,
    as_not_exercised,
    compressed_layers,
    duplicates,
    must_differ,
    never_acted,
    never_read,
    not_as_asked,
    same_numbers,
)
from refract.work import (
    Answer,
    BlobRef,
    CompareBase,
    Distributions,
    Divergence,
    EffectiveKV,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenScores,
    Window,
)

ASK = Generate(prompt=(1, 2), max_new_tokens=2, top_k=1)
FORCED = ScoreTokens(tokens=(1, 2, 3), start=1, top_k=0)
COMPARE = CompareBase(
    windows=(Window(tokens=(1, 2, 3), start=1),),
    protocol="decode",
    base=BlobRef(sha256="0" * 64, size_bytes=1, format="x/1"),
)


def f32(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def divergence(*kl: float, delta: float = 0.0) -> Divergence:
    zeros, yes = np.zeros(len(kl), dtype=np.float32), np.ones(len(kl), dtype=np.bool_)
    return Divergence(
        kl=f32(*kl),
        same_top=yes,
        reference_margin=zeros,
        token_nll_delta=zeros + np.float32(delta),
        token_p_delta=zeros,
        reference_nll=zeros,
        reference_finite=yes,
        window=np.zeros(len(kl), dtype=np.int32),
        estimator="kl-exact",
    )


def generation(*logprobs: float) -> Generation:
    listed = Distributions(
        ids=np.zeros((len(logprobs), 1), dtype=np.int32), logprobs=f32(*logprobs)[:, None], tail=f32(*logprobs)
    )
    return Generation(tokens=(0,) * len(logprobs), stop="length", listed=listed)


def measured(kv: str, answers: dict[Request, Answer | Failure], *, compressed: int = 4, k: str = "") -> Measured:
    config = parse_kv(kv)
    effective = EffectiveKV(
        k=k or str(config.k), v=str(config.v), layers=4, layers_compressed=compressed, bytes_per_token=0.0
    )
    return Measured(kv=config, effective=effective, answers=answers)


REFERENCE = measured("ctk=f16,ctv=f16", {ASK: generation(-1.0, -2.0), FORCED: TokenScores(logprobs=f32(-1.0, -1.0))})


@pytest.mark.parametrize(
    ("answers", "acted"),
    [
        ({COMPARE: divergence(0.0, 0.0)}, False),
        ({COMPARE: divergence(0.0, 1e-30)}, True),
        ({COMPARE: divergence(0.0, np.nan)}, True),
        ({COMPARE: divergence(0.0, 0.0, delta=-1e-7)}, True),
        ({COMPARE: divergence(0.0), ASK: generation(-1.0, -2.0)}, False),
        ({COMPARE: divergence(0.0), ASK: generation(-1.0, -2.000001)}, True),
        ({FORCED: TokenScores(logprobs=f32(-1.0, -1.0))}, False),
        ({FORCED: TokenScores(logprobs=f32(-1.0, -1.1))}, True),
        ({ASK: generation(-1.0)}, True),
        ({ASK: Generation(tokens=(0, 0), stop="length")}, True),
        ({ASK: Generation(tokens=(0, 0), stop="length"), COMPARE: divergence(0.0)}, False),
        ({ASK: Generation(tokens=(0, 1), stop="length"), COMPARE: divergence(0.0)}, True),
        ({COMPARE: Failure(kind="x", message="y")}, True),
        ({}, True),
    ],
)
def test_a_lossy_candidate_without_any_difference_never_acted(
    answers: dict[Request, Answer | Failure], acted: bool
) -> None:
    """Where no distribution was seen there is no evidence, and the candidate keeps its score."""
    reason = never_acted(REFERENCE, measured("ctk=q8_0,ctv=f16", answers))
    assert (reason is None) is acted
    assert reason is None or "bit for bit" in reason


def test_a_compressed_type_without_a_compressed_layer_never_acted() -> None:
    candidate = measured("ctk=q8_0,ctv=f16", {COMPARE: divergence(0.5)}, compressed=0, k="f16")
    assert never_acted(REFERENCE, candidate) == "the engine compressed none of 4 layers (it stores f16/f16)"


def test_what_is_not_lossy_or_is_the_reference_is_left_alone() -> None:
    same: dict[Request, Answer | Failure] = {COMPARE: divergence(0.0)}
    assert not must_differ(REFERENCE, measured("ctk=bf16,ctv=f16", same, compressed=0))
    lossy = measured("ctk=q8_0,ctv=q8_0", same)
    assert not must_differ(lossy, lossy)
    assert must_differ(REFERENCE, lossy)
    assert must_differ(lossy, measured("ctk=q4_0,ctv=q8_0", same))


def test_a_pass_that_never_read_the_cache_is_told_from_one_that_did() -> None:
    prefill = replace(COMPARE, protocol="prefill")
    both: list[Request] = [COMPARE, prefill]
    blind: dict[Request, Answer | Failure] = {COMPARE: divergence(0.5), prefill: divergence(0.0)}
    assert never_acted(REFERENCE, measured("ctk=q8_0,ctv=f16", blind)) is None
    reason = never_read(both, blind)
    assert reason == "every divergence in prefill protocol is exactly 0: that pass never read the compressed cache"
    assert never_read([COMPARE], blind) is None
    assert never_read(both, {**blind, prefill: divergence(0.0, 2e-2)}) is None
    nearly = never_read(both, {**blind, prefill: divergence(0.0, 1e-8)})
    assert nearly is not None
    assert nearly.startswith("mean KL is 5e-09 nats in prefill protocol and 0.5 in decode protocol")
    assert never_read(both, {COMPARE: divergence(1e-4), prefill: divergence(0.0, 1e-8)}) is None
    assert never_read(both, {prefill: Failure(kind="x", message="y")}) is None


def test_texts_long_enough_to_tell_must_all_diverge() -> None:
    """A cache that compresses from some depth on leaves the windows before it as they were."""
    requests = [replace(COMPARE, salt=str(i)) for i in range(10)]
    idle, moved = divergence(*[0.0] * 16), divergence(*[0.1] * 16)
    assert never_read(requests, {r: idle if i < 1 else moved for i, r in enumerate(requests)}) is None
    reason = never_read(requests, {r: idle if i < 2 else moved for i, r in enumerate(requests)})
    assert reason is not None
    assert reason.startswith("in 2 of 10 texts every divergence in decode protocol is exactly 0")
    short = divergence(*[0.0] * 15)
    assert never_read(requests, {r: short if i < 9 else moved for i, r in enumerate(requests)}) is None


def test_an_axis_that_saw_the_references_own_numbers_was_not_exercised() -> None:
    forced = replace(FORCED, tokens=(1,) * 17)
    numbers = TokenScores(logprobs=f32(*[-0.5] * 16))
    reference: dict[Request, Answer | Failure] = {forced: numbers, ASK: generation(-1.0)}
    other = TokenScores(logprobs=f32(*[-0.5] * 15, -0.6))
    reason = same_numbers([forced], reference, {forced: numbers})
    assert reason is not None
    assert "bit for bit" in reason
    assert same_numbers([forced], reference, {forced: other}) is None
    assert same_numbers([ASK], reference, {ASK: generation(-1.0)}) is None, "too few numbers to tell"
    assert same_numbers([forced], {}, {forced: numbers}) is None
    assert same_numbers([forced], reference, {forced: Failure(kind="x", message="y")}) is None


@pytest.mark.parametrize(
    ("kv", "layers", "asked"),
    [
        ("ctk=f16,ctv=f16", 10, 0),
        ("ctk=q8_0,ctv=f16", 10, 10),
        ("ctk=q8_0,ctv=q8_0,boundary=2", 10, 6),
        ("ctk=f16,ctv=q8_0,boundary_v=2", 10, 6),
        ("ctk=q8_0,ctv=q8_0,boundary_v=3", 10, 10),
        ("ctk=turbo3,ctv=turbo3,boundary=2:type=q8_0", 10, 10),
    ],
)
def test_how_many_layers_a_configuration_compresses(kv: str, layers: int, asked: int) -> None:
    assert compressed_layers(parse_kv(kv), layers) == asked


def test_what_the_engine_says_it_left_uncompressed_is_believed() -> None:
    kv = "ctk=q8_0,ctv=q4_0"
    healthy = measured(kv, {})
    assert not_as_asked(REFERENCE, healthy) is None
    assert not_as_asked(REFERENCE, measured(kv, {}, compressed=3)) == (
        "the engine compressed 3 of 4 layers, 4 were asked for: the rest flatters every score"
    )
    assert not_as_asked(REFERENCE, measured(kv, {}, k="f16")) == "K was asked for as q8_0, the engine stores f16"
    assert not_as_asked(REFERENCE, measured(f"{kv},boundary_k=1", {}, k="f16")) is None
    big = replace(healthy, effective=replace(healthy.effective, bytes_per_token=64.0))
    reference = replace(REFERENCE, effective=replace(REFERENCE.effective, bytes_per_token=64.0))
    assert not_as_asked(reference, big) == (
        "the engine allocates 64 bytes a token for ctk=q8_0,ctv=q4_0, no fewer than the reference's 64"
    )
    assert not_as_asked(reference, healthy) is None


def test_a_candidate_that_only_drops_tokens_is_judged_by_what_it_did() -> None:
    kv = "ctk=f16,ctv=f16,evict=recency"
    assert never_acted(REFERENCE, measured(kv, {COMPARE: divergence(0.1)}, compressed=0)) is None
    assert never_acted(REFERENCE, measured(kv, {COMPARE: divergence(0.0)}, compressed=0))


def test_a_score_is_taken_away_and_its_samples_stay() -> None:
    score = Estimate(value=100.0, low=100.0, high=100.0, n=1, clusters=1, method="none")
    samples = (Sample(id="a", cluster="a", numerator=1.0, denominator=1.0),)
    ok = AxisResult(axis="kld", status="ok", score=score, link="100*r", unit="window", samples=samples)
    out = as_not_exercised(ok, "why")
    assert (out.status, out.score, out.reason, out.samples) == ("not-exercised", None, "why", samples)
    for status in ("not-run", "failed"):
        other = replace(ok, status=status, score=None, reason="another")
        assert as_not_exercised(other, "why") is other


def test_bit_identical_candidates_are_named_on_both_with_the_likely_reason() -> None:
    one = measured("ctk=q8_0,ctv=q8_0", {COMPARE: divergence(0.25)})
    two = measured("ctk=q5_0,ctv=q5_0", {COMPARE: divergence(0.25)})
    other = measured("ctk=q4_0,ctv=q4_0", {COMPARE: divergence(0.5)})
    found = duplicates([one, other, two])
    assert set(found) == {0, 2}
    assert "every answer equals that of ctk=q5_0,ctv=q5_0 bit for bit" in found[0]
    assert "that of ctk=q8_0,ctv=q8_0 bit for bit" in found[2]
    assert "decodes both formats the same way" in found[0]


@pytest.mark.parametrize(
    ("k", "compressed", "kl", "reason"),
    [
        ("fp8", 4, True, "the engine stores both as fp8/f16"),
        ("", 0, True, "neither compressed a layer"),
        ("", 4, False, "too few tokens"),
    ],
)
def test_likely_reasons(k: str, compressed: int, kl: bool, reason: str) -> None:
    answers: dict[Request, Answer | Failure] = (
        {COMPARE: divergence(0.25)} if kl else {ASK: Generation(tokens=(1,), stop="eos")}
    )
    pair = [measured(f"ctk={name},ctv=f16", answers, compressed=compressed, k=k) for name in ("q8_0", "q4_0")]
    assert reason in duplicates(pair)[0]


def test_no_answers_are_no_duplicates() -> None:
    failed: dict[Request, Answer | Failure] = {ASK: Failure(kind="x", message="y")}
    assert duplicates([measured("ctk=q8_0,ctv=f16", failed), measured("ctk=q4_0,ctv=f16", failed)]) == {}
    assert duplicates([measured("ctk=q8_0,ctv=f16", {}), measured("ctk=q4_0,ctv=f16", {})]) == {}


def test_the_digest_does_not_depend_on_the_order_of_the_answers() -> None:
    answers: dict[Request, Answer | Failure] = {ASK: generation(-1.0), FORCED: TokenScores(logprobs=f32(-1.0))}
    assert answers_digest(answers) == answers_digest(dict(reversed(answers.items())))
    assert answers_digest(answers) != answers_digest({ASK: generation(-1.0)})


@pytest.mark.parametrize(
    ("kv", "layers", "compressed"),
    [
        ("ctk=q8_0,ctv=q8_0", 8, 8),
        ("ctk=q8_0,ctv=q8_0,boundary=2", 8, 4),
        ("ctk=q4_0,ctv=f16", 8, 8),
        ("ctk=q8_0,ctv=q8_0,layers=0-2", 8, 3),
        ("ctk=q8_0,ctv=q8_0,layers=last2", 8, 2),
        ("ctk=q8_0,ctv=q8_0,layers=0-2,boundary=2", 8, 1),
        ("ctk=f16,ctv=f16", 8, 0),
    ],
)
def test_layers_that_are_to_be_compressed(kv: str, layers: int, compressed: int) -> None:
    assert compressed_layers(parse_kv(kv), layers) == compressed


def test_a_candidate_that_spares_layers_on_purpose_did_as_asked() -> None:
    assert not_as_asked(REFERENCE, measured("ctk=q8_0,ctv=q8_0,layers=1-2", {}, compressed=2)) is None
    reason = not_as_asked(REFERENCE, measured("ctk=q8_0,ctv=q8_0,layers=1-2", {}, compressed=1))
    assert reason == "the engine compressed 1 of 4 layers, 2 were asked for: the rest flatters every score"
