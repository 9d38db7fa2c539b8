"""Reports made by hand: every axis, every status, several candidates, a floor, and text that bites."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from refract.results import (
    BAND_FLOORS,
    AxisResult,
    Band,
    CandidateResult,
    Composite,
    Configuration,
    Estimate,
    Json,
    Methodology,
    ModelInfo,
    Provenance,
    Report,
    Sample,
    SelfNoise,
    Statistic,
)
from refract.work import EffectiveKV

CATEGORIES = ("code", "maths", "story", "translation")
_TEXT = (
    " the| a| cache| keeps| every| key| and| value| of| past| tokens|,| so| attention| reads| them| again|.| It| grows|"
    " with| length|;| compression| trades| memory| for| error|:\n| naïve| 漢| über| 42|\n\n| return| x| +| 1"
)
WORDS = tuple(_TEXT.split("|"))


def estimate(value: float, spread: float, n: int, clusters: int, *, top: float = math.inf) -> Estimate:
    """A plausible estimate; its interval is `spread` to either side, within 0 and `top`."""
    return Estimate(
        value=round(value, 4),
        low=round(max(0.0, value - spread), 4),
        high=round(min(top, value + spread), 4),
        n=n,
        clusters=clusters,
        method="cr1-t",
    )


def score(value: float, spread: float, n: int, clusters: int) -> Estimate:
    """An estimate between 0 and 100."""
    return estimate(value, spread, n, clusters, top=100.0)


def _side(rng: random.Random, count: int, start: Sequence[int] = ()) -> list[int]:
    return [*start, *(int(rng.random() * len(WORDS)) for _ in range(count - len(start)))]


def trajectory_sample(rng: random.Random, index: int, n_predict: int, survival: float) -> Sample:
    """A prompt whose two continuations part somewhere, or never."""
    reference = _side(rng, n_predict)
    same = 0
    while same < n_predict and rng.random() < survival:
        same += 1
    candidate = _side(rng, n_predict, reference[:same])
    if same < n_predict and candidate[same] == reference[same]:
        candidate[same] = (reference[same] + 1) % len(WORDS)
    margin = None if same == n_predict else round(rng.random() ** 3, 4)
    kind = None if margin is None else "near-tie" if margin < 0.1 else "decisive"
    return Sample(
        id=f"p{index:03d}",
        cluster=f"p{index:03d}",
        category=CATEGORIES[index % len(CATEGORIES)],
        numerator=round(same / n_predict, 6),
        denominator=1.0,
        detail={
            "prompt": f"Explain in {index + 2} sentences what a KV cache is.",
            "prefix": same,
            "longest": n_predict,
            "divergence": None if margin is None else same,
            "margin": margin,
            "kind": kind,
            "flags": ["loop"] if index == 3 else [],
            "reference": {"tokens": list(reference), "texts": [WORDS[i] for i in reference], "stop": "length"},
            "candidate": {"tokens": list(candidate), "texts": [WORDS[i] for i in candidate], "stop": "length"},
        },
    )


def trajectory(rng: random.Random, prompts: int, n_predict: int, survival: float) -> AxisResult:
    """The axis over `prompts` prompts that diverge at a constant hazard of 1 − survival."""
    samples = tuple(trajectory_sample(rng, i, n_predict, survival) for i in range(prompts))
    value = 100.0 * sum(s.numerator for s in samples) / prompts
    diverged = [s for s in samples if s.detail["kind"] is not None]
    near = sum(s.detail["kind"] == "near-tie" for s in diverged)
    exposed = sum(round(s.numerator * n_predict) + (s.detail["kind"] is not None) for s in samples)
    statistics: dict[str, Statistic] = {
        "identical_share": estimate(1.0 - len(diverged) / prompts, 0.1, prompts, prompts, top=1.0),
        "hazard_per_1000": estimate(1000.0 * len(diverged) / exposed, 3.0, exposed, prompts),
        "decisive_hazard_per_1000": estimate(1000.0 * (len(diverged) - near) / exposed, 2.0, exposed, prompts),
        "median_first_divergence": 9,
        "near_tie_share": estimate(near / len(diverged), 0.15, len(diverged), len(diverged), top=1.0)
        if diverged
        else None,
        "divergences": len(diverged),
        "divergences_near_tie": near,
        "divergences_decisive": len(diverged) - near,
        "tokens_compared": exposed,
        "prompts": prompts,
        "prompts_failed": 0,
    }
    return AxisResult(
        axis="trajectory",
        status="ok",
        score=score(value, 6.2, prompts, prompts),
        link="100*r",
        unit="prompt",
        protocol="decode",
        statistics=statistics,
        series={"survival": _survival(samples, n_predict), "categories": _categories(samples)},
        samples=samples,
        findings=("1 of the candidate answers ends in a loop where the reference's do not",) if diverged else (),
    )


def _survival(samples: Sequence[Sample], tau: int) -> Json:
    events = sorted(s.detail["divergence"] for s in samples if s.detail["divergence"] is not None)  # type: ignore[type-var]
    times = sorted({*map(int, events), tau})  # type: ignore[arg-type]
    alive = [1.0 - sum(int(e) <= t for e in events) / len(samples) for t in times]  # type: ignore[arg-type]
    return {
        "tau": tau,
        "time": list(times),
        "survival": [round(s, 4) for s in alive],
        "low": [round(max(0.0, s - 0.12), 4) for s in alive],
        "high": [round(min(1.0, s + 0.12), 4) for s in alive],
        "at_risk": [len(samples) - sum(int(e) < t for e in events) for t in times],  # type: ignore[arg-type]
        "events": [sum(int(e) == t for e in events) for t in times],  # type: ignore[arg-type]
    }


def _categories(samples: Sequence[Sample]) -> Json:
    rows: list[Json] = []
    for category in CATEGORIES:
        members = [s for s in samples if s.category == category]
        if members:
            value = 100.0 * sum(s.numerator for s in members) / len(members)
            same = sum(s.detail["kind"] is None for s in members)
            interval: Json = {"value": round(value, 2), "low": round(value * 0.8, 2), "high": round(value, 2)}
            rows.append({"category": category, "prompts": len(members), "identical": same, "score": interval})
    return rows


def kld(rng: random.Random, windows: int, mean_kl: float) -> AxisResult:
    """The axis over `windows` windows of 255 scored positions."""
    positions = 255
    kls = [float(f"{mean_kl * (0.5 + rng.random()):.5g}") for _ in range(windows)]
    mean = float(f"{sum(kls) / windows:.5g}")
    samples = tuple(
        Sample(
            id=f"w{i:03d}",
            cluster=f"w{i:03d}",
            category=("encyclopedic", "code")[i % 2],
            numerator=float(f"{kl * positions:.6g}"),
            denominator=float(positions),
            detail={
                "text": "The ship was rebuilt in 1876 and renamed twice before",
                "positions": positions,
                "mean_kl_nats": kl,
                "max_kl_nats": float(f"{40.0 * kl:.5g}"),
                "max_at": 300 + i,
                "top1_agreement": 0.97,
            },
        )
        for i, kl in enumerate(kls)
    )
    n = windows * positions
    return AxisResult(
        axis="kld",
        status="ok",
        score=score(100.0 * math.exp(-mean), 30.0 * mean, n, windows),
        link="100*exp(-r)",
        unit="window",
        protocol="prefill",
        estimator="kl-exact",
        statistics=_kld_statistics(mean, max(kls), n, windows),
        series=_kld_series(mean, n),
        samples=samples,
    )


def _kld_statistics(mean: float, worst: float, n: int, windows: int) -> dict[str, Statistic]:
    return {
        "mean_kl_nats": estimate(mean, mean * 0.08, n, windows),
        "median_kl_nats": estimate(mean * 0.3, mean * 0.02, n, windows),
        "p90_kl_nats": estimate(mean * 2.2, mean * 0.2, n, windows),
        "p99_kl_nats": estimate(mean * 9.0, mean, n, windows),
        "p999_kl_nats": None,
        "max_kl_nats": round(40.0 * worst, 6),
        "top1_agreement": estimate(0.972, 0.006, n, windows, top=1.0),
        "decisive_flip_share": estimate(0.004, 0.001, n, windows, top=1.0),
        "rms_delta_p": estimate(0.021, 0.002, n, windows),
        "mean_delta_nll_nats": Estimate(value=0.0021, low=-0.0004, high=0.0046, n=n, clusters=windows, method="cr1-t"),
        "perplexity_reference": 18.42,
        "perplexity_candidate": 17.9,
        "trajectory_mean_kl_nats": estimate(mean * 1.15, mean * 0.1, 240, 12),
        "windows": windows,
        "positions": n,
    }


def _kld_series(mean: float, n: int) -> dict[str, Json]:
    spread: Json = {"value": mean, "low": mean * 0.5, "high": mean * 2.0}
    points = [float(f"{mean * 10 ** (i / 10 - 3):.5g}") for i in range(50)]
    return {
        "categories": [
            {"category": name, "windows": 4, "positions": n // 2, "mean_kl_nats": spread, "top1_agreement": 0.97}
            for name in ("encyclopedic", "code")
        ],
        "depths": [
            {"depth": depth, "windows": 4, "positions": n, "mean_kl_nats": spread, "top1_agreement": 0.97}
            for depth in (512, 4096)
        ],
        "kl_tail": {"kl": list(points), "above": [round(math.exp(-((p / mean) ** 0.6)), 5) for p in points]},
        "margins": [
            {"low": 0.0, "high": 0.1, "positions": 400, "flips": 51, "mean_kl_nats": mean},
            {"low": 0.1, "high": 1.0, "positions": n - 400, "flips": 6, "mean_kl_nats": mean},
        ],
        "trajectory_kl": {"from": [0, 16], "positions": [192, 96], "mean_kl_nats": [mean, mean * 2.0]},
    }


def rniah(hits: int, reference_hits: int = 15) -> AxisResult:
    """Retrieval over three lengths and three positions; `hits` of the reference's hits were the candidate's too."""
    lengths, positions = (1024, 2048, 4096), (0.1, 0.5, 0.9)
    samples: list[Sample] = []
    for i in range(18):
        length, position = lengths[i // 6], positions[(i // 2) % 3]
        informative, hit = i < reference_hits, i < hits
        samples.append(
            Sample(
                id=f"{length}/{position}/{i % 2}",
                cluster=f"h{i % 6}",
                category="literal" if i % 2 else "multi-key",
                numerator=float(hit and informative),
                denominator=float(informative),
                detail={
                    "length": length,
                    "position": position,
                    "reference_hit": informative,
                    "candidate_hit": hit,
                    "delta_nll": round(0.01 * i, 4),
                },
            )
        )
    enough = reference_hits >= 6
    share = hits / reference_hits if reference_hits else 0.0
    return AxisResult(
        axis="rniah",
        status="ok" if enough else "low-confidence",
        score=score(100.0 * share, 12.0, reference_hits, min(6, reference_hits)) if enough else None,
        reason=None if enough else f"the reference retrieved {reference_hits} of 18 needles, 6 are needed",
        link="100*r",
        unit="haystack",
        protocol="decode",
        statistics={
            "trials": 18,
            "informative": reference_hits,
            "reference_hits": reference_hits,
            "candidate_hits": hits,
            "lost": reference_hits - hits,
            "mcnemar_p": 1.0,
            "answer_nll_delta_nats": estimate(0.04, 0.03, 18, 6),
        },
        series={"cells": _cells(samples)},
        samples=tuple(samples),
    )


def _cells(samples: Sequence[Sample]) -> Json:
    rows: dict[str, dict[str, Json]] = {}
    for sample in samples:
        length, position = sample.detail["length"], sample.detail["position"]
        row = rows.setdefault(f"{length}@{position}", {"length": length, "position": position, "skipped": None})
        for name, value in (("informative", sample.denominator), ("candidate_hits", sample.numerator)):
            row[name] = int(row.get(name) or 0) + int(value)  # type: ignore[arg-type]
    return list(rows.values())


def plad(rng: random.Random, excess: float) -> AxisResult:
    """Perturbations with a mean signed excess drift."""
    kinds = ("typo", "case", "punct", "paraphrase", "spacing")
    samples = tuple(
        Sample(
            id=f"p{i // 5:03d}/{kinds[i % 5]}",
            cluster=f"p{i // 5:03d}",
            category=kinds[i % 5],
            numerator=round(excess + 0.2 * (rng.random() - 0.5), 6),
            denominator=1.0,
            detail={"perturbation": kinds[i % 5], "drift_reference": 0.41, "drift_candidate": round(0.41 + excess, 4)},
        )
        for i in range(40)
    )
    rows: list[Json] = [
        {"perturbation": k, "applied": 8, "skipped": i, "drift_reference": 0.41, "excess": excess}
        for i, k in enumerate(kinds)
    ]
    return AxisResult(
        axis="plad",
        status="ok",
        score=score(100.0 * math.exp(-5.0 * abs(excess)), 8.0, 40, 8),
        link="100*exp(-5*|r|)",
        unit="prompt",
        protocol="decode",
        statistics={
            "mean_excess_drift": Estimate(value=excess, low=-0.01, high=0.09, n=40, clusters=8, method="cr1-t")
        },
        series={"perturbations": rows},
        samples=samples,
        warnings=("case was skipped on 1 of 8 prompts, which hold no letter to change",),
    )


def unscored(axis: str, status: str, reason: str) -> AxisResult:
    """An axis without a score."""
    return AxisResult(axis=axis, status=status, score=None, reason=reason, link="100*r", unit="prompt")  # type: ignore[arg-type]


def composite(axes: Sequence[AxisResult], probability: float) -> Composite:
    """The harmonic mean of the axes that are ok, its band of that probability."""
    usable = [a for a in axes if a.status == "ok" and a.score is not None]
    names = tuple(a.axis for a in usable)
    if len(usable) < 2:
        return Composite(score=None, reason="a composite needs two axes that are ok, only trajectory is", axes=names)
    value = len(usable) / sum(1.0 / max(1e-9, a.score.value) for a in usable if a.score)
    band = next(name for name, least in BAND_FLOORS.items() if value >= least)
    order: tuple[Band, ...] = ("EXCELLENT", "PASS", "DEGRADED", "FAIL")
    chances = dict.fromkeys(order, 0.0)
    chances[band] = probability
    chances[order[order.index(band) - 1 if band == "FAIL" else order.index(band) + 1]] = round(1.0 - probability, 4)
    return Composite(
        score=score(value, 5.5, 100, 8),
        band=band,
        band_certain=probability >= 0.8,
        band_probability=chances,  # type: ignore[arg-type]
        axes=names,
    )


def _effective(k: str, v: str, compressed: int, size: float, *notes: str) -> EffectiveKV:
    return EffectiveKV(k=k, v=v, layers=30, layers_compressed=compressed, bytes_per_token=size, notes=notes)


def noise(mean: float, agreement: float) -> SelfNoise:
    """What a configuration's kernels do to it."""
    return SelfNoise(change="batch 8, chunk 128", mean_kl_nats=mean, top1_agreement=agreement, positions=8160)


