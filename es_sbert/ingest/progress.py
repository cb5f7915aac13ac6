"""How far a load is: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from es_sbert.events import record
from es_sbert.printable import printable

_LINE_SECONDS = 5.0


@dataclass(frozen=True)
class Snapshot:
    """A moment of a load.

    Attributes:
        read, done: Documents met in the source, and documents whose end is known.
        fraction: Part of the source that is done, 0 to 1; None where its size is not known (a pipe).
        seconds: Since the load began.
        waiting: Why requests are being tried again; None while they go through.
    """

    read: int
    done: int
    fraction: float | None
    seconds: float
    waiting: str | None = None

    @property
    def rate(self) -> float:
        """Documents a second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before there is one."""
        if not self.fraction:
            return None
        return self.seconds * (1 - self.fraction) / self.fraction


def fraction_done(read: int, done: int, part_read: float | None) -> float | None:
    """Part of the source that is done, from the part that was read.

    Reading runs ahead of the rest: what was read and is not done yet is taken off in proportion.
    """
    if part_read is None or not read:
        return None
    return min(1.0, part_read * done / read)


def clock(seconds: float | None) -> str:
    """`1:02:03`, `2:03`; `?` for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Meter(Protocol):
    """Shows snapshots; called several times a second from one thread."""

    def show(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


class Lines:
    """A line every few seconds, for logs."""

    def __init__(self, stream: TextIO, timer: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._timer = timer
        self._next = timer() + _LINE_SECONDS

    def show(self, snapshot: Snapshot) -> None:
        if self._timer() < self._next:
            return
        self._next = self._timer() + _LINE_SECONDS
        print(progress_line(snapshot), file=self._stream, flush=True)

    def close(self) -> None: ...


class Logged:
    """An event every few seconds, for machines."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._next = timer() + _LINE_SECONDS

    def show(self, snapshot: Snapshot) -> None:
        if self._timer() < self._next:
            return
        self._next = self._timer() + _LINE_SECONDS
        left = snapshot.seconds_left
        record(
            "progress", progress_line(snapshot), read=snapshot.read, done=snapshot.done, fraction=snapshot.fraction,
            seconds=round(snapshot.seconds, 3), documents_per_second=round(snapshot.rate, 1),
            seconds_left=None if left is None else round(left, 1), waiting=snapshot.waiting,
        )  # fmt: skip

    def close(self) -> None: ...


def progress_line(snapshot: Snapshot) -> str:
    """`12,000 documents · 410/s · 35 % · 1:12 left`, without the last two where the size of the source is not known."""
    parts = [f"{snapshot.done:,} documents", f"{snapshot.rate:,.0f}/s"]
    if snapshot.fraction is not None:
        parts += [f"{snapshot.fraction:.0%}", f"{clock(snapshot.seconds_left)} left"]
    if snapshot.waiting is not None:
        parts.append(f"waiting for the engine: {snapshot.waiting}")
    return printable(" · ".join(parts))


class Bar:
    """A bar with rate and time left."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = Progress(
            BarColumn(), TextColumn("{task.fields[line]}", markup=False), TimeElapsedColumn(),
            console=Console(file=stream), transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=None, line="")

    def show(self, snapshot: Snapshot) -> None:
        # Starting hides the cursor, so it waits until there is a load to show; twice does no harm.
        self._progress.start()
        total = None if snapshot.fraction is None else 1.0
        self._progress.update(self._task, total=total, completed=snapshot.fraction or 0.0, line=progress_line(snapshot))

    def close(self) -> None:
        self._progress.stop()


def meter_for(stream: TextIO, *, quiet: bool, events: bool = False) -> Meter:
    """The meter that suits a stream.

    Args:
        quiet: Show nothing.
        events: Whether machines read the stream.
    """
    if quiet:
        return Silent()
    if events:
        return Logged()
    return Bar(stream) if stream.isatty() else Lines(stream)
