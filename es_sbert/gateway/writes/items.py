"""The actions of a `_bulk` request, and the one action of the document APIs: bytes apart, none of them lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import orjson

# What JSON takes for white space; a line feed ends a line of a bulk request.
SPACE = b" \t\r\n"


class Operation(StrEnum):
    """What an action does."""

    INDEX = "index"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Item:
    """One action.

    Attributes:
        operation: What it does.
        index: Index, alias or data stream, as it is called (not percent-encoded).
        id: The document's; None where the engine is to give it one.
        routing: What chooses its shard; None where that is the id.
        head: The bytes before its document: of a bulk request the action's line.
        source: The bytes of its document, the white space around it left out; empty where it has none.
        tail: The bytes behind its document.
    """

    operation: Operation
    index: str
    id: str | None
    routing: str | None
    head: bytes
    source: bytes
    tail: bytes

    @property
    def body(self) -> bytes:
        """All its bytes."""
        return self.head + self.source + self.tail

    def with_source(self, source: bytes) -> Item:
        """The same action on another document."""
        return replace(self, source=source)


@dataclass(frozen=True)
class Bulk:
    """A bulk request.

    Attributes:
        items: Its actions, in order.
        rest: Bytes behind the last of them.
    """

    items: list[Item]
    rest: bytes = b""

    @property
    def body(self) -> bytes:
        return b"".join([*(item.body for item in self.items), self.rest])


class _NotABulk(ValueError):
    """The engine says by itself what is wrong with it."""


def single_item(operation: Operation, index: str, id: str | None, routing: str | None, source: bytes) -> Item:
    """The action of a request to a document API, whose body is the document."""
    return _item(operation, index, id, routing, b"", source)


def read_bulk(body: bytes, index: str = "", routing: str | None = None) -> Bulk | None:
    """The actions of a bulk request's body.

    Args:
        index, routing: What holds for actions that do not say their own.

    Returns:
        None where the engine would refuse the whole request, or where it is not certain which line is which.
    """
    if not body.endswith(b"\n"):
        return None
    try:
        return _read(body, index, routing)
    except _NotABulk:
        return None


def _read(body: bytes, index: str, routing: str | None) -> Bulk:
    items: list[Item] = []
    lines = _lines(body)
    blank = b""
    for line in lines:
        if not line.strip(SPACE):
            blank += line  # engines pass over empty lines between actions
            continue
        operation, said = _action(line)
        document = b""
        if operation is not Operation.DELETE:
            document = next(lines, b"")
            if not document:
                raise _NotABulk
        own = said.get("routing", said.get("_routing"))
        named, place = _text(said.get("_index")) or index, routing if own is None else _text(own)
        items.append(_item(operation, named, _text(said.get("_id")), place, blank + line, document))
        blank = b""
    return Bulk(items, blank)


def _item(operation: Operation, index: str, id: str | None, routing: str | None, head: bytes, document: bytes) -> Item:
    source = document.strip(SPACE)
    if not source:
        return Item(operation, index, id, routing, head, b"", document)
    start = document.index(source)
    return Item(operation, index, id, routing, head + document[:start], source, document[start + len(source) :])


def _lines(body: bytes) -> Iterator[bytes]:
    """Lines with their line feeds; only these end one, whatever stands in a document's strings."""
    start = 0
    while start < len(body):
        end = body.index(b"\n", start) + 1
        yield body[start:end]
        start = end


def _action(line: bytes) -> tuple[Operation, dict[str, Any]]:
    """An action's line.

    Raises:
        _NotABulk: it is none.
    """
    try:
        action = orjson.loads(line)
        [(name, said)] = action.items()
        operation = Operation(name)
    except (AttributeError, ValueError) as error:
        raise _NotABulk from error
    if not isinstance(said, dict):
        raise _NotABulk
    return operation, said


def _text(value: object) -> str | None:
    """A name as engines read it: a number is one too."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
