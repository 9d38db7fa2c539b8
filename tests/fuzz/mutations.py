"""Damage: texts with pieces cut, doubled and overwritten, and JSON values with parts replaced by anything."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SOME = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(SOME, max_examples=40)

numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0])
odd_text = st.text(max_size=8) | st.sampled_from(
    ["", "\0", "\ud800", "\x1b[0m", "</script>", "nan", "inf", "-1", "9" * 400]
)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | odd_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_text, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, whole: str, pieces: tuple[str, ...] = ()) -> str:
    """`whole` after one to four edits: a piece cut out, doubled, moved or overwritten."""
    text = whole
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 40))
        new = draw(st.sampled_from(["", text[start : start + length] * 2, *pieces]) | odd_text)
        text = text[:start] + new + text[start + length :]
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` after one to four edits of its bytes."""
    data = whole
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        data = data[:start] + draw(st.binary(max_size=9)) + data[start + draw(st.integers(0, 9)) :]
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


@st.composite
def damaged_json(draw: st.DrawFn, whole: Any) -> Any:
    """`whole`, a JSON value, with one to three of its parts replaced, dropped, doubled or renamed."""
    value = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["replace", "drop", "double", "rename"]))
        if how == "drop":
            del holder[key]
        elif how == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif how == "rename" and isinstance(holder, dict):
            holder[draw(odd_text)] = holder.pop(key)
        else:
            holder[key] = draw(json_values)
        if not list(_places(value)):
            break
    return value


def _places(value: Any) -> Any:
    """Every (container, key) within the value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)
