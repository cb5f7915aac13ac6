"""How many requests may be under way at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from es_sbert.errors import Overloaded


class Concurrency:
    """Counts what is under way in one event loop.

    Args:
        most: Beyond so many, callers are told to come back.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around one request.

        Raises:
            Overloaded: too many are under way.
        """
        if self._under_way >= self._most:
            raise Overloaded(
                f"{self._most} requests are under way, and no more are taken", "Send the request again in a moment."
            )
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
