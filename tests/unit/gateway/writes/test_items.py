"""Bulk requests in actions: no byte is lost, and what is not certain is left to the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.gateway.writes.items import Bulk, Item, Operation, read_bulk, single_item

_NAMES = st.text("abc-", min_size=1, max_size=5)
_DOCUMENTS = st.one_of(
    st.dictionaries(st.text(max_size=4), st.text(max_size=9) | st.integers(), max_size=4).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode()
    ),
    st.binary(max_size=20).map(lambda value: value.replace(b"\n", b" ")),
)
_SPACE = st.sampled_from([b"", b" ", b"\r", b" \t\r"])


@st.composite
def _actions(draw: st.DrawFn) -> bytes:
    operation = draw(st.sampled_from(list(Operation)))
    said: dict[str, Any] = draw(
        st.fixed_dictionaries({}, optional={"_index": _NAMES, "_id": _NAMES | st.integers(0, 9), "routing": _NAMES})
    )
    line = draw(_SPACE) + json.dumps({str(operation): said}).encode() + draw(_SPACE) + b"\n"
    blank = draw(st.sampled_from([b"", b"", b"\n", b" \r\n"]))
    if operation is Operation.DELETE:
        return blank + line
    return blank + line + draw(_SPACE) + draw(_DOCUMENTS) + draw(_SPACE) + b"\n"


@given(st.lists(_actions(), max_size=8), st.sampled_from([b"", b"\n", b"\r\n \n"]))
def test_no_byte_of_a_request_is_lost(actions: list[bytes], end: bytes) -> None:
    body = b"".join(actions) + (end or (b"" if actions else b"\n"))
    bulk = read_bulk(body, "docs")
    assert bulk is not None
    assert bulk.body == body
    assert len(bulk.items) == len(actions)
    for item, action in zip(bulk.items, actions, strict=True):
        assert item.body == action
        assert item.source == item.source.strip(b" \t\r\n")


@given(st.binary(max_size=200) | st.text('{}":,index\n _', max_size=80).map(str.encode))
def test_whatever_comes_is_read_whole_or_left_to_the_engine(body: bytes) -> None:
    bulk = read_bulk(body)
    assert bulk is None or bulk.body == body


def test_each_action_says_where_it_goes_or_the_request_does() -> None:
    bulk = read_bulk(
        b'{"index":{}}\n{"a":1}\n{"delete":{"_index":"other","_id":7}}\n'
        b'\n{"update":{"_id":"x","routing":"r"}}\r\n {"doc":{}} \r\n{"create":{"_index":null,"_id":true}}\n\n',
        "docs", "shard",
    )  # fmt: skip
    assert bulk == Bulk([
        Item(Operation.INDEX, "docs", None, "shard", b'{"index":{}}\n', b'{"a":1}', b"\n"),
        Item(Operation.DELETE, "other", "7", "shard", b'{"delete":{"_index":"other","_id":7}}\n', b"", b""),
        Item(Operation.UPDATE, "docs", "x", "r", b'\n{"update":{"_id":"x","routing":"r"}}\r\n ', b'{"doc":{}}',
             b" \r\n"),
        Item(Operation.CREATE, "docs", None, "shard", b'{"create":{"_index":null,"_id":true}}\n', b"", b"\n"),
    ])  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"index":{}}\n{"a":1}',  # engines want a line feed at the end
        b'{"index":{}}\n',
        b'{"index":null}\n{}\n',
        b'{"index":{},"x":1}\n{}\n',
        b'{"upsert":{}}\n{}\n',
        b'{"a":1}\n{"index":{}}\n',
        b"[]\n{}\n",
        b'"index"\n{}\n',
        b"\xff\n{}\n",
        b'{"index":{}}\n{}\n{"index"\n{}\n',
    ],
)
def test_what_the_engine_would_refuse_is_left_to_it(body: bytes) -> None:
    assert read_bulk(body) is None


def test_the_body_of_a_document_api_is_its_document() -> None:
    item = single_item(Operation.INDEX, "docs", "1", None, b'\n {"a": 1}\n')
    assert (item.head, item.source, item.tail) == (b"\n ", b'{"a": 1}', b"\n")
    assert item.with_source(b"{}").body == b"\n {}\n"
    assert single_item(Operation.CREATE, "docs", "1", None, b" ").body == b" "
