"""Small drawings as SVG text: every one has a title, and colours come from the page's classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from refract.report.plain import line

WIDTH, HEIGHT = 480, 260
Points = Sequence[tuple[float, float]]


def xy(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, body: str = "", **attributes: object) -> Markup:
    """An element; attribute names have _ for -, a trailing _ is dropped, values are escaped, floats shortened."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{xy(value) if isinstance(value, float) else escape(value)}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{written}>{body}</{name}>" if body else f"<{name}{written}/>")


def title(text: str) -> Markup:
    """A title element, which browsers show on hover and screen readers read."""
    return element("title", escape(line(text)))


def label(text: str, x: float, y: float, *, anchor: str = "middle", class_: str = "tick") -> Markup:
    """Text at a point."""
    return element("text", escape(line(text)), x=x, y=y, text_anchor=anchor, class_=class_)


def path(points: Points, class_: str, *, step: bool = False, close: bool = False) -> Markup:
    """A line through the points; with `step` it runs level up to each next x."""
    if not points:
        return Markup()
    commands = [f"M{xy(points[0][0])} {xy(points[0][1])}"]
    for x, y in points[1:]:
        commands.append(f"H{xy(x)}V{xy(y)}" if step else f"L{xy(x)} {xy(y)}")
    return element("path", d="".join(commands) + ("Z" if close else ""), class_=class_)


def drawing(width: int, height: int, name: str, body: Iterable[str], *, class_: str = "chart") -> Markup:
    """A whole drawing that scales with the page."""
    name = line(name)
    inner = title(name) + Markup("").join(Markup(part) for part in body)
    return element("svg", inner, viewBox=f"0 0 {width} {height}", role="img", class_=class_, aria_label=name)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to coordinates, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (self._measure(v) for v in (self.low, self.high, value))
        share = 0.5 if high <= low else (at - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _measure(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self) -> list[float]:
        """Round values within the scale: steps of 1, 2 or 5, and powers of ten on a long logarithmic scale."""
        if self.log:
            return _log_steps(self.low, self.high)
        return _round_steps(self.low, self.high)


def _log_steps(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    inside = [10.0**e for e in range(first, last + 1) if low * 0.999 <= 10.0**e <= high * 1.001]
    if len(inside) > 2:
        return inside[:: math.ceil(len(inside) / 6)]
    finer = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
    return [t for t in finer if low * 0.999 <= t <= high * 1.001] or [low, high]


def _round_steps(low: float, high: float) -> list[float]:
    span = high - low
    if span <= 0.0:
        return [low]
    unit: float = 10.0 ** math.floor(math.log10(span / 4.0))
    step = next(unit * m for m in (1, 2, 5, 10) if span / (unit * m) <= 6.0)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The axes of a chart."""

    x: Scale
    y: Scale
    x_name: str
    y_name: str
    x_words: Callable[[float], str]
    y_words: Callable[[float], str]

    def parts(self) -> list[Markup]:
        """Grid lines, tick labels and the names of both axes."""
        left, right, bottom = min(self.x.start, self.x.end), max(self.x.start, self.x.end), self.y.start
        out = []
        for value in self.y.ticks():
            at = self.y(value)
            out.append(element("line", x1=left, x2=right, y1=at, y2=at, class_="grid"))
            out.append(label(self.y_words(value), left - 8.0, at + 4.0, anchor="end"))
        for value in self.x.ticks():
            out.append(label(self.x_words(value), self.x(value), bottom + 18.0))
        out.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="base"))
        out.append(label(self.x_name, right, bottom + 36.0, anchor="end", class_="name"))
        out.append(label(self.y_name, left, self.y.end - 10.0, anchor="start", class_="name"))
        return out


def frame(
    x: tuple[float, float],
    y: tuple[float, float],
    names: tuple[str, str],
    words: tuple[Callable[[float], str], Callable[[float], str]],
    *,
    log: tuple[bool, bool] = (False, False),
    width: int = WIDTH,
) -> Frame:
    """A frame of the usual height over the ranges `x` and `y`."""
    return Frame(
        x=Scale(*x, 60.0, width - 14.0, log[0]),
        y=Scale(*y, 212.0, 30.0, log[1]),
        x_name=names[0],
        y_name=names[1],
        x_words=words[0],
        y_words=words[1],
    )
