"""The items (actions) of a `_bulk` request, read window by window and without changing a byte."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

import orjson

from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.incoming_request import blank_comments, parse_object
from es_sbert.messages import shorten

# Whitespace of JSON; a line feed ends a line of a bulk request.
JSON_SPACE = b" \t\r\n"
# Engines skip these bytes before a document: whitespace and the byte order mark of UTF-8.
_BEFORE_DOCUMENT = JSON_SPACE + codecs.BOM_UTF8
# First bytes of documents. Engines reject others, but Elasticsearch accepts a comment before a document. The last three
# are those of UTF-16 and UTF-32, which only engines read.
DOCUMENT_STARTS = (b"{", b"/", b"\0", b"\xfe", b"\xff")
# Bytes of a body that are processed in one step.
_STEP_BYTES = 1024 * 1024


class OpType(StrEnum):
    """The type of an action."""

    INDEX = "index"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


_OP_TYPES = {str(operation): operation for operation in OpType}


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One action.

    Attributes:
        operation: Its type.
        index: Index, alias or data stream (not percent-encoded).
        id: Id of the document; None if the engine generates it.
        routing: Routing value; None if the document is routed by its id.
        head: The bytes before its document: in a bulk request, the line of the action.
        source: The bytes of its document, without surrounding whitespace; empty if it has none.
        tail: The bytes after its document.
    """

    operation: OpType
    index: str
    id: str | None
    routing: str | None
    head: bytes
    source: bytes
    tail: bytes

    @property
    def has_document(self) -> bool:
        """Whether it has a document that an engine may accept."""
        return self.operation is not OpType.DELETE and self.source.startswith(DOCUMENT_STARTS)

    @property
    def body(self) -> bytes:
        """All its bytes."""
        return self.head + self.source + self.tail

    def without_comments(self) -> BulkItem:
        """The item with blanks for the comments in its document."""
        return replace(self, source=blank_comments(self.source).strip(JSON_SPACE))

    @classmethod
    def from_bytes(
        cls, operation: OpType, index: str, id: str | None, routing: str | None, document: bytes, head: bytes = b""
    ) -> BulkItem:
        """Create an action from its bytes.

        Args:
            document: The document, perhaps with whitespace around it and a byte order mark: in a request to a document
                API, the whole body.
            head: The line of the action, in a bulk request.
        """
        source = document.lstrip(_BEFORE_DOCUMENT).rstrip(JSON_SPACE)
        if not source:
            return cls(operation, index, id, routing, head, b"", document)
        start = document.index(source)
        return cls(operation, index, id, routing, head + document[:start], source, document[start + len(source) :])


# Estimates the memory for an action, from the name of its index, the bytes of its lines and the most strings that
# lists in its document can hold.
ActionWeight: TypeAlias = Callable[[str, int, int], int]


