"""What a run found: frozen values, and nothing that could hold a score without a measurement.

Every axis score is a function (its *link*) of one ratio, Σ numerator / Σ denominator over samples. Samples carry both
numbers and the cluster they belong to, so that intervals, composites and paired comparisons can be recomputed from a
report alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from refract.work import EffectiveKV

SCHEMA = "refract.report/1"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Status = Literal["ok", "low-confidence", "not-exercised", "failed", "not-run"]
Link = Literal["100*r", "100*exp(-r)", "100*exp(-5*|r|)"]
Unit = Literal["prompt", "window", "haystack"]
Band = Literal["EXCELLENT", "PASS", "DEGRADED", "FAIL"]

CONTROL_FACTOR = 2.0  # a mean KL up to so many times the control's says nothing of the format

BAND_FLOORS: Mapping[Band, float] = {"EXCELLENT": 90.0, "PASS": 80.0, "DEGRADED": 60.0, "FAIL": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its interval: finite, low ≤ value ≤ high, from `n` observations in `clusters` clusters."""

    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    clusters: int
    method: str

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, self.low, self.high))):
            raise ValueError(f"an estimate is finite, found {self.value} [{self.low}, {self.high}]")
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} lies outside its own interval [{self.low}, {self.high}]")
        if self.n < 1 or not 1 <= self.clusters <= self.n:
            raise ValueError(f"an estimate needs observations, found n={self.n} in {self.clusters} clusters")


Statistic = Estimate | float | int | None


def plain_number(value: Statistic) -> float | None:
    """A statistic without its interval."""
    return value.value if isinstance(value, Estimate) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One unit that was measured: a prompt, a window, a retrieval trial.

    The axis' ratio is Σ numerator / Σ denominator over its samples; `cluster` names what may be resampled as one.
    """

    id: str
    cluster: str
    category: str = ""
    numerator: float
    denominator: float
    detail: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisResult:
    """One axis of one candidate.

    "ok" and "low-confidence" may carry a score, and a score needs samples; the other statuses carry a reason instead.
    """

    axis: str
    status: Status
    score: Estimate | None
    reason: str | None = None
    link: Link
    unit: Unit
    protocol: str | None = None
    estimator: str | None = None
    statistics: Mapping[str, Statistic] = field(default_factory=dict)
    series: Mapping[str, Json] = field(default_factory=dict)  # curves and tables, named in docs/report-schema.md
    samples: tuple[Sample, ...] = ()
    warnings: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.score is not None:
            if self.status not in ("ok", "low-confidence"):
                raise ValueError(f"{self.axis}: status {self.status} cannot carry a score")
            if not self.samples:
                raise ValueError(f"{self.axis}: no measurement, no number")
            if not 0.0 <= self.score.low <= self.score.high <= 100.0:
                raise ValueError(f"{self.axis}: scores run from 0 to 100, found {self.score}")
        elif self.status == "ok":
            raise ValueError(f"{self.axis}: status ok needs a score")
        elif not self.reason:
            raise ValueError(f"{self.axis}: a missing score needs a reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """Harmonic mean of the axes that are ok, named with its axis set; none of fewer than two."""

    score: Estimate | None
    reason: str | None = None
    band: Band | None = None
    band_certain: bool = False
    band_probability: Mapping[str, float] = field(default_factory=dict)
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.score is None) == (self.reason is None):
            raise ValueError("a composite has either a score or the reason why not")
        if (self.score is None) != (self.band is None):
            raise ValueError("a band belongs to a score")

    @property
    def name(self) -> str:
        """The composite's name, which says what it is made of: REFRACT[trajectory+kld]."""
        return f"REFRACT[{'+'.join(self.axes)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A KV configuration as requested (canonical text) and as the engine really allocated it."""

    kv: str
    effective: EffectiveKV


def mean_kl_of(axes: Sequence[AxisResult]) -> float | None:
    """The mean KL divergence over the corpus windows in nats, where the axis kld is among them and ok."""
    kld = next((axis for axis in axes if axis.axis == "kld" and axis.status == "ok"), None)
    return None if kld is None else plain_number(kld.statistics.get("mean_kl_nats"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfNoise:
    """One configuration against itself while the engine does the same arithmetic in another order.

    `change` names the engine's options that differed, such as "batch 8, chunk 128". The figures are over the corpus
    windows, null where they were not measured or not finite: what tokens owe to kernels rather than to the format.
    """

    change: str
    mean_kl_nats: Statistic
    top1_agreement: Statistic
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """Everything found of one candidate; `control` is what its own kernels' noise does to it, where that was measured.

    The floor and the control have the same shape, with the reference as its own candidate.
    """

    kv: str
    effective: EffectiveKV
    composite: Composite
    axes: tuple[AxisResult, ...]
    findings: tuple[str, ...] = ()
    control: SelfNoise | None = None

    @property
    def mean_kl_nats(self) -> float | None:
        """The mean KL divergence over the corpus windows, where the axis kld is ok."""
        return mean_kl_of(self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Methodology:
    """What makes two scores comparable: equal ids, comparable numbers."""

    id: str
    prompts: str  # name@sha256 prefix of the prompt set, empty when no axis used it
    corpus: str
    n_predict: int
    parameters: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The weights both configurations ran."""

    name: str
    fingerprint: str
    engine: str
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a report comes from. Holds no home path, user name or host name."""

    command: str
    refract: str
    machine: Mapping[str, Json]
    packages: Mapping[str, str]
    loads: int
    answers: Mapping[str, int]
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run. Text, JSON, HTML and Markdown are pure functions of it."""

    schema: str = SCHEMA
    created: str  # UTC, ISO 8601 with a Z
    methodology: Methodology
    model: ModelInfo
    reference: Configuration
    candidates: tuple[CandidateResult, ...]
    floor: CandidateResult | None = None
    control: CandidateResult | None = None
    findings: tuple[str, ...] = ()
    provenance: Provenance


def within_noise(candidate: CandidateResult, control: CandidateResult | None) -> bool:
    """Whether the candidate's mean KL is at most twice the control's: it cannot be told from kernel noise."""
    noise = None if control is None else control.mean_kl_nats
    mean = candidate.mean_kl_nats
    return noise is not None and mean is not None and mean <= CONTROL_FACTOR * noise
