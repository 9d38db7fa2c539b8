"""Guards against candidates that were never measured: pure functions of answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from refract.axes.base import Answers
from refract.kv import Format, KVConfig
from refract.results import AxisResult
from refract.run.codec import encode
from refract.work import (
    Answer,
    CompareBase,
    Divergence,
    EffectiveKV,
    Failure,
    Generate,
    Generation,
    Request,
    ScoreTokens,
    TokenScores,
)

UNCOMPRESSED = frozenset({"f32", "f16", "bf16"})  # as engines name them
IDLE_SHARE = 0.1  # of the texts of one protocol may show no divergence at all
TELLING_POSITIONS = 16  # of a text: at fewer, a sure model may round to the same float32 under any cache
TELLING_KL = 1e-3  # nats; below it two protocols may differ by rounding alone
PROTOCOL_FACTOR = 100.0  # two protocols over like text differ by a few times, not by this


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one configuration really was and what it answered."""

    kv: KVConfig
    effective: EffectiveKV
    answers: Answers


def must_differ(reference: Measured, candidate: Measured) -> bool:
    """Whether the candidate is lossy and another configuration than the reference."""
    return not candidate.kv.is_reference_like and candidate.kv != reference.kv


def never_acted(reference: Measured, candidate: Measured) -> str | None:
    """Why a candidate that must differ from the reference cannot have acted at all; None when it did."""
    if reason := not_as_asked(reference, candidate):
        return reason
    evidence = list(_differences(reference.answers, candidate.answers))
    if evidence and not any(evidence):
        return (
            f"all {len(evidence)} measured distributions of {candidate.kv} equal the reference's bit for bit,"
            " which no lossy format can: the compressed cache was not read"
        )
    return None


def not_as_asked(reference: Measured, candidate: Measured) -> str | None:
    """What of a candidate's cache the engine left uncompressed by its own account; None when it did as asked."""
    kv, effective = candidate.kv, candidate.effective
    asked = compressed_layers(kv, effective.layers)
    if effective.layers_compressed == 0 and (kv.k.compressed or kv.v.compressed):
        return f"the engine compressed none of {effective.layers} layers (it stores {effective.k}/{effective.v})"
    if effective.layers_compressed < asked:
        found = f"the engine compressed {effective.layers_compressed} of {effective.layers} layers"
        return f"{found}, {asked} were asked for: the rest flatters every score"
    for side, wanted, found, boundary in zip("KV", (kv.k, kv.v), (effective.k, effective.v), kv.boundary, strict=True):
        if wanted.compressed and not boundary and found in UNCOMPRESSED:
            return f"{side} was asked for as {wanted}, the engine stores {found}"
    own, other = effective.bytes_per_token, reference.effective.bytes_per_token
    if asked and reference.kv.is_reference_like and own >= other > 0.0:
        return f"the engine allocates {own:,.0f} bytes a token for {kv}, no fewer than the reference's {other:,.0f}"
    return None


def compressed_layers(kv: KVConfig, layers: int) -> int:
    """In how many of so many layers a side is to take fewer than 16 bits a value; layers that `layers` spares do not.

    Raises: KVUnsupportedError where the configuration names layers that are not there.
    """
    boundary = tuple(Format(name=name).compressed for name in kv.boundary_types)
    sides = list(zip((kv.k.compressed, kv.v.compressed), boundary, kv.boundary, strict=True))
    distances = [min(layer, layers - 1 - layer) for layer in kv.layers(layers)]
    return sum(any(edge if far < reach else inner for inner, edge, reach in sides) for far in distances)


def never_read(requests: Sequence[Request], answers: Answers) -> str | None:
    """Why one axis of a lossy candidate saw nothing of its cache, though others may have: exact zeros in one protocol.

    An engine whose prefill attends to the raw keys of the current chunk gives KL 0 in prefill protocol for any format,
    or next to 0 where its kernels round otherwise; one that compresses from some depth on gives KL 0 before it.
    """
    seen: dict[str, list[Divergence]] = {}
    for request in requests:
        answer = answers.get(request)
        if isinstance(request, CompareBase) and isinstance(answer, Divergence):
            seen.setdefault(request.protocol, []).append(answer)
    for protocol, found in seen.items():
        if not any(map(_diverges, found)):
            return f"every divergence in {protocol} protocol is exactly 0: that pass never read the compressed cache"
    return _partly_read(seen) or _next_to_nothing(seen)


def _partly_read(seen: Mapping[str, Sequence[Divergence]]) -> str | None:
    for protocol, found in seen.items():
        long = [answer for answer in found if len(answer) >= TELLING_POSITIONS]
        idle = sum(not _diverges(answer) for answer in long)
        if idle > IDLE_SHARE * len(long):
            return (
                f"in {idle} of {len(long)} texts every divergence in {protocol} protocol is exactly 0: "
                "the compressed cache was not read there"
            )
    return None


