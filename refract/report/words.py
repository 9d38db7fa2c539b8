"""Numbers, statuses and statistics as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from refract.results import BAND_FLOORS, Band, CandidateResult, Composite, Estimate, Statistic, Status
from refract.stats.composite import samples_needed
from refract.work import EffectiveKV

Kind = Literal["plain", "score", "nats", "share", "count", "rate", "perplexity"]

STATUS_WORDS: Mapping[Status, str] = {
    "ok": "ok",
    "low-confidence": "low confidence",
    "not-exercised": "not exercised",
    "failed": "failed",
    "not-run": "not run",
}

AXIS_WORDS: Mapping[str, str] = {
    "trajectory": "how far greedy answers follow the reference's, token by token",
    "kld": "how far next-token distributions move, over windows of the corpus",
    "kld.trajectory": "how far they move along the reference's own answers",
    "rniah": "needles found in long contexts, of those the reference found",
    "plad": "drift under small changes of the prompt, beyond the reference's own",
}

UNIT_WORDS: Mapping[str, str] = {"prompt": "prompts", "window": "windows", "haystack": "haystacks"}


@dataclass(frozen=True, slots=True)
class Label:
    """How a statistic is shown; `key` ones appear in the text report."""

    text: str
    kind: Kind
    key: bool = False


STATISTICS: Mapping[str, Label] = {
    "identical_share": Label("identical completions", "share", True),
    "hazard_per_1000": Label("divergences per 1,000 tokens", "rate", True),
    "decisive_hazard_per_1000": Label("decisive divergences per 1,000 tokens", "rate", True),
    "near_tie_share": Label("divergences at near-ties", "share", True),
    "median_first_divergence": Label("median first divergence (token)", "count", True),
    "mean_kl_nats": Label("mean KL (nats)", "nats", True),
    "median_kl_nats": Label("median KL (nats)", "nats"),
    "p90_kl_nats": Label("p90 KL (nats)", "nats"),
    "p99_kl_nats": Label("p99 KL (nats)", "nats", True),
    "p999_kl_nats": Label("p99.9 KL (nats)", "nats"),
    "max_kl_nats": Label("max KL (nats)", "nats", True),
    "top1_agreement": Label("top-1 agreement", "share", True),
    "decisive_flip_share": Label("decisive top-1 flips", "share", True),
    "rms_delta_p": Label("RMS Δp", "share"),
    "mean_delta_nll_nats": Label("mean Δ NLL (nats)", "nats"),
    "perplexity_reference": Label("perplexity, reference", "perplexity", True),
    "perplexity_candidate": Label("perplexity, candidate", "perplexity", True),
    "trajectory_mean_kl_nats": Label("mean KL along the answers (nats)", "nats", True),
    "trajectory_max_kl_nats": Label("max KL along the answers (nats)", "nats"),
    "trajectory_top1_agreement": Label("top-1 agreement along the answers", "share"),
    "retention": Label("needles kept, of those the reference found", "share"),
    "trials": Label("trials", "count", True),
    "reference_hits": Label("needles the reference found", "count", True),
    "candidate_hits": Label("of those, the candidate found", "count", True),
    "informative": Label("informative trials", "count"),
    "gained": Label("found by the candidate only", "count"),
    "mcnemar_p": Label("p of McNemar's exact test", "plain"),
    "thinking_reference": Label("reference still thinking", "count"),
    "thinking_candidate": Label("candidate still thinking", "count"),
    "answer_nll_delta_nats": Label("mean Δ NLL of the answers (nats)", "nats", True),
    "mean_excess_drift": Label("mean excess drift", "plain", True),
    "mean_drift_reference": Label("mean drift, reference", "plain", True),
    "mean_drift_candidate": Label("mean drift, candidate", "plain", True),
    "drift_reference": Label("drift, reference", "plain"),
    "drift_candidate": Label("drift, candidate", "plain"),
    "divergences_near_tie": Label("divergences, near-tie", "count"),
    "divergences_decisive": Label("divergences, decisive", "count"),
}


def label_of(key: str) -> Label:
    """The label of a statistic, from its name where the table above does not know it."""
    known = STATISTICS.get(key)
    if known is not None:
        return known
    words = key.replace("_", " ").replace(".", " ")
    if "perplexity" in key or key.startswith("ppl"):
        return Label(words, "perplexity", key=True)
    if "nats" in key or "kl" in key.split("_"):
        return Label(words, "nats")
    if key.endswith(("_share", "_rate", "agreement")):
        return Label(words, "share")
    return Label(words, "plain")


def figure(value: float, kind: Kind) -> str:
    """One number, with the digits that mean something for its kind."""
    if kind == "score":
        return f"{value:.1f}"
    if kind == "share":
        return f"{100.0 * value:.1f} %"
    if kind in ("rate", "perplexity"):
        return f"{value:,.2f}"
    if kind == "count" or (kind == "plain" and isinstance(value, int)):
        return f"{value:,.0f}"
    return significant(value)


def significant(value: float) -> str:
    """Three significant digits, in scientific notation when very small or very large."""
    if value == 0.0:
        return "0"
    if 1e-4 <= abs(value) < 1e5:
        digits = max(0, 3 - len(f"{abs(value):.0f}")) if abs(value) >= 1.0 else _places(abs(value))
        return f"{value:,.{digits}f}"
    return f"{value:.2e}"


def _places(value: float) -> int:
    return 2 - int(f"{value:e}".partition("e")[2])


def interval(estimate: Estimate, kind: Kind = "score") -> str:
    """[low, high], as fine as the value, with the unit said once, by the value."""
    shown = figure(estimate.value, kind)
    if kind in ("nats", "plain") and "e" not in shown and abs(estimate.high) < 1e5:
        places = len(shown.partition(".")[2])
        low, high = (f"{end:,.{places}f}" for end in (estimate.low, estimate.high))
    else:
        low, high = (figure(end, kind).removesuffix(" %") for end in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def statistic(value: Statistic, kind: Kind) -> str:
    """A statistic with its interval when it has one; "not known" for null."""
    if value is None:
        return "not known"
    note = " (shown, never scored)" if kind == "perplexity" else ""
    if isinstance(value, Estimate):
        return f"{figure(value.value, kind)} {interval(value, kind)}{note}"
    return figure(value, kind) + note


def band_words(composite: Composite) -> str:
    """The band, or the two most probable ones when it is not certain, or "no score"."""
    pair = bands(composite)
    if len(pair) < 2:
        return "".join(pair) or "no score"
    odds = "/".join(f"{composite.band_probability.get(band, 0.0):.2f}" for band in pair)
    return f"{'/'.join(pair)} borderline (P {odds})"


def bands(composite: Composite) -> list[Band]:
    """The bands a composite may be in, best first: only its own when that is certain, else the likeliest other too."""
    if composite.band is None:
        return []
    if composite.band_certain:
        return [composite.band]
    chances = {band: composite.band_probability.get(band, 0.0) for band in BAND_FLOORS}
    others = [band for band in BAND_FLOORS if band != composite.band]
    rival = max(others, key=lambda band: chances[band])
    return sorted((composite.band, rival), key=list[Band](BAND_FLOORS).index)


def size_words(candidate: EffectiveKV, reference: EffectiveKV) -> str | None:
    """How much smaller the candidate's cache is, as "2.6× smaller"; None when the engine did not say."""
    return size_ratio(candidate.bytes_per_token, reference.bytes_per_token)


