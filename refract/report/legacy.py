"""Reports of refract-llm 0.1 to 0.3: read far enough to be listed, as another methodology that is never ranked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from refract.errors import ReportError

SCHEMA = re.compile(r"refract\.report\.v0\.\d+(\.\d+)*")
LISTED = (
    "Their scores rest on other definitions and prompts: they are listed and never ranked. Score the same candidates"
    " again to compare them."
)
_AXES = {"gtm": "trajectory", "trajectory": "trajectory", "kld": "kld", "rniah": "rniah", "plad": "plad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyReport:
    """What such a report says; `composite` and `axes` are its own numbers, None where it has none.

    `model` is a file's name without its folders, so that no home folder is carried on.
    """

    name: str
    version: str
    model: str
    engine: str
    reference: str
    candidate: str
    composite: float | None
    band: str
    axes: Mapping[str, float | None] = field(default_factory=dict)


def read_legacy(text: str, *, name: str) -> LegacyReport | None:
    """The report in `text` if it is one of refract-llm's, None if it is anything else.

    Raises: ReportError for one that lacks its model or candidate.
    """
    if not SCHEMA.search(text):
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    schema = parsed.get("schema") if isinstance(parsed, dict) else None
    if not isinstance(schema, str) or not SCHEMA.fullmatch(schema):
        return None
    model, candidate = parsed.get("model"), parsed.get("candidate")
    if not isinstance(model, str) or not isinstance(candidate, str):
        raise ReportError(f"{name}: a report of {schema} without its model or its candidate", hint="leave it out")
    environment = parsed.get("environment")
    return LegacyReport(
        name=name,
        version=schema.removeprefix("refract.report."),
        model=re.split(r"[/\\]", model)[-1],
        engine=_text(environment.get("backend") if isinstance(environment, dict) else None),
        reference=_text(parsed.get("reference")),
        candidate=candidate,
        composite=_number(parsed.get("composite")),
        band=_text(parsed.get("band")),
        axes=_scores(parsed.get("axes")),
    )


def _scores(axes: object) -> dict[str, float | None]:
    """Each axis' own score, under the name the axis has today."""
    if not isinstance(axes, dict):
        return {}
    return {
        _AXES[name]: _number(block.get("score"))
        for name, block in axes.items()
        if name in _AXES and isinstance(block, dict)
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """A finite score of 0 to 100; such reports also hold NaN and null."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0.0 <= value <= 100.0 else None
