"""The report's charts, drawn from values and series; each is empty where its data are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from refract.report.svg import HEIGHT, WIDTH, Points, drawing, element, frame, label, path, title, xy
from refract.report.words import interval, significant
from refract.results import AxisResult, Estimate, Json

FLOORS = (60, 80, 90)
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
WIDE = 720
_TAIL_LEAST = 1e-9


def numbers(value: Json) -> list[float]:
    """The list of numbers that `value` is, empty for anything else."""
    if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int | float) for v in value):
        return []
    return [float(v) for v in value if isinstance(v, int | float)]


def columns(series: Json, *names: str) -> list[list[float]] | None:
    """The named columns of a table of equally long lists, None unless all are there."""
    if not isinstance(series, Mapping):
        return None
    found = [numbers(series.get(name)) for name in names]
    return found if found[0] and len({len(column) for column in found}) == 1 else None


def score_scale() -> Markup:
    """The scale above the axes' intervals: 0, the floors of the bands, 100."""
    marks = [label(str(v), 10.0 + 3.0 * v, 12.0) for v in (0, *FLOORS, 100)]
    return drawing(320, 16, "scale from 0 to 100; bands begin at 60, 80 and 90", marks, class_="scale")


def score_bar(axis: AxisResult, floor: Estimate | None) -> Markup:
    """The axis' interval as a thick line, its score as a dot, and the floor as a hollow diamond."""
    parts = [element("line", x1=10 + 3 * v, x2=10 + 3 * v, y1=2, y2=26, class_="grid") for v in (0, *FLOORS, 100)]
    words = f"{axis.axis}: no score"
    if axis.score is not None:
        low, at, high = (10.0 + 3.0 * v for v in (axis.score.low, axis.score.value, axis.score.high))
        parts.append(element("line", x1=low, x2=high, y1=14, y2=14, class_="interval"))
        parts.append(element("circle", cx=at, cy=14, r=5, class_="dot"))
        words = f"{axis.axis}: {axis.score.value:.1f}, 95 % interval {interval(axis.score)}"
    if floor is not None:
        x = 10.0 + 3.0 * floor.value
        corners = f"M{xy(x)} 8L{xy(x + 6)} 14L{xy(x)} 20L{xy(x - 6)} 14Z"
        parts.append(element("path", d=corners, class_="floor-mark"))
        words += f"; floor {floor.value:.1f}"
    return drawing(320, 28, words, parts, class_="bar")


def survival_chart(axis: AxisResult, floor: AxisResult | None) -> Markup:
    """Share of prompts still together with the reference against the token, and the floor's as a dashed line."""
    curve = columns(axis.series.get("survival"), "time", "survival", "low", "high")
    series = axis.series.get("survival")
    if curve is None or not isinstance(series, Mapping):
        return Markup()
    tau = series.get("tau")
    end = float(tau) if isinstance(tau, int | float) and tau > 0 else max(1.0, curve[0][-1])
    box = frame((0.0, end), (0.0, 1.0), ("tokens generated", "prompts without a divergence"), (_count, _percent))
    time, alive, low, high = curve
    band = [*_steps(time, high, end), *reversed(_steps(time, low, end))]
    parts = [*box.parts(), path([(box.x(t), box.y(s)) for t, s in band], "band-area", close=True)]
    beside = columns(floor.series.get("survival"), "time", "survival") if floor else None
    if beside is not None:
        floor_time, floor_alive = beside
        parts.append(path([(box.x(t), box.y(s)) for t, s in _steps(floor_time, floor_alive, end)], "line floor-line"))
    parts.append(path([(box.x(t), box.y(s)) for t, s in _steps(time, alive, end)], "line"))
    return drawing(WIDTH, HEIGHT, f"survival: {alive[-1]:.0%} of prompts never diverge within {end:,.0f} tokens", parts)


def _steps(time: Sequence[float], value: Sequence[float], end: float) -> Points:
    """The corners of a curve that is 1 at 0 and steps down at each time."""
    corners, level = [(0.0, 1.0)], 1.0
    for t, v in zip(time, value, strict=True):
        corners += [(t, level), (t, v)]
        level = v
    return [*corners, (end, level)]


