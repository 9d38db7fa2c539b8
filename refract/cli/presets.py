"""How much a run measures: the one place that decides the sizes of --quick, of a plain run and of --full."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A tier of the prompt set and a number of corpus windows."""

    tier: str
    chunks: int


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "quick": Preset(tier="quick", chunks=8),
        "default": Preset(tier="default", chunks=32),
        "full": Preset(tier="full", chunks=32),
    }
)
N_PREDICT = 128
CTX = 512
RNIAH_UP_TO = 4096
EXPLAIN_CHUNKS = 8  # up to so many windows, running keys and values alone is cheap enough to do unasked
AXES = "trajectory,kld"
REFERENCE = "ctk=f16,ctv=f16"
