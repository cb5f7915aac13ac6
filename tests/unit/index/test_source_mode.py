"""How an index keeps documents, from settings and mappings as the engines return them."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.index_state import IndexState
from es_sbert.errors import VectorIndexError
from es_sbert.index.source_mode import (
    ListForm,
    NameForm,
    SourceMode,
    check_accepts_updates,
    check_can_hold_vectors,
    fields_missing_from_source,
    inexact_text_fields,
    is_in_source,
    list_forms,
    name_form,
    source_mode,
    unmapped_text_fields,
)
from es_sbert.index.text_template import TextFieldError, TextTemplate


def index(source: dict[str, Any] | None = None, **settings: str) -> IndexState:
    mappings = {} if source is None else {"_source": source}
    return IndexState("docs", mappings, {f"index.{name.replace('__', '.')}": text for name, text in settings.items()})


@pytest.mark.parametrize(
    ("state", "mode"),
    [
        (index(), SourceMode.STORED),
        (index({"enabled": True}), SourceMode.STORED),
        (index({"excludes": ["a"]}), SourceMode.STORED),
        (index({"enabled": False}), SourceMode.DISABLED),
        (index(mapping__source__mode="disabled"), SourceMode.DISABLED),
        (index(mapping__source__mode="SYNTHETIC"), SourceMode.SYNTHETIC),
        (index({"mode": "synthetic"}), SourceMode.SYNTHETIC),
        (index({"mode": "disabled"}), SourceMode.DISABLED),
        (index(mode="logsdb"), SourceMode.SYNTHETIC),
        (index(mode="LogsDB"), SourceMode.SYNTHETIC),
        (index(mode="time_series"), SourceMode.SYNTHETIC),
        (index(mode="logsdb", mapping__source__mode="stored"), SourceMode.STORED),
        (index(mode="columnar"), SourceMode.SYNTHETIC),
        (index(mode="columnar", mapping__source__mode="columnar_stored"), SourceMode.SYNTHETIC),
        (index(mode="lookup"), SourceMode.STORED),
        (index(mode="vectordb_document"), SourceMode.STORED),
        (index(derived_source__enabled="true"), SourceMode.DERIVED),
        (index(derived_source__enabled="false"), SourceMode.STORED),
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


SYNTHETIC: dict[str, Any] = {"index.mapping.source.mode": "synthetic"}
KEPT = SYNTHETIC | {"index.mapping.synthetic_source_keep": "arrays"}
KEYWORD: dict[str, Any] = {"type": "keyword"}
SHORT = KEYWORD | {"ignore_above": 10}
TEXT: dict[str, Any] = {"type": "text"}


def mapped(field: dict[str, Any] | None, settings: dict[str, Any], **mappings: Any) -> IndexState:
    properties = {} if field is None else {"f": field}
    return IndexState("docs", mappings | {"properties": properties}, settings)


@pytest.mark.parametrize(
    ("field", "synthetic", "kept"),
    [
        (KEYWORD, ListForm(True), None),
        (SHORT, ListForm(True, 10), ListForm(False, 10)),
        (KEYWORD | {"store": True}, None, None),
        (KEYWORD | {"doc_values": False}, None, None),
        (KEYWORD | {"copy_to": "all"}, None, None),
        (KEYWORD | {"synthetic_source_keep": "arrays"}, None, None),
        (SHORT | {"synthetic_source_keep": "all"}, None, None),
        (TEXT, None, None),
        (TEXT | {"fields": {"raw": SHORT}}, ListForm(True, 10), None),
        (TEXT | {"fields": {"raw": KEYWORD}, "store": True}, None, None),
        (TEXT | {"fields": {"raw": KEYWORD | {"doc_values": False}}}, None, None),
        (TEXT | {"fields": {"raw": KEYWORD | {"store": True}}}, None, None),
        (None, ListForm(True, 256), None),
    ],
)
def test_form_of_a_list_follows_the_mapping(
    field: dict[str, Any] | None, synthetic: ListForm | None, kept: ListForm | None
) -> None:
    """As Elasticsearch 8.19, 9.4 and 9.5 return lists of strings."""
    assert list_forms(["f"], mapped(field, SYNTHETIC)).get("f") == synthetic
    assert list_forms(["f"], mapped(field, KEPT)).get("f") == kept
    assert list_forms(["f"], mapped(field, {})) == {}


def test_form_of_a_list_in_an_object() -> None:
    for inner in ({"properties": {"g": KEYWORD}}, {"type": "nested", "properties": {"g": KEYWORD}}):
        assert list_forms(["f.g"], mapped(inner, SYNTHETIC)) == {"f.g": ListForm(True)}
        assert list_forms(["f.g"], mapped(inner | {"synthetic_source_keep": "all"}, SYNTHETIC)) == {}
        assert list_forms(["f.g"], mapped(inner | {"enabled": False}, SYNTHETIC)) == {}
    flat = IndexState("docs", {"subobjects": False, "properties": {"f.g": KEYWORD}}, SYNTHETIC)
    assert list_forms(["f.g"], flat) == {"f.g": ListForm(True)}
    assert list_forms(["f.g"], mapped(None, SYNTHETIC, dynamic=False)) == {}
    assert list_forms(["f"], mapped(KEYWORD, {"index.mode": "logsdb"})) == {"f": ListForm(False, 8191)}


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (TEXT, None), (KEYWORD, None), ({"properties": {}}, None), (None, None),
        ({"type": "date"}, "is of type `date`"), ({"type": "ip"}, "is of type `ip`"),
        (KEYWORD | {"normalizer": "lowercase"}, "has a `normalizer`"),
        (KEYWORD | {"null_value": ""}, "has a `null_value`"),
        (TEXT | {"fields": {"raw": KEYWORD | {"normalizer": "lowercase"}}}, "has a `normalizer`"),
        ({"type": "date", "synthetic_source_keep": "all"}, None),
    ],
)  # fmt: skip
def test_string_that_comes_back_in_another_form_is_named(field: dict[str, Any] | None, reason: str | None) -> None:
    assert inexact_text_fields(["f"], mapped(field, SYNTHETIC)).get("f") == reason
    assert inexact_text_fields(["f"], mapped(field, {})) == {}


def test_text_of_a_list_is_the_one_that_the_index_returns() -> None:
    template = TextTemplate.parse("{f}").with_list_forms({"f": ListForm(True, 10)})
    for values in (["b", "a", "b"], ["a", "b"], [["b"], None, "a", " "]):
        assert template.render({"f": values}) == "a\nb"
    assert template.render({"f": ["b", "b"]}) == template.render({"f": "b"}) == "b"
    assert template.render({"f": "x" * 11}) == "x" * 11
    with pytest.raises(TextFieldError, match="more than 10 characters"):
        template.render({"f": ["x" * 11, "a"]})
    assert TextTemplate.parse("{f}").with_list_forms({"f": ListForm(False, 10)}).render({"f": ["b", "a"]}) == "b\na"


def test_index_without_updates_or_vectors_is_rejected() -> None:
    for mode in ("time_series", "columnar", "logsdb_columnar"):
        with pytest.raises(VectorIndexError, match=f"`index.mode: {mode}`"):
            check_accepts_updates(index(mode=mode))
    for mode in ("standard", "logsdb", "lookup", "vectordb_document"):
        check_accepts_updates(index(mode=mode))
    with pytest.raises(VectorIndexError, match="derived_source"):
        check_can_hold_vectors(index(derived_source__enabled="true"))


def test_synthetic_source_without_objects_takes_no_partial_updates() -> None:
    synthetic = {"index.mapping.source.mode": "synthetic"}
    for subobjects, lost in ((False, True), ("false", True), ("auto", True), (True, False), ("true", False)):
        state = IndexState("docs", {"subobjects": subobjects}, dict(synthetic))
        assert (fields_missing_from_source(state, ()) is not None) is lost
    assert fields_missing_from_source(IndexState("docs", {"subobjects": False}, {}), ()) is None
    assert name_form(IndexState("docs", {"subobjects": False}, {})) is NameForm.AS_SENT
    assert name_form(IndexState("docs", {}, dict(synthetic))) is NameForm.OBJECTS


def test_unmapped_text_fields_are_those_that_dynamic_mapping_will_map() -> None:
    synthetic = {"index.mapping.source.mode": "synthetic"}
    mappings = {
        "properties": {
            "known": {"type": "text"},
            "open": {"properties": {}},
            "closed": {"dynamic": False, "properties": {}},
            "kept": {"synthetic_source_keep": "all", "properties": {}},
        }
    }
    names = ["known", "new", "open.new", "closed.new", "kept.new"]
    assert unmapped_text_fields(names, IndexState("docs", mappings, dict(synthetic))) == ["new", "open.new"]
    assert unmapped_text_fields(names, IndexState("docs", mappings | {"dynamic": "runtime"}, dict(synthetic))) == []
    assert unmapped_text_fields(names, IndexState("docs", mappings, {})) == []
