"""A text that others measured too: the opening of the GNU General Public License, version 3."""

from __future__ import annotations

from pathlib import Path

from refract.engine import Tokenizer
from refract.work import Window

_FILE = Path(__file__).parent / "fixtures" / "gpl-3_opening.txt"
_TOKENS = 256


def gpl_opening(tokenizer: Tokenizer) -> Window:
    """Its first 256 tokens, of which all but the first are scored."""
    tokens = tokenizer.encode(_FILE.read_text("utf-8"))[:_TOKENS]
    assert len(tokens) == _TOKENS
    return Window(tokens=tokens, start=1)
