"""The report of a run: its result, what makes it comparable, and where it comes from."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import refract
from refract.results import (
    AxisResult,
    CandidateResult,
    Configuration,
    Json,
    Methodology,
    Provenance,
    Report,
)
from refract.run.machine import machine, packages
from refract.run.runner import RunResult
from refract.run.scrub import Who, scrub, scrub_json
from refract.run.spec import RunSpec
from refract.work import EffectiveKV

METHODOLOGY_SCHEMA = "refract.methodology/1"
_ID_DIGITS = 16
_SHA_DIGITS = 12


def build_report(result: RunResult, spec: RunSpec, command: str | Sequence[str]) -> Report:
    """The report of a run, made now; it names no user, no host, no home folder and no credential."""
    who = Who.here()
    text = command if isinstance(command, str) else shlex.join(command)
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        methodology=methodology(result, spec),
        model=replace(result.model, details=cast(Mapping[str, Json], scrub_json(dict(result.model.details), who))),
        reference=Configuration(kv=result.reference.kv, effective=_effective(result.reference.effective, who)),
        candidates=tuple(_candidate(candidate, who) for candidate in result.candidates),
        floor=None if result.floor is None else _candidate(result.floor, who),
        control=None if result.control is None else _candidate(result.control, who),
        findings=_texts(result.findings, who),
        provenance=Provenance(
            command=scrub(text, who),
            refract=refract.__version__,
            machine=cast(Mapping[str, Json], scrub_json(machine(), who)),
            packages=packages(),
            loads=result.loads,
            answers=dict(result.answers),
            seconds={phase: round(seconds, 3) for phase, seconds in result.seconds.items()},
        ),
    )


def methodology(result: RunResult, spec: RunSpec) -> Methodology:
    """What makes two scores comparable. Equal ids: same axes and knobs, texts, protocols and estimators."""
    axes: dict[str, Json] = {
        name: {"parameters": dict(parameters), **_how(name, result)}
        for name, parameters in sorted(result.parameters.items())
    }
    content: dict[str, Json] = {
        "schema": METHODOLOGY_SCHEMA,
        "axes": axes,
        "prompts": spec.prompts.sha256,
        "corpus": spec.corpus.sha256,
        "n_predict": spec.n_predict,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Methodology(
        id=hashlib.sha256(canonical.encode()).hexdigest()[:_ID_DIGITS],
        prompts=f"{spec.prompts.name}@{spec.prompts.sha256[:_SHA_DIGITS]}",
        corpus=f"{spec.corpus.name}@{spec.corpus.sha256[:_SHA_DIGITS]}",
        n_predict=spec.n_predict,
        parameters=axes,
    )


def _how(axis: str, result: RunResult) -> dict[str, Json]:
    """The protocols and estimators by which the axis was measured."""
    both = [*result.candidates, *([] if result.floor is None else [result.floor])]
    found = [own for candidate in both for own in candidate.axes if own.axis == axis]
    return {
        "protocol": "/".join(sorted({own.protocol for own in found if own.protocol})) or None,
        "estimator": "/".join(sorted({own.estimator for own in found if own.estimator})) or None,
    }


def _candidate(result: CandidateResult, who: Who) -> CandidateResult:
    return replace(
        result,
        effective=_effective(result.effective, who),
        axes=tuple(_axis(axis, who) for axis in result.axes),
        findings=_texts(result.findings, who),
    )


def _axis(result: AxisResult, who: Who) -> AxisResult:
    """The axis with its messages scrubbed; what the model wrote, in the samples, is left as it is."""
    return replace(
        result,
        reason=None if result.reason is None else scrub(result.reason, who),
        warnings=_texts(result.warnings, who),
        findings=_texts(result.findings, who),
    )


def _effective(effective: EffectiveKV, who: Who) -> EffectiveKV:
    return replace(effective, notes=_texts(effective.notes, who))


def _texts(texts: Sequence[str], who: Who) -> tuple[str, ...]:
    return tuple(scrub(text, who) for text in texts)