def tail_chart(axis: AxisResult, floor: AxisResult | None) -> Markup:
    """Share of positions whose KL exceeds a value, both on logarithmic scales."""
    curve = columns(axis.series.get("kl_tail"), "kl", "above")
    points = _positive(curve)
    if len(points) < 2:
        return Markup()
    beside = _positive(columns(floor.series.get("kl_tail"), "kl", "above")) if floor else []
    shares = [share for _, share in points]
    box = frame(
        (points[0][0], points[-1][0]),
        (min(shares), 1.0),
        ("KL at a position (nats)", "share of positions above it"),
        (_power, _percent_fine),
        log=(True, True),
    )
    inside = [(x, y) for x, y in beside if points[0][0] <= x <= points[-1][0] and y >= min(shares)]
    parts = [
        *box.parts(),
        path([(box.x(k), box.y(s)) for k, s in inside], "line floor-line"),
        path([(box.x(k), box.y(s)) for k, s in points], "line"),
    ]
    return drawing(WIDTH, HEIGHT, f"tail of the KL divergence, up to {significant(points[-1][0])} nats", parts)


def _positive(curve: list[list[float]] | None) -> list[tuple[float, float]]:
    pairs = zip(*curve, strict=True) if curve else ()
    return [(x, y) for x, y in pairs if x >= _TAIL_LEAST and y > 0.0]


def position_chart(axis: AxisResult) -> Markup:
    """Mean KL against how far into the reference's answer it was measured."""
    curve = columns(axis.series.get("trajectory_kl"), "from", "mean_kl_nats")
    if curve is None or len(curve[0]) < 2:
        return Markup()
    start, mean = curve
    names = ("tokens into the answer", "mean KL (nats)")
    box = frame((start[0], start[-1]), (0.0, max(*mean, 1e-12)), names, (_count, _plain))
    points = [(box.x(s), box.y(m)) for s, m in zip(start, mean, strict=True)]
    dots = [
        element("circle", title(f"from token {s:,.0f}: {significant(m)} nats"), cx=x, cy=y, r=3, class_="dot")
        for (x, y), s, m in zip(points, start, mean, strict=True)
    ]
    return drawing(WIDTH, HEIGHT, "mean KL along the reference's answers", [*box.parts(), path(points, "line"), *dots])


def depth_chart(axis: AxisResult, floor: AxisResult | None) -> Markup:
    """Mean KL with its intervals against how deep in the cache it was measured; the floor's as a dashed line."""
    rows = depths(axis)
    if len(rows) < 2:
        return Markup()
    beside = [(depth, mean) for depth, mean, _, _ in (depths(floor) if floor else ())]
    top = max(max(high for *_, high in rows), max((mean for _, mean in beside), default=0.0), 1e-12)
    names = ("tokens of context before it", "mean KL (nats)")
    box = frame((rows[0][0] * 0.9, rows[-1][0] * 1.1), (0.0, 1.05 * top), names, (_count, _plain), log=(True, False))
    inside = [(d, m) for d, m in beside if rows[0][0] <= d <= rows[-1][0]]
    parts = [*box.parts(), path([(box.x(d), box.y(m)) for d, m in inside], "line floor-line")]
    for depth, mean, low, high in rows:
        x, y = box.x(depth), box.y(mean)
        parts.append(element("line", x1=x, x2=x, y1=box.y(low), y2=box.y(high), class_="interval"))
        words = f"after {depth:,.0f} tokens: {significant(mean)} nats [{significant(low)}, {significant(high)}]"
        parts.append(element("circle", title(words), cx=x, cy=y, r=4, class_="dot"))
    parts.append(path([(box.x(depth), box.y(mean)) for depth, mean, _, _ in rows], "line"))
    return drawing(WIDTH, HEIGHT, "mean KL by depth of the cache", parts)


