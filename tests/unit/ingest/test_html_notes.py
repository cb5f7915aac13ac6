"""The note of a load on text fields that the engine indexes with the tags of their HTML."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.index_state import IndexState
from es_sbert.index.text_template import TextTemplate
from es_sbert.ingest.load import html_notes

# Flat settings, as both engines return them.
SETTINGS: dict[str, Any] = {
    "index.analysis.analyzer.one.char_filter": "html_strip",
    "index.analysis.analyzer.listed.char_filter": ["mapping", "html_strip"],
    "index.analysis.analyzer.own.char_filter": ["own"],
    "index.analysis.char_filter.own.type": "html_strip",
    "index.analysis.analyzer.other.char_filter": ["mapping"],
}
TEMPLATE = TextTemplate.parse("{title} {page.body|strip_html} {unmapped|strip_html}")


@pytest.mark.parametrize(
    ("field", "settings", "has_tags"),
    [
        ({"type": "text"}, {}, True),
        ({"type": "text", "analyzer": "english"}, SETTINGS, True),
        ({"type": "text", "analyzer": "other"}, SETTINGS, True),
        ({"type": "text"}, SETTINGS | {"index.analysis.analyzer.default.char_filter": ["own"]}, False),
        *(({"type": "text", "analyzer": name}, SETTINGS, False) for name in ("one", "listed", "own")),
        # Not analyzed, or not searched by words.
        ({"type": "keyword"}, {}, False),
        ({"type": "text", "index": False}, {}, False),
    ],
)
def test_tags_are_indexed_unless_the_analyzer_strips_them(
    field: dict[str, Any], settings: dict[str, Any], has_tags: bool
) -> None:
    properties = {"title": {"type": "text"}, "page": {"properties": {"body": field}}}
    notes = html_notes(IndexState("docs", {"properties": properties}, settings), [TEMPLATE, TEMPLATE])
    assert [note.partition(" are indexed")[0] for note in notes] == (["the words of page.body"] if has_tags else [])
