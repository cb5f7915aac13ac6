"""Names of fields: what a misspelt one was meant to be, and fields left out in all forms that engines index alike."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.index.derived_fields import without_mapped_fields
from es_sbert.index.text_template import (
    MISSING,
    fields_hint,
    find_field,
    mapping_field_names,
    without_fields,
)


def test_mapping_field_names_match_document_paths() -> None:
    properties = {
        "title": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "meta": {"properties": {"lang": {"type": "keyword"}, "author": {"properties": {"name": {"type": "text"}}}}},
        "other": {"type": "alias", "path": "title"},
        "free": {"type": "object", "enabled": False},
    }
    assert mapping_field_names(properties) == ["title", "meta.lang", "meta.author.name", "free"]


def test_fields_hint_lists_a_limited_number() -> None:
    names = [f"field{number}" for number in range(1000)]
    hint = fields_hint(["x"], names, "The documents have")
    assert hint.startswith("The documents have the fields field0, field1, ")
    assert hint.endswith("field19 and 980 more.")
    assert fields_hint(["fiel7"], ["field7"], "They have") == "Did you mean field7? They have the fields field7."


@pytest.mark.parametrize(
    ("document", "left"),
    [
        ({"a": {"b": {"c": 1}}}, {}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"d": 2}}}),
        ({"a.b": {"c": 1, "d": 2}}, {"a.b": {"d": 2}}),
        ({"a": {"b.c": 1}, "a.b.c": 2, "a.b.cd": 3}, {"a.b.cd": 3}),
        ({"a": [{"b": [{"c": 1}, {"d": 2}]}, [{"b.c": 3}], 4]}, {"a": [{"b": [{}, {"d": 2}]}, [{}], 4]}),
        ({"a.b.c.d": 1, "a": {"b": {"c": {"d": 1}}, "e": {}}}, {"a": {"e": {}}}),
    ],
)
def test_fields_are_left_out_of_documents(document: dict[str, Any], left: dict[str, Any]) -> None:
    assert without_fields(document, ["a.b.c", "x"]) == left
    assert find_field(left, "a.b.c") is MISSING


def test_fields_are_left_out_of_mappings() -> None:
    keyword = {"type": "keyword"}
    properties = {
        "a": {"properties": {"b": keyword, "c": keyword}},
        "d": {"type": "object", "properties": {"e": keyword}},
        "f": {"dynamic": "false", "properties": {"g": keyword}},
        "h.i": keyword,
        "hi": keyword,
        "empty": {"type": "object"},
    }
    assert without_mapped_fields(properties, ["a.b", "d.e", "f.g", "h", "empty.x"]) == {
        "a": {"properties": {"c": keyword}},
        "f": {"dynamic": "false"},
        "hi": keyword,
        "empty": {"type": "object"},
    }
