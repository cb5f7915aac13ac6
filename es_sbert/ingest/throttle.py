"""Adaptive throttling of bulk requests: grow body size and concurrency step by step, halve both on overload."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from es_sbert.messages import log_event

SMALLEST_BODY = 64 << 10
_BODY_STEP = 256 << 10


class Throttle:
    """Body size and number of requests under way: additive increase, multiplicative decrease. Thread-safe.

    Chiu and Jain 1989 showed that this, alone among linear rules, brings clients that share a server to equal shares
    without any word between them; two loads into one cluster are such clients.

    Args:
        largest_body: Bytes of a bulk request's body, at first and at most.
        most_requests: Bulk requests under way at a time, at most.
        first_requests: At first.
    """

    def __init__(self, largest_body: int, most_requests: int, first_requests: int = 2) -> None:
        self._changed = threading.Condition()
        self._smallest = min(SMALLEST_BODY, largest_body)
        self._largest = largest_body
        self._body = largest_body
        self._most = most_requests
        self._allowed = min(first_requests, most_requests)
        self._running = 0
        self._taken = 0
        self._halved = False

    @property
    def body_bytes(self) -> int:
        """Largest body that is worth sending now."""
        with self._changed:
            return self._body

    @property
    def requests(self) -> int:
        """Requests that may be under way now."""
        with self._changed:
            return self._allowed

    @contextmanager
    def request(self) -> Iterator[None]:
        """Wait for a turn, and hold it."""
        with self._changed:
            while self._running >= self._allowed:
                self._changed.wait()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def succeeded(self) -> None:
        """A body was taken whole: a little more next time, and one request more after a round of them."""
        with self._changed:
            self._body = min(self._largest, self._body + _BODY_STEP)
            self._taken += 1
            if self._taken >= self._allowed:
                self._taken = 0
                self._allowed = min(self._most, self._allowed + 1)
                self._changed.notify()
            recovered = self._halved and (self._body, self._allowed) == (self._largest, self._most)
            self._halved &= not recovered
        if recovered:
            self._record("all is sent as before")

    def overloaded(self) -> None:
        """The engine has more than it can do: half of everything."""
        with self._changed:
            before = (self._body, self._allowed)
            self._body = max(self._smallest, self._body // 2)
            self._allowed = max(1, self._allowed // 2)
            self._taken = 0
            self._halved = True
            changed = before != (self._body, self._allowed)
        if changed:
            self._record("the engine is overloaded: half as much is sent")

    def too_large(self, size: int) -> None:
        """A body of this size is over the server's limit: no later one will be larger than half of it."""
        with self._changed:
            self._largest = max(1, min(self._largest, size // 2))
            self._smallest = min(self._smallest, self._largest)
            self._body = min(self._body, self._largest)
        self._record(f"a body of {size:,} bytes is over the server's limit")

    def _record(self, message: str) -> None:
        log_event("throttle_changed", message, body_bytes=self.body_bytes, requests=self.requests)
