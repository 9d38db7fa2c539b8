"""How a run's events are shown on stderr: one bar on a terminal, plain lines elsewhere, JSON lines on request."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from refract.cli.output import say
from refract.report.plain import visible
from refract.run.progress import (
    Answered,
    Event,
    PhaseEnded,
    PhaseStarted,
    Progress,
    RunEnded,
    RunStarted,
    SessionLoaded,
    Warned,
    silent,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

Mode = Literal["auto", "bar", "plain", "json", "none"]
SCHEMA = "refract.progress/1"
PLAIN_INTERVAL_S = 15.0
_TITLE_CELLS, _BAR_CELLS = 42, 16  # with the share and the time left beside them they fit in 80 columns
_SMOOTH_S = 3.0  # before this the rate of a phase is not yet worth an estimate


@contextlib.contextmanager
def listener(mode: Mode) -> Iterator[Progress]:
    """Whoever shows the events in this mode, for as long as the run lasts."""
    if mode == "auto":
        mode = "bar" if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else "plain"
    if mode == "bar":
        with _bars() as bars:
            yield BarProgress(bars)
    elif mode == "plain":
        yield PlainProgress()
    else:
        yield json_lines if mode == "json" else silent


def json_lines(event: Event) -> None:
    """Writes the event as one line of JSON: `event` names it, the other members are its fields."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(event).__name__).lower()
    head = {"schema": SCHEMA} if isinstance(event, RunStarted) else {}
    say(json.dumps({**head, "event": name, **asdict(event)}), prefix="")


@dataclass(slots=True)
class Phase:
    """The phase under way: its number among all, and how much of its cost is done since when."""

    names: tuple[str, ...] = ()
    number: int = 0
    name: str = ""
    cost: float = 0.0
    done: float = 0.0
    since: float = 0.0

    def begin(self, event: PhaseStarted, now: float) -> None:
        """Starts counting; time passes from here until a model is loaded, which sets it back."""
        self.number = self.names.index(event.phase) + 1 if event.phase in self.names else self.number + 1
        self.name, self.cost, self.done, self.since = event.phase, event.cost, 0.0, now

    @property
    def title(self) -> str:
        """The phase and its place, such as "reference (1 of 2)"."""
        return f"{self.name} ({self.number} of {max(self.number, len(self.names))})"

    @property
    def share(self) -> float:
        """How much is done, 0 to 1."""
        return min(1.0, self.done / self.cost) if self.cost else 1.0

    def left(self, now: float) -> str:
        """The phase's remaining time at the rate measured so far; empty until that means something."""
        passed = now - self.since
        if not self.done or passed < _SMOOTH_S:
            return ""
        return f"{duration(passed * (self.cost - self.done) / self.done)} left"


class PlainProgress:
    """A line when a phase starts and ends, and one every 15 seconds between."""

    def __init__(self, write: Callable[[str], None] = say, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._phase = Phase()
        self._last = 0.0

    def __call__(self, event: Event, /) -> None:
        now = self._clock()
        match event:
            case RunStarted():
                self._phase.names = event.phases
            case PhaseStarted():
                self._phase.begin(event, now)
                self._last = now
                self._write(f"{self._phase.title}: {event.requests} requests, {event.stored} already answered")
            case SessionLoaded():
                self._phase.since = now
                self._write(f"{self._phase.title}: model loaded in {duration(event.seconds)}")
            case Answered():
                self._answered(event, now)
            case PhaseEnded():
                self._write(f"{self._phase.title}: done in {duration(event.seconds)}")
            case Warned():
                self._write(event.message)
            case RunEnded():
                self._write(ended(event))

    def _answered(self, event: Answered, now: float) -> None:
        self._phase.done += event.cost
        if now - self._last >= PLAIN_INTERVAL_S:
            self._last = now
            left = self._phase.left(now)
            self._write(f"{self._phase.title}: {self._phase.share:.0%}{', ' if left else ''}{left}")


class BarProgress:
    """One bar, for the phase under way; warnings appear above it."""

    def __init__(self, bars: Bars, clock: Callable[[], float] = time.monotonic) -> None:
        self._bars, self._clock = bars, clock
        self._phase = Phase()
        self._task: TaskID = bars.add_task("planning", total=None, left="")

    def __call__(self, event: Event, /) -> None:
        now = self._clock()
        match event:
            case RunStarted():
                self._phase.names = event.phases
            case PhaseStarted():
                self._phase.begin(event, now)
                left = "loading the model" if event.stored < event.requests else ""
                self._bars.reset(self._task, description=self._phase.title, total=1.0, left=left)
            case SessionLoaded():
                self._phase.since = now
            case Answered():
                self._phase.done += event.cost
            case Warned():
                self._bars.console.print(f"refract: {visible(event.message)}", markup=False, highlight=False)
            case PhaseEnded() | RunEnded():
                pass
        if isinstance(event, Answered | SessionLoaded | PhaseEnded):
            self._bars.update(self._task, completed=self._phase.share, left=self._phase.left(now))


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    whole, cut = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", max_width=_TITLE_CELLS)
    columns = (TextColumn("{task.description}", markup=False, table_column=cut), BarColumn(_BAR_CELLS))
    left = TextColumn("{task.fields[left]}", markup=False, table_column=whole)
    return Bars(
        *columns, TaskProgressColumn(), left, console=Console(stderr=True), transient=True, refresh_per_second=4
    )


def ended(event: RunEnded) -> str:
    """What the run cost, in a line."""
    loads = f"{event.loads} model load{'' if event.loads == 1 else 's'}"
    return f"{event.computed} answers computed, {event.stored} read back, {loads}, {duration(event.seconds)}"


def duration(seconds: float) -> str:
    """A time to read: 0.4 s, 12 s, 3:05 min, 2:10 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