def depths(axis: AxisResult) -> list[tuple[float, float, float, float]]:
    """(depth, mean KL, low, high) in ascending depth, from the rows of the series that have all of it.

    A row without an interval stands with its value at both ends.
    """
    table = axis.series.get("depths")
    found = []
    for row in table if isinstance(table, list) else ():
        kl = row.get("mean_kl_nats") if isinstance(row, Mapping) else None
        if not isinstance(row, Mapping) or not isinstance(kl, Mapping):
            continue
        known = numbers([row.get("depth"), kl.get("value")])
        ends = numbers([kl.get("low"), kl.get("high")]) or known[1:] * 2
        if known and known[0] > 0.0:
            found.append((known[0], known[1], ends[0], ends[1]))
    return sorted(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A candidate in the chart of divergence against size."""

    name: str
    bytes_per_token: float
    kl: Estimate
    front: bool


def size_chart(spots: Sequence[Spot], reference_bytes: float) -> Markup:
    """Mean KL against bytes per token, with intervals; the Pareto front joined by a line."""
    usable = sorted((s for s in spots if s.bytes_per_token > 0 and s.kl.value > 0), key=lambda s: s.bytes_per_token)
    if len(usable) < 2:
        return Markup()
    widest = max(reference_bytes, usable[-1].bytes_per_token)
    lows = [max(s.kl.low, s.kl.value / 10.0) for s in usable]
    box = frame(
        (usable[0].bytes_per_token * 0.9, widest * 1.05),
        (min(lows) * 0.7, max(s.kl.high for s in usable) * 1.4),
        ("KV bytes per token", "mean KL (nats), lower is better"),
        (_count, _plain),
        log=(False, True),
        width=WIDE,
    )
    front = [(box.x(s.bytes_per_token), box.y(s.kl.value)) for s in usable if s.front]
    parts = [*box.parts(), path(front, "line floor-line")]
    places = [(box.x(s.bytes_per_token), box.y(s.kl.value)) for s in usable]
    taken = [(x - 8.0, x + 8.0, y) for x, y in places]
    for spot, (x, y) in zip(usable, places, strict=True):
        low, high = box.y(max(spot.kl.low, min(lows))), box.y(spot.kl.high)
        parts.append(element("line", x1=x, x2=x, y1=low, y2=high, class_="interval"))
        value = f"{significant(spot.kl.value)} nats {interval(spot.kl, 'nats')}"
        words = f"{spot.name}: {value}, {_count(spot.bytes_per_token)} bytes per token"
        parts.append(element("circle", title(words), cx=x, cy=y, r=6, class_="dot" if spot.front else "dot hollow"))
        parts.append(_name_tag(spot.name, x, y, taken))
    return drawing(WIDE, HEIGHT, "mean KL against KV bytes per token for every candidate", parts, class_="chart wide")


def _name_tag(name: str, x: float, y: float, taken: list[tuple[float, float, float]]) -> Markup:
    """A label beside the point, moved up or down until it lies on nothing; `taken` (left, right, y) grows by it."""
    shown = name if len(name) <= 30 else f"{name[:29]}…"
    size = 7.0 * len(shown)
    right = x + 12.0 + size < WIDE
    left = x + 12.0 if right else x - 12.0 - size
    tries = (y + offset for step in range(12) for offset in (-15.0 * step, 15.0 * step))
    at = next((t for t in tries if _free(left, left + size, t, taken) and 24.0 < t < 216.0), y)
    taken.append((left, left + size, at))
    side = "start" if right else "end"
    return label(shown, x + (12.0 if right else -12.0), at + 4.0, anchor=side, class_="name halo")


def _free(left: float, right: float, y: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    return all(right < start or left > end or abs(y - other) >= 14.0 for start, end, other in taken)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{100.0 * value:.0f} %"


def _percent_fine(value: float) -> str:
    return f"{100.0 * value:.3g} %"


def _plain(value: float) -> str:
    return f"{value:.6g}" if value == 0.0 or abs(value) >= 1e-4 else f"{value:.0e}"


def _power(value: float) -> str:
    if value >= 0.01:
        return _plain(value)
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return power if mantissa == "1" else f"{mantissa}·{power}"
