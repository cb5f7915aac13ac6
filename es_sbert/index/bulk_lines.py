"""Lines of bulk requests as bytes: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

import orjson

from es_sbert.engines.protocol import Json


def json_bytes(value: Json) -> bytes:
    """JSON on one line; arrays of float32 are written with the fewest digits that give the same float32 again."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def with_members(source: bytes, added: Json) -> bytes:
    """An object with members put at its end; its own bytes stay as they are.

    Args:
        source: A JSON object without white space around it.
    """
    if not added:
        return source
    comma = b"" if source[1:-1].isspace() or len(source) == 2 else b","
    return b"".join((source[:-1], comma, json_bytes(added)[1:]))


class HasBody(Protocol):
    """Lines of a bulk request."""

    @property
    def body(self) -> bytes: ...


B = TypeVar("B", bound=HasBody)


def bodies(actions: Iterable[B], max_bytes: int) -> Iterator[list[B]]:
    """Actions in groups of at most `max_bytes`; a larger action goes alone."""
    group: list[B] = []
    size = 0
    for action in actions:
        if group and size + len(action.body) > max_bytes:
            yield group
            group, size = [], 0
        group.append(action)
        size += len(action.body)
    if group:
        yield group
