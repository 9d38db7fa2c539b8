"""Text from models and users made safe to show: nothing a terminal, an editor or a browser acts on."""

from __future__ import annotations

import unicodedata

LONGEST = 2000  # characters of one string that are shown where nothing else is said
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # part of the spelling of some scripts and of emoji
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}
_ASCII = str.maketrans(
    {
        "→": "->",
        "×": "x",
        "–": "-",
        "—": "-",
        "−": "-",
        "…": "...",
        "≥": ">=",
        "≤": "<=",
        "±": "+/-",
        "Δ": "delta ",
        "‖": "||",
        "·": ".",
        "█": "#",
        "─": "-",
        "★": "*",
        "’": "'",
    }
)


def visible(text: str, *, keep: str = "") -> str:
    """`text` with control, format and surrogate characters spelled as escapes, except those in `keep`."""
    if text.isprintable():
        return text
    odd = (char for char in set(text) if char not in keep and char not in _JOINERS)
    table = {ord(char): _spelled(char) for char in odd if unicodedata.category(char) in _ESCAPED}
    return text.translate(table) if table else text


def _spelled(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clipped(text: str, limit: int) -> str:
    """`text` if it has at most `limit` characters, else its beginning and a note that says how much is missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters not shown)"


def line(text: str, limit: int = LONGEST) -> str:
    """`text` on one line without control characters, cut visibly at `limit` characters."""
    return visible(clipped(text, limit))


def ascii_only(text: str) -> str:
    """`text` in ASCII: our own symbols by their usual spelling, all else as escapes."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()
