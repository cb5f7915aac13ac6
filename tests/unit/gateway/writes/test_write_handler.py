"""Answers put together of what the engine and the gateway say of the items of one request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import EsSbertError, ModelError, Overloaded
from es_sbert.gateway.writes.bulk_items import BulkItem, OpType
from es_sbert.gateway.writes.write_handler import JoinedBulkResponse, parse_bulk_response

ERRORS: list[tuple[EsSbertError, int]] = [(ModelError("m", "r"), 503), (Overloaded("m", "r"), 429)]
Window = tuple[Sequence[Any], Sequence[BulkItem], Mapping[int, EsSbertError]]


def item(number: int) -> BulkItem:
    return BulkItem(OpType.INDEX, "docs", str(number), None, b"", b"", b"")


def result(number: int, status: int = 201) -> dict[str, Any]:
    return {"index": {"_id": str(number), "status": status}}


def joined(*windows: Window) -> Any:
    """The answer to a request that went in windows, each of them in parts."""
    whole = JoinedBulkResponse()
    for answers, items, refused in windows:
        whole.add(answers, items, refused)
    length, parts = whole.response()
    body = b"".join(parts)
    assert len(body) == length
    return json.loads(body)


@given(
    st.lists(st.lists(st.sampled_from([None, *ERRORS]), min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_results_keep_request_order(fates: list[list[tuple[EsSbertError, int] | None]], size: int) -> None:
    windows: list[Window] = []
    parts = 0
    for first, window in enumerate(fates):
        items = [item(100 * first + number) for number in range(len(window))]
        sent = [int(items[number].id or "") for number, fate in enumerate(window) if fate is None]
        answers = [
            {"took": 2, "errors": False, "items": [result(number) for number in sent[start : start + size]]}
            for start in range(0, len(sent), size)
        ]
        parts += len(answers)
        windows.append((answers, items, {number: fate[0] for number, fate in enumerate(window) if fate is not None}))
    whole = joined(*windows)
    results = [one["index"] for one in whole["items"]]
    assert [one["_id"] for one in results] == [one.id for _, items, _ in windows for one in items]
    all_fates = [fate for window in fates for fate in window]
    assert [one["status"] for one in results] == [201 if fate is None else fate[1] for fate in all_fates]
    assert [one.get("error", {}).get("reason") for one in results] == [
        None if fate is None else "m. r" for fate in all_fates
    ]
    assert whole["errors"] is any(all_fates)
    assert whole["took"] == 2 * parts


def test_errors_of_the_gateway_are_complete_in_a_filtered_response() -> None:
    """The engine has applied filter_path to its own results, and may have left out some."""
    items, refused = [item(number) for number in range(3)], {1: ERRORS[0][0]}
    status = [{"index": {"status": 201}}, {"index": {"status": 201}}]
    whole = joined(([{"items": status}], items, refused))
    assert [one["index"]["status"] for one in whole["items"]] == [201, 503, 201]
    assert whole["errors"] is True
    assert "took" not in whole
    whole = joined(([{}], items, refused))
    assert [one["index"]["_id"] for one in whole["items"]] == ["1"]
    assert joined(([{"took": 1}], items, {}), ([{"took": 2}], items, {})) == {"took": 3}
    assert joined(([{}], items, {})) == {}
    said = [{"errors": errors, "ingest_took": 7} for errors in (False, True)]
    assert joined((said, items, {})) == {"errors": True, "ingest_took": 14}


def test_error_reason_may_contain_lone_surrogate() -> None:
    answer = parse_bulk_response(rb'{"errors":true,"items":[{"index":{"_id":"0","error":{"reason":"\ud83d"}}}]}')
    assert answer is not None
    whole = JoinedBulkResponse()
    whole.add([answer], [item(0)], {})
    assert b"\xed\xa0\xbd" in b"".join(whole.response()[1])


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"items":{}}', b'{"items":[1]}', b'{"items":[{"index":1}]}', b'{"took":"1"}']
)
def test_invalid_bulk_response_is_not_parsed(body: bytes) -> None:
    assert parse_bulk_response(body) is None
