"""The parts of a message that are code or data, where a changed character changes what is asked."""

from __future__ import annotations

import json
import re

Span = tuple[int, int]
"""First character, and the one after the last."""

_FENCE = re.compile(r"^[ \t]*(```+|~~~+).*?(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_INDENTED = re.compile(r"^(?: {4}|\t).*$", re.MULTILINE)
_ADDRESS = re.compile(r"\w+://\S+|\S+@\S+\.\w+")
_TAG = re.compile(r"<[/!?]?\w[^<>\n]*>")
_CALL = re.compile(r"[\w.]+\([^()\n]*\)")
_QUOTED = re.compile(r'"[^"\n]*"|“[^”]*”|«[^»]*»|„[^“”]*[“”]|「[^」]*」')
_OPENING = re.compile(r"[{\[]")
_JSON_LIKE = re.compile(r'[{\[]\s*(?:"|[{\[]|[-\d]|true\b|false\b|null\b|[}\]])')


def protected_spans(text: str) -> tuple[Span, ...]:
    """Spans of code (fenced, indented, inline, calls), of JSON also when cut off, of quotations, tags and addresses."""
    patterns = (_FENCE, _INLINE, _INDENTED, _ADDRESS, _TAG, _CALL, _QUOTED)
    found = [m.span() for pattern in patterns for m in pattern.finditer(text)]
    return tuple(sorted([*found, *_json_spans(text)]))


def _json_spans(text: str) -> list[Span]:
    spans: list[Span] = []
    at = 0
    while opening := _OPENING.search(text, at):
        end = _json_end(text, opening.start())
        if end is not None:
            spans.append((opening.start(), end))
        at = end or opening.end()
    return spans


def _json_end(text: str, start: int) -> int | None:
    """Where the JSON that begins at `start` ends; of what only looks like it, its closing bracket or the text's end."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return _balanced_end(text, start) if _JSON_LIKE.match(text, start) else None


def _balanced_end(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in "{[") - (text[at] in "}]")
        if depth == 0:
            return at + 1
    return len(text)
