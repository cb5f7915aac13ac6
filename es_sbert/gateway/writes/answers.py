"""Answers to bulk requests of which not every item was sent, or which went in several parts."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.failures import error_object, status_of
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object, write_object
from es_sbert.gateway.writes.items import Item

# Enough for results, which are much alike, and fast.
_LEVEL = 1
# Milliseconds, which add up.
_DURATIONS = ("took", "ingest_took")
_ITEMS, _TAIL = b'"items":[', b"]}"


@dataclass(frozen=True)
class _Part:
    """A part of the answer, compressed: results of a hundred thousand items take a hundred megabytes."""

    compressed: bytes
    length: int

    @classmethod
    def of(cls, text: bytes) -> _Part:
        return cls(zlib.compress(text, _LEVEL), len(text))


class JoinedAnswer:
    """One answer to a bulk request, in the order of its items. Not thread-safe."""

    def __init__(self) -> None:
        self._members: Json | None = None
        self._durations: Counter[str] = Counter()
        self._errors = False
        self._parts: list[_Part] = []

    def add(self, answers: Sequence[Json], items: Sequence[Item], refused: Mapping[int, EsSbertError]) -> None:
        """Add the results of the next items.

        Args:
            answers: To the parts in which the items were sent, in their order; none where nothing was sent.
            items: The items.
            refused: Number of an item → why it was not sent.
        """
        for answer in answers:
            self._add_members(answer)
        results = _in_order(answers, items, refused)
        self._errors |= any("error" in result for one in results for result in one.values())
        if results:
            self._parts.append(_Part.of(b",".join(map(write_object, results))))

    def add_text(self, answer: AnswerText) -> None:
        """Add the results of the next items, all of which were sent."""
        self._add_members(answer.members)
        if answer.results:
            self._parts.append(_Part.of(answer.results))

    def _add_members(self, members: Json) -> None:
        if self._members is None:
            self._members = {name: value for name, value in members.items() if name != "items"}
        self._errors |= members.get("errors", False)
        self._durations.update({name: members[name] for name in _DURATIONS if name in members})

    @property
    def length(self) -> int:
        """Bytes of the whole answer."""
        return len(self._head()) + sum(part.length + 1 for part in self._parts) - bool(self._parts) + len(_TAIL)

    def body(self) -> Iterator[bytes]:
        """The answer, in parts."""
        yield self._head()
        for number, part in enumerate(self._parts):
            yield (b"," if number else b"") + zlib.decompress(part.compressed)
        yield _TAIL

    def _head(self) -> bytes:
        members: Json = {"took": 0, "errors": False} if self._members is None else dict(self._members)
        # What a `filter_path` took away is not known, unless an item tells it.
        members |= {name: value for name, value in self._durations.items() if name in members}
        if "errors" in members or self._errors:
            members["errors"] = self._errors
        return write_object(members)[:-1] + (b"," if members else b"") + b'"items":['


@dataclass(frozen=True)
class AnswerText:
    """An answer whose results are not read.

    Attributes:
        members: All but `items`.
        results: The bytes between the brackets of `items`.
    """

    members: Json
    results: bytes

    @classmethod
    def of(cls, body: bytes) -> AnswerText | None:
        """None where the answer is not of the form that engines usually write, or was filtered: it must be read."""
        start = body.find(_ITEMS) + len(_ITEMS)
        if start < len(_ITEMS) or not body.endswith(_TAIL):
            return None
        try:
            members = orjson.loads(body[:start] + _TAIL)
        except orjson.JSONDecodeError:
            return None
        if members.pop("items", None) != [] or not isinstance(members.get("errors"), bool) or not _has_times(members):
            return None
        return cls(members, body[start : -len(_TAIL)])


def read_answer(body: bytes) -> Json | None:
    """An answer's object; None where it is not the answer to a bulk request, nor an error."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            # What is told of an item may hold lone surrogates.
            answer = parse_object(body)
        except NotPlainJson:
            return None
    return answer if _is_answer(answer) else None


def _is_answer(answer: object) -> bool:
    if not isinstance(answer, dict) or not _has_times(answer):
        return False
    items = answer.get("items", [])
    return isinstance(items, list) and all(
        isinstance(item, dict) and all(isinstance(result, dict) for result in item.values()) for item in items
    )


def _has_times(members: Json) -> bool:
    return all(isinstance(members.get(name, 0), int) for name in _DURATIONS)


def refusal(item: Item, error: EsSbertError) -> Json:
    """The result of an item that was not sent, as the engine writes results."""
    return _failure(item, status_of(error), error_object(error))


def failed_part(items: Sequence[Item], status: int, error: object) -> Json:
    """What a part that the engine refused as a whole adds to the answer."""
    return {"took": 0, "errors": True, "items": [_failure(item, status, error) for item in items]}


def _failure(item: Item, status: int, error: object) -> Json:
    return {str(item.operation): {"_index": item.index, "_id": item.id, "status": status, "error": error}}


def _in_order(answers: Sequence[Json], items: Sequence[Item], refused: Mapping[int, EsSbertError]) -> list[Json]:
    given = [result for answer in answers for result in answer.get("items", ())]
    own = {number: refusal(items[number], error) for number, error in sorted(refused.items())}
    if len(given) + len(own) != len(items):
        # A `filter_path` took results out of the answer: which item the others belong to cannot be known, nor asked.
        return [*given, *own.values()]
    others = iter(given)
    return [own[number] if number in own else next(others) for number in range(len(items))]
