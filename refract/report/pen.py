"""What the text report is written with: safe strings, few colours, bars of characters."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from refract.report.plain import ascii_only, line
from refract.results import Composite, Estimate

BAND_STYLES = {"EXCELLENT": "bold green", "PASS": "bold green", "DEGRADED": "bold yellow", "FAIL": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """Turns strings into rich text that holds no control characters, and with `ascii` no other than ASCII ones."""

    ascii: bool
    width: int

    def plain(self, text: str) -> str:
        """`text`, safe to print."""
        safe = line(text)
        return ascii_only(safe) if self.ascii else safe

    def text(self, text: str, style: str = "") -> Text:
        """`text`, safe to print, in a style that only adds to what it says."""
        return Text(self.plain(text), style=style, overflow="fold")

    def flow(self, parts: tuple[str, ...], style: str = "") -> Text:
        """The parts two spaces apart, broken between parts where they do not fit in the width."""
        out, column = Text(overflow="fold"), 0
        for i, part in enumerate(parts):
            piece = self.text(part, style if i == 0 else "")
            if out and column + 2 + piece.cell_len > self.width:
                out, column = out.append("\n  "), 2
            elif out:
                out, column = out.append("  "), column + 2
            out, column = out.append_text(piece), column + piece.cell_len
        return out

    def bar(self, score: Estimate | None, cells: int) -> Text:
        """The interval as a line on a scale from 0 to 100 of `cells` characters, the value as a block on it."""
        if score is None:
            return self.text("·" * cells, "dim")
        low, at, high = (min(cells - 1, max(0, int(x / 100.0 * cells))) for x in (score.low, score.value, score.high))
        drawn = "".join("█" if i == at else "─" if low <= i <= high else "·" for i in range(cells))
        text = self.text(drawn)
        text.stylize("dim", 0, low)
        text.stylize("dim", high + 1)
        return text


def band_style(composite: Composite) -> str:
    """The colour of a verdict."""
    if composite.band is None:
        return "bold"
    return BAND_STYLES[composite.band] if composite.band_certain else "bold yellow"
