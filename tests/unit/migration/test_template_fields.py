"""The names of a mapping's fields."""

from __future__ import annotations

from es_sbert.migration.template_fields import mapped_fields


def test_fields_inside_objects_have_dotted_names() -> None:
    properties = {"title": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
                  "author": {"properties": {"name": {"type": "text"}}}}  # fmt: skip
    assert list(mapped_fields(properties)) == ["title", "author", "author.name"]
