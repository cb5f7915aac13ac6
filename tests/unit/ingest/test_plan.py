"""Indices that refuse every document of a file, told before any is sent."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.engine import IndexState
from es_sbert.errors import VectorIndexError
from es_sbert.index.load_checks import check_can_hold_vectors, check_can_load_files, unmapped_fields

ROUTED = {"_routing": {"required": True}}


def test_a_data_stream_takes_no_files() -> None:
    with pytest.raises(VectorIndexError, match=r"\.ds-logs-1 belongs to the data stream logs") as told:
        check_can_load_files(IndexState(".ds-logs-1", {}, {}, data_stream="logs"), "logs")
    assert "`es-sbert ingest --index .ds-logs-1`" in told.value.remedy


def test_a_routing_that_is_wanted_must_be_the_alias_own() -> None:
    aliases = {"plain": {}, "one": {"index_routing": "1", "search_routing": "1"}}
    index = IndexState("docs", ROUTED, {}, aliases)
    check_can_load_files(index, "one")
    for name in ("docs", "plain"):
        with pytest.raises(VectorIndexError, match="requires a routing"):
            check_can_load_files(index, name)
    check_can_load_files(IndexState("docs", {}, {}, aliases), "docs")


@pytest.mark.parametrize("source", [{"enabled": False}, {"excludes": ["*_meta"]}, {"includes": ["text", "embedding"]}])
def test_an_index_that_does_not_keep_what_a_load_knows_documents_by_takes_no_files(source: dict[str, Any]) -> None:
    with pytest.raises(VectorIndexError, match="does not keep embedding_meta in _source"):
        check_can_load_files(IndexState("docs", {"_source": source}, {}), "docs", ["embedding_meta"])


@pytest.mark.parametrize("source", [{}, {"excludes": ["embedding"]}, {"includes": ["text", "embedding_meta"]}])
def test_the_vector_itself_need_not_be_in_source(source: dict[str, Any]) -> None:
    check_can_load_files(IndexState("docs", {"_source": source}, {}), "docs", ["embedding_meta"])


def test_an_index_that_indexes_nothing_takes_no_vectors() -> None:
    state = IndexState("docs", {"enabled": False}, {})
    for check in (check_can_hold_vectors, lambda state: check_can_load_files(state, "docs")):
        with pytest.raises(VectorIndexError, match="enabled: false"):
            check(state)


def test_fields_that_a_strict_mapping_refuses_are_named() -> None:
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
    assert unmapped_fields(mappings, documents) == ["author.born", "titel", "author.died"]
    assert unmapped_fields(mappings | {"dynamic": "false"}, documents) == []
