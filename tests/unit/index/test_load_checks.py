"""Which indices can hold vectors and take documents."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.index_state import IndexState
from es_sbert.errors import VectorIndexError
from es_sbert.index.load_checks import check_can_load_files, check_strict_mapping
from es_sbert.index.source_mode import (
    NameForm,
    SourceMode,
    check_accepts_updates,
    check_can_hold_vectors,
    fields_missing_from_source,
    is_in_source,
    name_form,
    source_mode,
)
from tests.raised import raises, raises_as_recorded


def index(source: dict[str, Any] | None = None, **settings: str) -> IndexState:
    mappings = {} if source is None else {"_source": source}
    return IndexState("docs", mappings, {f"index.{name.replace('__', '.')}": text for name, text in settings.items()})


@pytest.mark.parametrize(
    ("state", "mode"),
    [
        (index(), SourceMode.STORED),
        (index({"excludes": ["a"]}), SourceMode.STORED),
        (index({"enabled": False}), SourceMode.DISABLED),
        (index(mapping__source__mode="disabled"), SourceMode.DISABLED),
        (index(mapping__source__mode="SYNTHETIC"), SourceMode.SYNTHETIC),
        (index({"mode": "synthetic"}), SourceMode.SYNTHETIC),
        (index(mode="logsdb"), SourceMode.SYNTHETIC),
        (index(mode="time_series"), SourceMode.SYNTHETIC),
        (index(mode="logsdb", mapping__source__mode="stored"), SourceMode.STORED),
        (index(mode="columnar"), SourceMode.SYNTHETIC),
        (index(mode="columnar", mapping__source__mode="columnar_stored"), SourceMode.SYNTHETIC),
        (index(derived_source__enabled="true"), SourceMode.DERIVED),
    ],
)
def test_source_mode_comes_from_settings_and_mapping(state: IndexState, mode: SourceMode) -> None:
    assert source_mode(state) is mode


@pytest.mark.parametrize(
    ("source", "kept"),
    [({}, True), ({"enabled": False}, False), ({"mode": "disabled"}, False), ({"mode": "synthetic"}, True),
     ({"excludes": ["a"]}, False), ({"excludes": ["a.b.c"]}, True), ({"excludes": ["*.b"]}, False),
     ({"includes": ["a"]}, True), ({"includes": ["a.b"]}, True), ({"includes": ["other"]}, False),
     ({"includes": ["a*"], "excludes": ["a.b"]}, False)],
)  # fmt: skip
def test_is_in_source_honors_mode_includes_and_excludes(source: dict[str, Any], kept: bool) -> None:
    assert is_in_source("a.b", index(source)) is kept


@pytest.mark.parametrize(
    ("state", "lost"),
    [(index(), None), (index({"enabled": True}), None), (index({"enabled": False}), "_source"),
     (index(mapping__source__mode="disabled"), "_source"), (index(mode="logsdb"), None),
     (index({"excludes": ["embedding"]}), None),
     (index({"excludes": ["body", "embedding", "raw.*"]}), "body, raw.* in its _source"),
     (index({"includes": ["text", "embed*"]}), "fields other than text, embed* in its _source")],
)  # fmt: skip
def test_fields_missing_from_source_are_listed(state: IndexState, lost: str | None) -> None:
    assert fields_missing_from_source(state, ["embedding"]) == lost


def test_index_without_updates_or_vectors_is_rejected() -> None:
    for mode in ("time_series", "columnar", "logsdb_columnar"):
        with raises_as_recorded(VectorIndexError):
            check_accepts_updates(index(mode=mode))
    for mode in ("standard", "logsdb", "lookup", "vectordb_document"):
        check_accepts_updates(index(mode=mode))
    with raises_as_recorded(VectorIndexError):
        check_can_hold_vectors(index(derived_source__enabled="true"))


def test_synthetic_source_without_objects_takes_no_partial_updates() -> None:
    synthetic = {"index.mapping.source.mode": "synthetic"}
    for subobjects, lost in ((False, True), ("false", True), ("auto", True), (True, False), ("true", False)):
        state = IndexState("docs", {"subobjects": subobjects}, dict(synthetic))
        assert (fields_missing_from_source(state, ()) is not None) is lost
    assert fields_missing_from_source(IndexState("docs", {"subobjects": False}, {}), ()) is None
    assert name_form(IndexState("docs", {"subobjects": False}, {})) is NameForm.AS_SENT
    assert name_form(IndexState("docs", {}, dict(synthetic))) is NameForm.OBJECTS


ROUTED = {"_routing": {"required": True}}


def test_loading_files_into_a_data_stream_is_rejected() -> None:
    with raises_as_recorded(VectorIndexError):
        check_can_load_files(IndexState(".ds-logs-1", {}, {}, data_stream="logs"), "logs")


def test_required_routing_must_come_from_the_alias() -> None:
    aliases = {"plain": {}, "one": {"index_routing": "1", "search_routing": "1"}}
    index = IndexState("docs", ROUTED, {}, aliases)
    check_can_load_files(index, "one")
    for name in ("docs", "plain"):
        with raises(VectorIndexError, "routing_field"):
            check_can_load_files(index, name)
    check_can_load_files(IndexState("docs", {}, {}, aliases), "docs")


@pytest.mark.parametrize("source", [{"enabled": False}, {"excludes": ["*_meta"]}, {"includes": ["text", "embedding"]}])
def test_index_without_metadata_in_source_is_rejected(source: dict[str, Any]) -> None:
    with raises_as_recorded(VectorIndexError):
        check_can_load_files(IndexState("docs", {"_source": source}, {}), "docs", ["embedding_meta"])


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
    with raises_as_recorded(VectorIndexError):
        check_strict_mapping(IndexState("docs", mappings, {}), documents)
    check_strict_mapping(IndexState("docs", mappings, {}), [*documents, {"text": "one that fits"}])
    check_strict_mapping(IndexState("docs", mappings | {"dynamic": "false"}, {}), documents)