@dataclass(frozen=True)
class BulkBody:
    """The body of a bulk request in which each line is certainly an action or its document.

    Only its bytes are kept, and actions are read from them window by window: as objects, all actions of a large request
    would take many times the memory of its body.

    Attributes:
        body: The body.
        index, routing: Defaults of actions.
        names: Indices that documents are written to; None if there are more than `most_names`.
    """

    body: bytes
    index: str
    routing: str | None
    names: frozenset[str] | None

    @classmethod
    def read_in_steps(
        cls, body: bytes, index: str = "", routing: str | None = None, most_names: int = 1000
    ) -> Generator[None, None, BulkBody | None]:
        """Check the lines of a body, a part of it in each step.

        Returns:
            The body; None if the engine rejects the whole request: it does not end with a line feed, or an action names
            no index.

        Raises:
            BadRequest: a line is not an action.
        """
        if not body.endswith(b"\n"):
            return None
        names: set[str] = set()
        step_end = _STEP_BYTES
        for _, document, end, _, parameters in _scan_actions(body, 0):
            name = _name_or_none(parameters.get("_index")) or index
            if not name:
                return None
            # Skip bodies that are not JSON objects; the engine rejects them.
            if (
                name not in names
                and len(names) <= most_names
                and body[document:end].lstrip(_BEFORE_DOCUMENT).startswith(DOCUMENT_STARTS)
            ):
                names.add(name)
            if end >= step_end:
                yield
                step_end = end + _STEP_BYTES
        return cls(body, index, routing, frozenset(names) if len(names) <= most_names else None)

    def window(self, start: int, weight: ActionWeight, max_items: int, max_bytes: int) -> tuple[list[BulkItem], int]:
        """Read the actions from an offset on, as many as the limits allow, and at least one if there is any.

        Lines after the last action of the request, which engines ignore, belong to that action.

        Args:
            start: 0, or the end of another window.
            max_items: Maximum number of actions.
            max_bytes: Maximum memory. A larger action is a window of one item.

        Returns:
            The actions, and the offset of the next window in the body.
        """
        items: list[BulkItem] = []
        size = 0
        for begin, document, end, operation, parameters in _scan_actions(self.body, start):
            name, source = self._index(parameters), self.body[document:end]
            # At most so many strings are in lists.
            strings = source.count(b'"') // 2 if b"[" in source else 0
            size += weight(name, end - begin, strings)
            if items and (len(items) == max_items or size > max_bytes):
                return items, begin
            id, routing = _name_or_none(parameters.get("_id")), parameters.get("routing", parameters.get("_routing"))
            routing = self.routing if routing is None else _name_or_none(routing)
            items.append(BulkItem.from_bytes(operation, name, id, routing, source, self.body[begin:document]))
            start = end
        if items:
            items[-1] = replace(items[-1], tail=items[-1].tail + self.body[start:])
        return items, len(self.body)

    def count_documents(self) -> Counter[str]:
        """Count the actions with a document, by index."""
        return Counter(
            self._index(parameters)
            for _, _, _, operation, parameters in _scan_actions(self.body, 0)
            if operation is not OpType.DELETE
        )

    def _index(self, parameters: dict[str, Any]) -> str:
        return _name_or_none(parameters.get("_index")) or self.index


def count_lines_in_steps(body: bytes) -> Generator[None, None, int]:
    """Count the line feeds of a body, a part of it in each step, because `count` holds the interpreter lock."""
    count = 0
    for start in range(0, len(body), _STEP_BYTES):
        count += body.count(b"\n", start, start + _STEP_BYTES)
        yield
    return count


def _scan_actions(body: bytes, start: int) -> Iterator[tuple[int, int, int, OpType, dict[str, Any]]]:
    """Yield each action from an offset on: offsets of its beginning, document and end, its type and its parameters.

    Blank lines before an action, which engines ignore, are a part of it. Only line feeds end a line, not the line
    breaks inside a document's strings. Engines also ignore a last action whose document is missing.

    Raises:
        BadRequest: a line is not an action.
    """
    begin = start
    while start < len(body):
        end = body.index(b"\n", start) + 1
        line = body[start:end]
        start = end
        if not line.strip(JSON_SPACE):
            continue
        operation, parameters = _parse_action_line(line)
        if operation is not OpType.DELETE:
            if end == len(body):
                return
            end = body.index(b"\n", end) + 1
        yield begin, start, end, operation, parameters
        begin = start = end


def _parse_action_line(line: bytes) -> tuple[OpType, dict[str, Any]]:
    """Parse the line of an action.

    Raises:
        BadRequest: the line is not an action.
    """
    try:
        action = orjson.loads(line)
    except orjson.JSONDecodeError:
        action = parse_object(line)
    if isinstance(action, dict) and len(action) == 1:
        [(name, parameters)] = action.items()
        if name in _OP_TYPES and isinstance(parameters, dict):
            return _OP_TYPES[name], parameters
    raise BadRequest(
        f"a line of the bulk request is not an action: {shorten(line.decode(errors='replace').strip())}",
        'Send actions such as {"index": {"_id": "1"}}, each on a line, with its document on the next line.',
    )


def _name_or_none(value: object) -> str | None:
    """A name as engines read it: a number counts as a name."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
