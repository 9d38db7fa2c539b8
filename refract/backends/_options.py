"""An engine's own options, which are all text: unknown names and impossible values are refused in one way."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from refract.errors import UsageError


def refuse_unknown(backend: str, options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raises: UsageError for an option that is not known, with the closest one that is."""
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "it has " + ", ".join(known)
            raise UsageError(f"the {backend} backend has no option {name!r}", hint=hint)


def refuse_no_number(name: str, value: str, *, most: int, default: str) -> None:
    """Raises: UsageError for a value that is no whole number from 1 to `most`."""
    if not (value.isdecimal() and 1 <= int(value) <= most):
        hint = f"leave it out for {default or 'what suits this machine'}"
        raise UsageError(f"{name} must be a number from 1 to {most}, found {value!r}", hint=hint)


def refuse_other_word(name: str, value: str, words: Sequence[str]) -> None:
    """Raises: UsageError for a value that is none of `words`."""
    if value not in words:
        raise UsageError(f"{name} is {value!r}, which is unknown", hint=f"use {', '.join(words[:-1])} or {words[-1]}")