def report(*, prompts: int = 12, n_predict: int = 24, windows: int = 8) -> Report:
    """A report with five candidates, a floor and a control; the same arguments give the same report."""
    rng = random.Random(7)
    good = (
        trajectory(rng, prompts, n_predict, 0.985),
        kld(rng, windows, 0.0177),
        rniah(15),
        plad(rng, 0.03),
    )
    fair = (trajectory(rng, prompts, n_predict, 0.86), kld(rng, windows, 0.181), rniah(2, 2), plad(rng, 0.04))
    close = (trajectory(rng, prompts, n_predict, 0.98), kld(rng, windows, 0.0182), rniah(14), plad(rng, 0.034))
    broken = (
        trajectory(rng, prompts, n_predict, 0.4),
        unscored("kld", "failed", "the candidate's logits were not finite at 8,078 of 8,160 positions"),
        unscored("rniah", "not-run", "the engine's context of 2,048 tokens holds no cell"),
        unscored("plad", "not-run", "not asked for"),
    )
    idle = tuple(
        unscored(axis, "not-exercised", "no layer was compressed: the candidate never acted")
        for axis in ("trajectory", "kld", "rniah", "plad")
    )
    floor = (trajectory(rng, prompts, n_predict, 1.0), kld(rng, windows, 1e-9))
    control = (trajectory(rng, prompts, n_predict, 0.99), kld(rng, windows, 0.004))
    return Report(
        created="2026-11-30T19:43:00Z",
        methodology=Methodology(
            id="m1-5f0c2b9a7d31",
            prompts="v1/default@3f9a1c0b7e22",
            corpus="bundled@91c4d5e6f708",
            n_predict=n_predict,
            parameters={"kld": {"chunks": windows, "ctx": 512}, "plad": {"seed": 0}},
        ),
        model=ModelInfo(
            name="SmolLM2-135M-Instruct",
            fingerprint="sha256:7d1a5c0e9f3b2a486c",
            engine="mlx 0.32.4",
            details={"layers": 30, "head_dim": 64, "weights": "q4_1"},
        ),
        reference=Configuration(kv="ctk=f16,ctv=f16", effective=_effective("f16", "f16", 0, 23040.0)),
        candidates=(
            CandidateResult(
                kv="ctk=q8_0,ctv=turbo3",
                effective=_effective("q8_0", "turbo3", 30, 8370.0, "layers 0 and 29 keep 16-bit sinks"),
                composite=composite(good, 0.93),
                axes=good,
                control=noise(0.0091, 0.962),
                findings=("Long answers drift after about 90 tokens; most flips are near-ties. Try ctv=turbo4.",),
            ),
            CandidateResult(
                kv="ctk=q8_0,ctv=turbo4",
                effective=_effective("q8_0", "turbo4", 30, 9540.0),
                composite=composite(close, 0.85),
                axes=close,
                control=noise(0.0042, 0.981),
            ),
            CandidateResult(
                kv="ctk=q4_0,ctv=q4_0",
                effective=_effective("q4_0", "q4_0", 30, 6480.0),
                composite=composite(fair, 0.55),
                axes=fair,
            ),
            CandidateResult(
                kv="ctk=turbo2,ctv=turbo2",
                effective=_effective("turbo2", "turbo2", 30, 3060.0),
                composite=composite(broken, 1.0),
                axes=broken,
                findings=("The keys are broken: answers part at once. Keep K at q8_0.",),
            ),
            CandidateResult(
                kv="ctk=fp8,ctv=fp8",
                effective=_effective("f16", "f16", 0, 23040.0),
                composite=Composite(score=None, reason="a composite needs two axes that are ok, none is"),
                axes=idle,
            ),
        ),
        floor=CandidateResult(
            kv="ctk=f16,ctv=f16",
            effective=_effective("f16", "f16", 0, 23040.0),
            composite=composite(floor, 1.0),
            axes=floor,
        ),
        control=CandidateResult(
            kv="ctk=f16,ctv=f16",
            effective=_effective("f16", "f16", 0, 23040.0),
            composite=composite(control, 1.0),
            axes=control,
            control=noise(0.004, 0.983),
        ),
        findings=("ctk=fp8,ctv=fp8 gave bit-identical answers to the reference: nothing was compressed.",),
        provenance=Provenance(
            command="refract score --engine mlx --candidate ctk=q8_0,ctv=turbo3",
            refract="1.0.0",
            machine={"system": "Linux", "cpu": "x86_64", "cores": 2, "memory_gib": 24},
            packages={"mlx": "0.32.4", "numpy": "2.3.5"},
            loads=6,
            answers={"stored": 412, "computed": 148},
            seconds={"reference": 81.25, "candidates": 240.5},
        ),
    )
