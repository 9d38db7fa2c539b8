"""Reports as JSON: written with one stable layout, read back strictly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NoReturn, cast

import numpy as np

from refract.errors import ReportError
from refract.report.decode import FIELDS, decode_record, number
from refract.results import SCHEMA, Json, Report

LINE = 120  # a value that fits into a line of this many characters is not broken over several
# Terminals and editors act on these when a file is shown; JSON can spell them. Lone surrogates have no UTF-8 form.
_RISKY = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def to_json(report: Report) -> str:
    """The report as UTF-8 JSON text with a trailing newline; the same report always gives the same text.

    Raises: ValueError, with the JSON path, for a number that is not finite; TypeError for what JSON cannot hold.
    """
    laid_out = _layout(_encode(report, "$"), 0)
    return _RISKY.sub(lambda match: f"\\u{ord(match[0]):04x}", laid_out) + "\n"


def _encode(value: object, at: str) -> Json:
    fields = FIELDS.get(type(value))
    if fields is not None:
        found = {name: getattr(value, name) for name in fields}
        floats = {name: float(found[name]) for name, decode in fields.items() if decode is number}
        return {name: _encode(item, f"{at}.{name}") for name, item in (found | floats).items()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{at}: {value} cannot be written, reports hold finite numbers only")
    if isinstance(value, Mapping):
        return {str(key): _encode(item, f"{at}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{at}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{at}: a {type(value).__name__} cannot be written as JSON")


def _layout(value: Json, depth: int) -> str:
    """`value` over as few lines as keep each within `LINE`; arrays of plain values are never broken."""
    if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
        return _joined([_layout(item, depth + 1) for item in value], "[]", depth)
    if isinstance(value, dict):
        rows = [f"{_layout(key, 0)}: {_layout(item, depth + 1)}" for key, item in value.items()]
        return _joined(rows, "{}", depth)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _joined(parts: list[str], brackets: str, depth: int) -> str:
    """The parts on one line if that is short enough, else one a line."""
    line = f"{brackets[0]}{', '.join(parts)}{brackets[1]}"
    if len(line) + depth <= LINE and "\n" not in line:
        return line
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    return f"{brackets[0]}{inner}{f',{inner}'.join(parts)}{outer}{brackets[1]}"


def from_json(text: str, *, source: str = "report") -> Report:
    """The report that `text` holds; `source` names it in errors.

    Raises: ReportError for text that is cut off or not JSON (with the position), for another schema (naming both), and
    for a field that is missing, unknown or mistyped (with its JSON path).
    """
    parsed = _parse(text, source)
    found = parsed.get("schema") if isinstance(parsed, dict) else None
    if found != SCHEMA:
        shown = "no schema" if found is None else f"schema {str(found)[:60]!r}"
        raise ReportError(
            f"{source}: expected a report of schema {SCHEMA!r}, found {shown}",
            hint="reports of other tools and versions are not read; refract score writes a new one",
        )
    try:
        return decode_record(Report, parsed, "$")
    except ReportError as error:
        raise ReportError(f"{source}: {error.message}", hint=error.hint) from error


def _parse(text: str, source: str) -> Json:
    try:
        parsed: Json = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        what = "is cut off" if cut else "is not JSON"
        raise ReportError(
            f"{source} {what}: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="the file was not written to its end or is not a report; render or score it again",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{source} is not a report: {error}", hint="refract score writes a new one") from error
    return parsed


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return found


@cache
def schema() -> Mapping[str, Json]:
    """The published JSON Schema (draft 2020-12) of reports."""
    text = files("refract.report").joinpath("schema.json").read_text(encoding="utf-8")
    return cast("dict[str, Json]", json.loads(text))
