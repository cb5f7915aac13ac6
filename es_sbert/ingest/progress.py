"""The progress of a load: snapshots, and the meters that show them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TextIO, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from es_sbert.messages import escape_unprintable, log_event, pluralize

_LINE_SECONDS = 5.0
# Seconds over which the speed is measured to estimate the time left. Over a shorter span the estimate jumps; over a
# longer one it is far too low for a resumed load, whose first documents need no embedding.
_SPEED_SECONDS = 30.0
# An earlier estimate would be based on a few batches.
_FIRST_ESTIMATE_SECONDS = 2.0


@dataclass(frozen=True)
class ProgressSnapshot:
    """A moment of a load.

    Usage:
        ```python
        load_files("docs", "docs.jsonl.gz", "http://localhost:9200", progress=lambda now: print(now.read, now.waiting))
        ```

    Attributes:
        read: Documents read from the source.
        processed: Documents that are embedded, or that needed no vector.
        fraction: Part of the source that is processed, 0 to 1; None if its size is unknown (a pipe).
        seconds: Seconds since the load began.
        seconds_left: Estimated seconds left; None before there is an estimate.
        waiting: Reason why requests are being retried; None while they succeed.
        watching: Whether everything is processed and the load waits for changes of the index.
        outcomes: Outcome → number of documents; None where documents have no outcome.
    """

    read: int
    processed: int
    fraction: float | None
    seconds: float
    seconds_left: float | None = None
    waiting: str | None = None
    watching: bool = False
    outcomes: dict[str, int] | None = None

    @property
    def rate(self) -> float:
        """Documents per second."""
        return self.processed / self.seconds if self.seconds > 0 else 0.0


def fraction_processed(read: int, processed: int, part_read: float | None) -> float | None:
    """Estimate the part of the source that is processed from the part that was read.

    Reading runs ahead of the rest: documents that were read and are not processed yet are subtracted in proportion.
    """
    if part_read is None or not read:
        return None
    return min(1.0, part_read * processed / read)


class ProgressTracker:
    """Turns counts into snapshots. The fraction never falls; the time left follows the recent speed.

    Args:
        timer: Seconds of a monotonic clock.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._begin = timer()
        self._samples: deque[tuple[float, float]] = deque()  # seconds, fraction
        self._fraction = 0.0

    def snapshot(
        self,
        read: int,
        processed: int,
        fraction: float | None,
        waiting: str | None = None,
        *,
        watching: bool = False,
        outcomes: dict[str, int] | None = None,
    ) -> ProgressSnapshot:
        """Take a snapshot now; see `ProgressSnapshot` for the arguments."""
        seconds = self._timer() - self._begin
        left = None
        if fraction is not None:
            fraction = self._fraction = max(self._fraction, fraction)
            left = self._seconds_left(seconds)
        return ProgressSnapshot(read, processed, fraction, seconds, left, waiting, watching, outcomes)

    def _seconds_left(self, seconds: float) -> float | None:
        if not self._fraction:
            return None
        self._samples.append((seconds, self._fraction))
        while len(self._samples) > 2 and seconds - self._samples[1][0] >= _SPEED_SECONDS:
            self._samples.popleft()
        first, reached = self._samples[0]
        if self._fraction == reached or (seconds - first < _FIRST_ESTIMATE_SECONDS and self._fraction < 1):
            return None
        return (seconds - first) * (1 - self._fraction) / (self._fraction - reached)


