"""Indices that refuse every document of a file, told before any is sent."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.index_state import IndexState
from es_sbert.errors import VectorIndexError
from es_sbert.index.load_checks import check_can_load_files, check_strict_mapping
from es_sbert.index.source_mode import check_can_hold_vectors

ROUTED = {"_routing": {"required": True}}


def test_loading_files_into_a_data_stream_is_rejected() -> None:
    with pytest.raises(VectorIndexError, match=r"\.ds-logs-1 belongs to the data stream logs") as told:
        check_can_load_files(IndexState(".ds-logs-1", {}, {}, data_stream="logs"), "logs")
    assert "`es-sbert ingest --index .ds-logs-1`" in told.value.remedy


def test_required_routing_must_come_from_the_alias() -> None:
    aliases = {"plain": {}, "one": {"index_routing": "1", "search_routing": "1"}}
    index = IndexState("docs", ROUTED, {}, aliases)
    check_can_load_files(index, "one")
    for name in ("docs", "plain"):
        with pytest.raises(VectorIndexError, match="requires a routing"):
            check_can_load_files(index, name)
    check_can_load_files(IndexState("docs", {}, {}, aliases), "docs")


@pytest.mark.parametrize("source", [{"enabled": False}, {"excludes": ["*_meta"]}, {"includes": ["text", "embedding"]}])
def test_index_without_metadata_in_source_is_rejected(source: dict[str, Any]) -> None:
    with pytest.raises(VectorIndexError, match="does not keep embedding_meta in _source"):
        check_can_load_files(IndexState("docs", {"_source": source}, {}), "docs", ["embedding_meta"])


@pytest.mark.parametrize("source", [{}, {"excludes": ["embedding"]}, {"includes": ["text", "embedding_meta"]}])
def test_vector_may_be_excluded_from_source(source: dict[str, Any]) -> None:
    check_can_load_files(IndexState("docs", {"_source": source}, {}), "docs", ["embedding_meta"])


def test_index_with_enabled_false_is_rejected() -> None:
    state = IndexState("docs", {"enabled": False}, {})
    for check in (check_can_hold_vectors, lambda state: check_can_load_files(state, "docs")):
        with pytest.raises(VectorIndexError, match="enabled: false"):
            check(state)


def test_unmapped_fields_of_a_strict_mapping_are_listed() -> None:
    mappings = {
        "dynamic": "strict",
        "properties": {
            "text": {"type": "text"},
            "author": {"properties": {"name": {"type": "keyword"}}},
            "free": {"dynamic": "true", "properties": {}},
            "ignored": {"enabled": False, "properties": {}},
        },
    }
    documents = [
        {"text": "a", "author": {"name": "b", "born": 1}, "free": {"x": {"y": 1}}, "ignored": {"x": 1}},
        {"titel": None, "author": [{"name": "c"}, {"died": 2}], "author.name": "d", "author.born": 3},
    ]
    with pytest.raises(VectorIndexError, match="lacks author.born, titel, author.died, so it rejects"):
        check_strict_mapping(IndexState("docs", mappings, {}), documents)
    check_strict_mapping(IndexState("docs", mappings, {}), [*documents, {"text": "one that fits"}])
    check_strict_mapping(IndexState("docs", mappings | {"dynamic": "false"}, {}), documents)
