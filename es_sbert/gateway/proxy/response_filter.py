"""Apply the parameter `filter_path` to a response that the gateway joins, as the engines apply it to theirs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any
from urllib.parse import parse_qs

from es_sbert.engines.rest import Json

# The segments of a path between dots, such as ("items", "*", "error").
_Path = tuple[str, ...]
_DOT = re.compile(r"(?<!\\)\.")
_DROPPED: Any = object()


class ResponseFilter:
    """The members of a response that a caller wants. False if it is all of them.

    Args:
        includes, excludes: Paths of members to keep and to leave out. Without any to keep, all are kept.
    """

    def __init__(self, includes: Sequence[_Path] = (), excludes: Sequence[_Path] = ()) -> None:
        self._includes = includes
        self._excludes = excludes

    @classmethod
    def from_query(cls, query: bytes) -> ResponseFilter:
        """Read the parameter from the query string of a request."""
        values = parse_qs(query.decode("ascii")).get("filter_path", [""])
        paths = [path for each in values[-1].split(",") if (path := each.strip())]
        includes = [_segments(path) for path in paths if not path.startswith("-")]
        return cls(includes, [_segments(path[1:]) for path in paths if path.startswith("-")])

    def __bool__(self) -> bool:
        return bool(self._includes or self._excludes)

    def apply(self, response: Json) -> Json:
        """Return the response without the members that the caller does not want."""
        if self._includes:
            response = _filter(response, self._includes, keeps=True)
        if self._excludes and response is not _DROPPED:
            response = _filter(response, self._excludes, keeps=False)
        return {} if response is _DROPPED else response


def _segments(path: str) -> _Path:
    return tuple(segment.replace("\\.", ".") for segment in _DOT.split(path))


def _filter(value: Any, paths: Sequence[_Path], *, keeps: bool) -> Any:
    """Keep only the members on these paths, or leave them out. What has no members left then is dropped.

    Args:
        value: Its lists are transparent.
        keeps: Whether the members on the paths are those to keep.
    """
    if isinstance(value, list):
        filtered = (_filter(each, paths, keeps=keeps) for each in value)
        return [each for each in filtered if each is not _DROPPED] or _DROPPED
    if not isinstance(value, dict):
        return _DROPPED if keeps else value
    kept = {}
    for name, inner in value.items():
        rest = _match(name, paths)
        if rest:
            inner = _filter(inner, rest, keeps=keeps)
        elif (rest is None) != keeps:
            inner = _DROPPED
        if inner is not _DROPPED:
            kept[name] = inner
    return kept or _DROPPED


def _match(name: str, paths: Sequence[_Path]) -> list[_Path] | None:
    """Return what is left of the paths that a member continues; None if it is the end of one of them."""
    rest = []
    for path in paths:
        if _pattern(path[0]).fullmatch(name):
            if len(path) == 1:
                return None
            rest.append(path[1:])
        if path[0] == "**":
            rest.append(path)
    return rest


@cache
def _pattern(segment: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, segment.split("*"))), re.DOTALL)