def format_duration(seconds: float | None) -> str:
    """`1:02:03`, `2:03`; `?` for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressMeter:
    """Gets snapshots, several times a second and from one thread. Subclasses show them."""

    def show(self, snapshot: ProgressSnapshot) -> None:
        """Show the progress."""

    def close(self) -> None:
        """Remove the progress from the screen."""


class CallbackMeter(ProgressMeter):
    """Passes snapshots to a function."""

    def __init__(self, show: Callable[[ProgressSnapshot], object]) -> None:
        self._show = show

    def show(self, snapshot: ProgressSnapshot) -> None:
        self._show(snapshot)


ProgressOutput: TypeAlias = Callable[[ProgressSnapshot], object] | ProgressMeter


def as_meter(progress: ProgressOutput | None) -> ProgressMeter:
    """Return a meter that shows snapshots by a function; None shows nothing."""
    if progress is None:
        return ProgressMeter()
    return progress if isinstance(progress, ProgressMeter) else CallbackMeter(progress)


@dataclass
class LineMeter(ProgressMeter):
    """Writes the progress every few seconds, for logs.

    Args:
        write: `log_progress`, or writes the snapshot to a stream.
        timer: Seconds of a monotonic clock.
    """

    write: Callable[[ProgressSnapshot], None]
    timer: Callable[[], float] = time.monotonic
    # Set by the first snapshot: the meter is made before the wait for the engine and the model.
    _next: float | None = None

    def show(self, snapshot: ProgressSnapshot) -> None:
        now = self.timer()
        if self._next is not None and now < self._next:
            return
        if self._next is not None:
            self.write(snapshot)
        self._next = now + _LINE_SECONDS


def log_progress(snapshot: ProgressSnapshot) -> None:
    """Log the progress as an event, for machines."""
    left = snapshot.seconds_left
    known = {name: value for name, value in asdict(snapshot).items() if name != "outcomes" or value is not None}
    facts = known | {
        "seconds": round(snapshot.seconds, 3),
        "seconds_left": None if left is None else round(left, 1),
        "documents_per_second": round(snapshot.rate, 1),
    }
    log_event("progress", progress_line(snapshot), **facts)


def progress_line(snapshot: ProgressSnapshot) -> str:
    """`12,000 documents · 410/s · 35% · 1:12 left`, without the last two if the size of the source is unknown."""
    parts = [pluralize(snapshot.processed, "document")]
    if snapshot.watching:
        parts.append("watching for changes (Ctrl-C ends)")
    else:
        parts.append(f"{snapshot.rate:,.0f}/s")
    if snapshot.fraction is not None:
        parts += [f"{snapshot.fraction:.0%}", f"{format_duration(snapshot.seconds_left)} left"]
    if snapshot.waiting is not None:
        parts.append(f"waiting for the engine: {snapshot.waiting}")
    return escape_unprintable(" · ".join(parts))


# The terminal echoes each Ctrl-C as "^C" at the end of the bar. If the bar filled the line, the echo would wrap to the
# next line, and rich would leave a stale copy of the bar above it.
_ECHO_COLUMNS = 8


class _SingleLineProgress(Progress):
    """A bar that leaves a few columns of the terminal free."""

    def get_renderables(self) -> Iterable[RenderableType]:
        return map(_Narrowed, super().get_renderables())


@dataclass(frozen=True)
class _Narrowed:
    renderable: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.renderable, options.update_width(max(1, options.max_width - _ECHO_COLUMNS)))


class BarMeter(ProgressMeter):
    """Shows a one-line bar with rate and time left."""

    def __init__(self, stream: TextIO) -> None:
        text = TextColumn("{task.fields[line]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        bar = BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=40))
        elapsed = TextColumn("{task.fields[elapsed]}", table_column=Column(no_wrap=True))
        self._progress = _SingleLineProgress(bar, text, elapsed, console=Console(file=stream), transient=True)
        self._task = self._progress.add_task("", total=None, line="", elapsed="")

    def show(self, snapshot: ProgressSnapshot) -> None:
        total = None if snapshot.fraction is None else 1.0
        line, elapsed = progress_line(snapshot), format_duration(snapshot.seconds)
        self._progress.update(self._task, total=total, completed=snapshot.fraction or 0.0, line=line, elapsed=elapsed)
        # Started only when there is something to show, because starting hides the cursor.
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()


def choose_meter(stream: TextIO, *, quiet: bool, events: bool = False) -> ProgressMeter:
    """Choose the meter for a stream.

    Args:
        quiet: Whether to show nothing.
        events: Whether the stream is read by machines.
    """
    if quiet:
        return ProgressMeter()
    if events:
        return LineMeter(log_progress)
    if stream.isatty():
        return BarMeter(stream)
    return LineMeter(lambda snapshot: print(progress_line(snapshot), file=stream, flush=True))
