"""Bulk requests in actions: no byte is lost, and what is not certain is left to the engine."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.gateway.concurrency import offload_steps
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.writes.bulk_items import BulkBody, BulkItem, OpType
from tests.raised import raises_as_recorded

_NAMES = st.text("abc-", min_size=1, max_size=5)
_DOCUMENTS = st.one_of(
    st.dictionaries(st.text(max_size=4), st.text(max_size=9) | st.integers(), max_size=4).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode()
    ),
    st.binary(max_size=20).map(lambda value: value.translate(None, b"\n\0")),
)
_SPACE = st.sampled_from([b"", b" ", b"\r", b" \t\r"])


@st.composite
def _actions(draw: st.DrawFn) -> bytes:
    operation = draw(st.sampled_from(list(OpType)))
    said: dict[str, Any] = draw(
        st.fixed_dictionaries({}, optional={"_index": _NAMES, "_id": _NAMES | st.integers(0, 9), "routing": _NAMES})
    )
    line = draw(_SPACE) + json.dumps({str(operation): said}).encode() + draw(_SPACE) + b"\n"
    blank = draw(st.sampled_from([b"", b"", b"\n", b" \r\n"]))
    if operation is OpType.DELETE:
        return blank + line
    return blank + line + draw(_SPACE) + draw(_DOCUMENTS) + draw(_SPACE) + b"\n"


def read_bulk(body: bytes, index: str = "", routing: str | None = None, most_names: int = 1000) -> BulkBody | None:
    """As `BulkBody.read_in_steps`, all steps at once."""
    return asyncio.run(offload_steps(len(body), BulkBody.read_in_steps(body, index, routing, most_names)))


def windows(
    bulk: BulkBody, items: int = 1000, size: int = 1 << 30, weight: Any = lambda name, size, listed: size
) -> list[list[BulkItem]]:
    """The items of all windows of a request."""
    found: list[list[BulkItem]] = []
    end = 0
    while not found or end < len(bulk.body):
        window, end = bulk.window(end, weight, items, size)
        found.append(window)
    return found


def joined(found: list[list[BulkItem]]) -> bytes:
    return b"".join(item.body for window in found for item in window)


@given(
    st.lists(_actions(), max_size=8),
    st.sampled_from([b"", b"\n", b"\r\n \n"]),
    st.integers(1, 5),
    st.sampled_from([1, 60, 150, 1 << 30]),
)
def test_windows_hold_every_action_once_and_in_order(actions: list[bytes], end: bytes, items: int, size: int) -> None:
    body = b"".join(actions) + (end or (b"" if actions else b"\n"))
    bulk = read_bulk(body, "docs")
    assert bulk is not None
    found = windows(bulk, items, size)
    bodies = [item.body for window in found for item in window]
    if actions:
        assert bodies == [*actions[:-1], actions[-1] + end], "the last action has the lines after it"
        assert bulk.body == body
    for window in found:
        assert len(window) <= items
        weights = [len(item.body.removesuffix(end) if end else item.body) for item in window]
        assert len(window) <= 1 or sum(weights) <= size
        assert all(item.source == item.source.strip(b" \t\r\n") for item in window)
    for window, after in itertools.pairwise(found):
        larger = sum(len(item.body) for item in [*window, after[0]]) > size
        assert len(window) == items or larger, "no window is smaller than it must be"


@given(st.binary(max_size=200) | st.text('{}":,index\n _', max_size=80).map(str.encode))
def test_any_bytes_are_read_whole_or_refused_or_left_to_the_engine(body: bytes) -> None:
    try:
        bulk = read_bulk(body, "docs")
    except BadRequest:
        return  # a line is not an action
    if bulk is not None and b"\0" not in body:
        found = windows(bulk, 2)
        assert joined(found) == (body if found[0] else b"")


def test_index_comes_from_action_or_request() -> None:
    bulk = read_bulk(
        b'{"index":{}}\n{"a":1}\n{"delete":{"_index":"other","_id":7}}\n'
        b'\n{"update":{"_id":"x","routing":"r"}}\r\n {"doc":{}} \r\n{"create":{"_index":null,"_id":true}}\n\n',
        "docs",
        "shard",
    )
    assert bulk is not None
    assert bulk.names == {"docs"}, "a delete has no text"
    [window] = windows(bulk)
    assert window == [
        BulkItem(OpType.INDEX, "docs", None, "shard", b'{"index":{}}\n', b'{"a":1}', b"\n"),
        BulkItem(OpType.DELETE, "other", "7", "shard", b'{"delete":{"_index":"other","_id":7}}\n', b"", b""),
        BulkItem(
            OpType.UPDATE, "docs", "x", "r", b'\n{"update":{"_id":"x","routing":"r"}}\r\n ', b'{"doc":{}}', b" \r\n"
        ),
        BulkItem(OpType.CREATE, "docs", None, "shard", b'{"create":{"_index":null,"_id":true}}\n', b"", b"\n"),
    ]


def test_byte_order_mark_before_a_document_is_kept() -> None:
    body = b'{"index":{"_index":"a"}}\n\xef\xbb\xbf{"a":1}\n'
    bulk = read_bulk(body)
    assert bulk is not None
    assert bulk.names == {"a"}
    [[item]] = windows(bulk)
    assert item.source == b'{"a":1}'
    assert item.body == body


def test_an_action_without_an_index_is_left_to_the_engine() -> None:
    assert read_bulk(b'{"index":{"_index":"a"}}\n{}\n{"index":{}}\n{}\n') is None


def test_last_action_without_document_passes_through() -> None:
    body = b'{"index":{}}\n{"a":1}\n{"index":{}}\n'
    bulk = read_bulk(body, "docs")
    assert bulk is not None
    [window] = windows(bulk)
    assert [(item.source, item.tail) for item in window] == [(b'{"a":1}', b'\n{"index":{}}\n')]
    assert read_bulk(b'{"index":{}}\n', "docs") == BulkBody(b'{"index":{}}\n', "docs", None, frozenset())


@pytest.mark.parametrize(
    "body",
    [
        b'{"index":null}\n{}\n',
        b'{"index":{},"x":1}\n{}\n',
        b'{"upsert":{}}\n{}\n',
        b"\xff\n{}\n",
        b'{"index":{}}\n{}\n{"index"\n{}\n',
        '{"index":{}}\n{}\n'.encode("utf-16-be"),
    ],
)
def test_line_that_is_no_action_is_rejected(body: bytes) -> None:
    with raises_as_recorded(BadRequest):
        read_bulk(body, "docs")


def test_document_api_body_becomes_a_bulk_item() -> None:
    item = BulkItem.from_bytes(OpType.INDEX, "docs", "1", None, b'\n {"a": 1}\n')
    assert (item.head, item.source, item.tail) == (b"\n ", b'{"a": 1}', b"\n")
    assert replace(item, source=b"{}").body == b"\n {}\n"
    assert BulkItem.from_bytes(OpType.CREATE, "docs", "1", None, b" ").body == b" "
