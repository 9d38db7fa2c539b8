"""Strict decoders from parsed JSON to the values of `refract.results`, and the order in which their fields are written.

A decoder takes a value and the JSON path it was found at, and returns it with its type made sure of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from refract.errors import ReportError
from refract.results import (
    SCHEMA,
    AxisResult,
    Band,
    CandidateResult,
    Composite,
    Configuration,
    Estimate,
    Json,
    Link,
    Methodology,
    ModelInfo,
    Provenance,
    Report,
    Sample,
    SelfNoise,
    Status,
    Unit,
)
from refract.work import EffectiveKV

T = TypeVar("T")
Decoder = Callable[[object, str], Any]


def wrong(at: str, expected: str, found: object) -> ReportError:
    """The error for a value that is not what its place in the file asks for."""
    shown = repr(found) if isinstance(found, str | int | float | None) else f"a {type(found).__name__}"
    return ReportError(
        f"{at}: expected {expected}, found {shown if len(shown) <= 60 else shown[:57] + '...'}",
        hint="the file is damaged or was edited; run refract score again to write a new one",
    )


def text(value: object, at: str) -> str:
    """`value`, which is a string. Raises: ReportError, as all decoders do."""
    if not isinstance(value, str):
        raise wrong(at, "a string", value)
    return value


def integer(value: object, at: str) -> int:
    """`value`, which is an integer and not a boolean."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(at, "an integer", value)
    return value


def number(value: object, at: str) -> float:
    """`value` as a finite float."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not _finite(value):
        raise wrong(at, "a finite number", value)
    return float(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def boolean(value: object, at: str) -> bool:
    """`value`, which is true or false."""
    if not isinstance(value, bool):
        raise wrong(at, "true or false", value)
    return value


def anything(value: object, at: str) -> Json:
    """`value`, any JSON whose numbers are finite."""
    if isinstance(value, float):
        return number(value, at)
    if isinstance(value, list):
        return value if _is_flat(value) else [anything(item, f"{at}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: anything(item, f"{at}.{key}") for key, item in value.items()}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise wrong(at, "a JSON value", value)


def _is_flat(items: list[Any]) -> bool:
    """Whether all items are finite numbers of one type or strings: the long lists of a report, checked at once."""
    kinds = set(map(type, items))
    return kinds <= {int, str} or (kinds == {float} and all(map(math.isfinite, items)))


def one_of(*choices: str) -> Decoder:
    """A decoder of one of a few strings."""

    def decode(value: object, at: str) -> str:
        if value not in choices:
            raise wrong(at, f"one of {', '.join(choices)}", value)
        return text(value, at)

    return decode


def optional(inner: Decoder) -> Decoder:
    """A decoder of null or what `inner` decodes."""
    return lambda value, at: None if value is None else inner(value, at)


def listed(inner: Decoder) -> Decoder:
    """A decoder of an array, as a tuple."""

    def decode(value: object, at: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong(at, "an array", value)
        return tuple(inner(item, f"{at}[{i}]") for i, item in enumerate(value))

    return decode


def mapped(inner: Decoder) -> Decoder:
    """A decoder of an object with any keys, as a dict."""

    def decode(value: object, at: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(at, "an object", value)
        return {key: inner(item, f"{at}.{key}") for key, item in value.items()}

    return decode


def record(kind: type[T]) -> Decoder:
    """A decoder of an object that has exactly the fields of `kind`."""
    return lambda value, at: decode_record(kind, value, at)


def decode_record(kind: type[T], value: object, at: str) -> T:
    """The `kind` that `value` describes.

    Raises: ReportError, with the JSON path, for a missing, unknown or mistyped field or a value `kind` refuses.
    """
    if not isinstance(value, dict):
        raise wrong(at, "an object", value)
    fields = FIELDS[kind]
    missing = [name for name in fields if name not in value]
    unknown = sorted(str(name) for name in value if name not in fields)
    if missing:
        raise ReportError(f"{at}.{missing[0]} is missing", hint="the file is damaged or was edited")
    if unknown:
        raise ReportError(f"{at}.{unknown[0]} is not a field of {SCHEMA}", hint="the file was edited or is newer")
    decoded = {name: decode(value[name], f"{at}.{name}") for name, decode in fields.items()}
    try:
        return kind(**decoded)
    except ValueError as error:
        raise ReportError(f"{at}: {error}", hint="the file was edited") from error


def statistic(value: object, at: str) -> Estimate | float | int | None:
    """An estimate, a bare number or null."""
    if isinstance(value, dict):
        return decode_record(Estimate, value, at)
    if value is None:
        return None
    return integer(value, at) if isinstance(value, int) else number(value, at)


# The order of the names is the order of the keys in the file.
FIELDS: Mapping[type, Mapping[str, Decoder]] = {
    Estimate: {
        "value": number,
        "low": number,
        "high": number,
        "level": number,
        "n": integer,
        "clusters": integer,
        "method": text,
    },
    Sample: {
        "id": text,
        "cluster": text,
        "category": text,
        "numerator": number,
        "denominator": number,
        "detail": mapped(anything),
    },
    AxisResult: {
        "axis": text,
        "status": one_of(*get_args(Status)),
        "score": optional(record(Estimate)),
        "reason": optional(text),
        "link": one_of(*get_args(Link)),
        "unit": one_of(*get_args(Unit)),
        "statistics": mapped(statistic),
        "protocol": optional(text),
        "estimator": optional(text),
        "series": mapped(anything),
        "samples": listed(record(Sample)),
        "warnings": listed(text),
        "findings": listed(text),
    },
    Composite: {
        "score": optional(record(Estimate)),
        "reason": optional(text),
        "band": optional(one_of(*get_args(Band))),
        "band_certain": boolean,
        "band_probability": mapped(number),
        "axes": listed(text),
    },
    EffectiveKV: {
        "k": text,
        "v": text,
        "layers": integer,
        "layers_compressed": integer,
        "bytes_per_token": number,
        "notes": listed(text),
    },
    Configuration: {"kv": text, "effective": record(EffectiveKV)},
    CandidateResult: {
        "kv": text,
        "effective": record(EffectiveKV),
        "composite": record(Composite),
        "axes": listed(record(AxisResult)),
        "findings": listed(text),
        "control": optional(record(SelfNoise)),
    },
    SelfNoise: {
        "change": text,
        "mean_kl_nats": statistic,
        "top1_agreement": statistic,
        "positions": integer,
    },
    Methodology: {
        "id": text,
        "prompts": text,
        "corpus": text,
        "n_predict": integer,
        "parameters": mapped(anything),
    },
    ModelInfo: {"name": text, "fingerprint": text, "engine": text, "details": mapped(anything)},
    Provenance: {
        "command": text,
        "refract": text,
        "machine": mapped(anything),
        "packages": mapped(text),
        "loads": integer,
        "answers": mapped(integer),
        "seconds": mapped(number),
    },
    Report: {
        "schema": text,
        "created": text,
        "methodology": record(Methodology),
        "model": record(ModelInfo),
        "reference": record(Configuration),
        "candidates": listed(record(CandidateResult)),
        "findings": listed(text),
        "floor": optional(record(CandidateResult)),
        "control": optional(record(CandidateResult)),
        "provenance": record(Provenance),
    },
}
