"""SIGINT and SIGTERM during a long command."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from es_sbert.ingest.control import Control


@contextmanager
def interruptible(control: Control, say: Callable[[str], None]) -> Iterator[None]:
    """Let the signals finish what is in flight; whoever sends one twice does not want to wait."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        control.interrupt()
        say("Finishing what is in flight; once more to give it up.")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