def size_ratio(ours: float, theirs: float) -> str | None:
    """The same of two sizes."""
    if not (ours > 0.0 and theirs > 0.0):
        return None
    if ours == theirs:
        return "same size"
    return f"{theirs / ours:.1f}× smaller" if ours < theirs else f"{ours / theirs:.1f}× larger"


def verdict(candidate: CandidateResult, reference: EffectiveKV) -> tuple[str, ...]:
    """The parts of the verdict line: configuration and band, score, what it is made of, size."""
    composite = candidate.composite
    head = f"{candidate.kv}: {band_words(composite)}"
    size = size_words(candidate.effective, reference)
    tail = () if size is None else (f"{size} KV",)
    if composite.score is None:
        return (head, f"({composite.reason})", *tail)
    return (head, f"{composite.score.value:.1f} {interval(composite.score)}", composite.name, *tail)


def halving_words(candidate: CandidateResult) -> str:
    """How much would have to be measured to halve the composite's interval; empty where that cannot be said."""
    score = candidate.composite.score
    if score is None or score.method == "one-cluster" or not (quarter := (score.high - score.low) / 4.0) > 0.0:
        return ""
    now: dict[str, int] = {}
    for axis in candidate.axes:
        if axis.axis in candidate.composite.axes and axis.score is not None:
            now[axis.unit] = max(now.get(axis.unit, 0), axis.score.clusters)
    if not now:
        return ""
    needed = {unit: samples_needed(replace(score, n=count, clusters=count), quarter) for unit, count in now.items()}
    wanted = _listed([f"{count:,} {UNIT_WORDS.get(unit, unit)}" for unit, count in needed.items()])
    had = _listed([f"{count:,}" for count in now.values()])
    return f"About {wanted} would halve this interval (now {had})."


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def effective_words(effective: EffectiveKV) -> str:
    """What the engine allocated, in one line."""
    size = f"{effective.bytes_per_token:,.0f} bytes per token"
    layers = f"{effective.layers_compressed} of {effective.layers} layers compressed"
    return f"K {effective.k}, V {effective.v}; {layers}; {size}"


def counted(n: int, clusters: int, unit: str) -> str:
    """How much was measured: "12 prompts" or "8,160 in 32 windows"."""
    noun = UNIT_WORDS.get(unit, unit)
    return f"{n:,} {noun}" if n == clusters else f"{n:,} in {clusters:,} {noun}"
