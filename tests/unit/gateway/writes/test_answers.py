"""Answers put together of what the engine and the gateway say of the items of one request."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import EsSbertError, ModelError, Overloaded
from es_sbert.gateway.writes.answers import failed_part, joined
from es_sbert.gateway.writes.items import Item, Operation

ERRORS: list[tuple[EsSbertError, int]] = [(ModelError("m", "r"), 503), (Overloaded("m", "r"), 429)]


def item(number: int) -> Item:
    return Item(Operation.INDEX, "docs", str(number), None, b"", b"", b"")


def result(number: int, status: int = 201) -> dict[str, Any]:
    return {"index": {"_id": str(number), "status": status}}


@given(st.lists(st.sampled_from([None, *ERRORS]), min_size=1, max_size=12), st.integers(1, 4))
def test_results_stand_in_the_order_of_the_request(fates: list[tuple[EsSbertError, int] | None], size: int) -> None:
    sent = [number for number, fate in enumerate(fates) if fate is None]
    parts = [sent[start : start + size] for start in range(0, len(sent), size)]
    answers = [{"took": 2, "errors": False, "items": [result(number) for number in part]} for part in parts]
    refused = {number: fate[0] for number, fate in enumerate(fates) if fate is not None}
    whole = joined(answers, [item(number) for number in range(len(fates))], refused)
    assert [one["index"]["_id"] for one in whole["items"]] == [str(number) for number in range(len(fates))]
    statuses = [201 if fate is None else fate[1] for fate in fates]
    assert [one["index"]["status"] for one in whole["items"]] == statuses
    assert [one["index"].get("error", {}).get("reason") for one in whole["items"]] == [
        None if fate is None else "m. r" for fate in fates
    ]
    assert whole["errors"] is bool(refused)
    assert whole["took"] == 2 * len(parts)


def test_an_error_of_any_part_is_one_of_the_whole() -> None:
    items = [item(number) for number in range(3)]
    answers = [{"took": 1, "errors": False, "items": [result(0)]}, failed_part(items[1:], 413, {"type": "t"})]
    whole = joined(answers, items, {})
    assert whole["errors"] is True
    assert [one["index"]["status"] for one in whole["items"]] == [201, 413, 413]
    assert joined([{"errors": True, "items": [result(0, 400)]}], items[:1], {})["errors"] is True


def test_refused_items_are_told_even_where_the_others_were_filtered_out() -> None:
    whole = joined([{"errors": False, "items": []}], [item(0), item(1)], {0: ERRORS[0][0]})
    assert [one["index"]["status"] for one in whole["items"]] == [503]
    assert list(itertools.islice(whole, 2)) == ["errors", "items"]
