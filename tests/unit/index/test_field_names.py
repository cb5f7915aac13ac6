"""Names of fields, and what a misspelt one was meant to be."""

from __future__ import annotations

import pytest

from es_sbert.index.text_template import closest_name, document_field_names, fields_hint, mapping_field_names


def test_mapping_field_names_match_document_paths() -> None:
    properties = {
        "title": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "meta": {"properties": {"lang": {"type": "keyword"}, "author": {"properties": {"name": {"type": "text"}}}}},
        "other": {"type": "alias", "path": "title"},
        "free": {"type": "object", "enabled": False},
    }
    assert mapping_field_names(properties) == ["title", "meta.lang", "meta.author.name", "free"]


def test_document_field_names_are_dotted() -> None:
    assert document_field_names({"a": 1, "b": {"c": [{"d": 1}], "e": {}}}) == ["a", "b.c.d"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("titel", "title"), ("TITLE", "title"), ("lang", "meta.lang"), ("meta.lnag", "meta.lang"), ("price", None)],
)
def test_closest_name(name: str, meant: str | None) -> None:
    assert closest_name(name, ["id", "title", "body", "meta.lang"]) == meant


def test_fields_hint_lists_a_limited_number() -> None:
    names = [f"field{number}" for number in range(1000)]
    hint = fields_hint(["x"], names, "The documents have")
    assert hint.startswith("The documents have the fields field0, field1, ")
    assert hint.endswith("field19 and 980 more.")
    assert fields_hint(["fiel7"], ["field7"], "They have") == "Did you mean field7? They have the fields field7."
