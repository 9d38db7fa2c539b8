"""What a run is asked to do, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from refract.axes.base import Axis
from refract.data.corpus import Corpus
from refract.data.promptset import PromptSet
from refract.kv import KVConfig

ControlScope = Literal["none", "reference", "all"]
Explanation = Literal["none", "sides", "layers"]
FLOOR_MINIMUM = 99.5  # a reference that agrees less with itself makes every score meaningless


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One model under one reference and N candidate KV configurations, measured on some axes over the same work.

    `options` are the engine's own. An axis named in `required` is refused when the engine lacks what it needs; any
    other becomes not-run, with the reason. A measured floor below `floor_minimum` aborts the run. `control` says what
    is run once more under the engine's harmless change (None: the reference where the engine's kernels are noisy); with
    `explain` "sides" the keys and the values of every candidate below PASS are run alone, with "layers" its layers too,
    to say what carries the loss.
    """

    model: str
    reference: KVConfig
    candidates: tuple[KVConfig, ...]
    axes: tuple[Axis, ...]
    prompts: PromptSet
    corpus: Corpus
    n_predict: int = 128
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    measure_floor: bool = False
    control: ControlScope | None = None
    explain: Explanation = "none"
    floor_minimum: float = FLOOR_MINIMUM
    required: frozenset[str] = frozenset()
