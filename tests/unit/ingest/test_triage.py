"""Change detection without an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from es_sbert.index.meta import DocumentMeta
from es_sbert.ingest.documents import Document
from es_sbert.ingest.records import Origin
from es_sbert.ingest.triage import is_source_disabled, is_superseded, stored_meta, triage

DOCUMENT = Document(Origin("f", 1), "a", "text", "texthash", b"{}", "dochash")
META: dict[str, Any] = {
    "fingerprint": "model", "text_hash": "texthash", "document_hash": "dochash", "tokens": 3, "truncated": False,
    "embedded_at": "now",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "embed", "rewrite", "unchanged"),
    [
        ({}, 0, 0, 1),
        ({"document_hash": "other"}, 0, 1, 0),
        ({"document_hash": None}, 0, 1, 0),
        ({"text_hash": "other"}, 1, 0, 0),
        ({"fingerprint": "other"}, 1, 0, 0),
    ],
)
def test_what_changed_decides(change: dict[str, Any], embed: int, rewrite: int, unchanged: int) -> None:
    found = triage([DOCUMENT], {"a": DocumentMeta.model_validate(META | change)}, "model")
    assert (len(found.embed), len(found.rewrite), len(found.unchanged)) == (embed, rewrite, unchanged)


@pytest.mark.parametrize("stored", [{}, {"a": None}, {"b": DocumentMeta.model_validate(META)}])
def test_what_is_not_there_or_has_no_meta_is_embedded(stored: dict[str, DocumentMeta | None]) -> None:
    assert triage([DOCUMENT], stored, "model").embed == [DOCUMENT]


@pytest.mark.parametrize("value", [None, "text", {}, {**META, "tokens": "many"}, [META]])
def test_meta_of_other_programs_counts_as_none(value: Any) -> None:
    assert stored_meta({"embedding_meta": value}, "embedding_meta") is None
    assert stored_meta({}, "embedding_meta") is None


def test_meta_is_read_back() -> None:
    assert stored_meta({"embedding_meta": META}, "embedding_meta") == DocumentMeta.model_validate(META)


@pytest.mark.parametrize(
    ("mappings", "disabled"),
    [({}, False), ({"_source": {"enabled": True}}, False), ({"_source": {"enabled": False}}, True),
     ({"_source": {"excludes": ["x"]}}, False)],
)  # fmt: skip
def test_disabled_source(mappings: dict[str, Any], disabled: bool) -> None:
    assert is_source_disabled(mappings) is disabled


@pytest.mark.parametrize(("written", "later"), [(None, False), ("mow", True), ("now", False), ("of late", False)])
def test_a_dead_letter_gives_way_to_a_later_version(written: str | None, later: bool) -> None:
    document = replace(DOCUMENT, written=written)
    assert is_superseded(document, DocumentMeta.model_validate(META)) is later
    assert not is_superseded(document, None)