def _next_to_nothing(seen: Mapping[str, Sequence[Divergence]]) -> str | None:
    """Which protocol sees so much less than the other that the two cannot have read one cache."""
    means = {protocol: float(np.mean(np.concatenate([a.kl for a in found]))) for protocol, found in seen.items()}
    if len(means) < 2 or not np.all(np.isfinite(list(means.values()))):
        return None
    low, high = sorted(means, key=lambda protocol: means[protocol])
    if means[high] < TELLING_KL or means[low] * PROTOCOL_FACTOR >= means[high]:
        return None
    return (
        f"mean KL is {means[low]:.2g} nats in {low} protocol and {means[high]:.2g} in {high} protocol: "
        f"the two passes did not read the same cache, or {low} hardly read the compressed one"
    )


def same_numbers(requests: Sequence[Request], reference: Answers, candidate: Answers) -> str | None:
    """Why one axis of a lossy candidate saw the reference's own cache, though others did not: equal log-probabilities.

    None where answers came without numbers, or too few of them to tell.
    """
    asked: Answers = {
        request: candidate[request] for request in requests if isinstance(request, Generate | ScoreTokens)
    }
    known = [numbers for answer in asked.values() if (numbers := _numbers(answer)) is not None]
    differences = list(_differences(reference, asked))
    telling = sum(int(np.isfinite(numbers).sum()) for numbers in known) >= TELLING_POSITIONS
    if not telling or not differences or any(differences):
        return None
    return (
        "all log-probabilities of its texts equal the reference's bit for bit, "
        "which no lossy format can: the compressed cache was not read"
    )


def as_not_exercised(result: AxisResult, reason: str) -> AxisResult:
    """The axis result without its score. One that never ran, or failed, stays what it is."""
    if result.status in ("not-run", "failed"):
        return result
    return replace(result, status="not-exercised", score=None, reason=reason)


def duplicates(candidates: Sequence[Measured]) -> dict[int, str]:
    """For each candidate (by position) that answered exactly as an earlier or later one did: with whom, and why."""
    prints = [answers_digest(candidate.answers) for candidate in candidates]
    found = {}
    for i, own in enumerate(candidates):
        twins = [other for j, other in enumerate(candidates) if j != i and prints[i] and prints[j] == prints[i]]
        if twins:
            names = " and ".join(str(twin.kv) for twin in twins)
            found[i] = f"duplicates: every answer equals that of {names} bit for bit; {_likely_reason(own, twins[0])}"
    return found


def answers_digest(answers: Answers) -> str:
    """sha256 over all answers, in an order of its own; empty when there is no answer but failures."""
    parts = sorted(_entry(request, answer) for request, answer in answers.items() if not isinstance(answer, Failure))
    return hashlib.sha256(b"".join(parts)).hexdigest() if parts else ""


def _entry(request: Request, answer: Answer) -> bytes:
    return hashlib.sha256(repr(request).encode()).digest() + hashlib.sha256(encode(answer)).digest()


def _likely_reason(one: Measured, other: Measured) -> str:
    same = (one.effective.k, one.effective.v) == (other.effective.k, other.effective.v)
    if same:
        return f"the engine stores both as {one.effective.k}/{one.effective.v}"
    if one.effective.layers_compressed == 0 and other.effective.layers_compressed == 0:
        return "neither compressed a layer"
    numeric = any(isinstance(answer, Divergence | TokenScores) for answer in one.answers.values())
    if not numeric:
        return "likely too few tokens were compared to tell them apart: add the kld axis"
    return "likely the engine decodes both formats the same way, or both requests reached one server"


def _differences(reference: Answers, candidate: Answers) -> Iterator[bool]:
    """For every answer that can tell: whether it differs from the reference's at all.

    Equal tokens without distributions tell nothing: a lossy cache often leaves a short text as it is.
    """
    for request, answer in candidate.items():
        if isinstance(answer, Divergence):
            yield _diverges(answer)
        elif isinstance(answer, TokenScores | Generation):
            other = _counterpart(request, reference)
            own, theirs = _numbers(answer), _numbers(other)
            if own is not None and theirs is not None:
                yield not np.array_equal(own, theirs, equal_nan=True)
            elif isinstance(answer, Generation) and isinstance(other, Generation) and answer.tokens != other.tokens:
                yield True


def _counterpart(request: Request, reference: Answers) -> Answer | Failure | None:
    """The reference's answer to the same request, kept base or not."""
    found = reference.get(request)
    if found is None and isinstance(request, Generate):
        return reference.get(replace(request, keep_base=True))
    return found


def _diverges(answer: Divergence) -> bool:
    return any(bool(np.any(part != 0.0)) for part in (answer.kl, answer.token_nll_delta, answer.token_p_delta))


def _numbers(answer: Answer | Failure | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
    if isinstance(answer, TokenScores):
        return answer.logprobs
    if isinstance(answer, Generation) and answer.listed is not None and answer.listed.logprobs.size:
        return answer.listed.logprobs
    return None
