"""Saved objects: by the products' own schemas, complete, stable, and as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.dashboards.build_dashboards import (
    is_date_field,
    load_dashboard_objects,
    reports_view,
    search_dashboard_objects,
    view_fields,
)
from es_sbert.dashboards.saved_objects import DashboardProduct, SavedObject, to_ndjson
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
from tests.dashboards.checks import check_objects

GOLDEN = Path(__file__).parents[1] / "golden/dashboards"
MODEL = VectorFieldMeta(
    fingerprint="0f" * 32, model="all-MiniLM-L6-v2", dimensions=384, index_type="hnsw", text="{title}. {body.en}"
)
PASSAGES = MODEL.model_copy(update={"passages": ChunkRules.from_tokens(64), "text": "{body.en}"})


def _everything(product: DashboardProduct, index: str = "docs", **fields: VectorFieldMeta) -> list[SavedObject]:
    reports = reports_view(product, "es-sbert-loads")
    searches = search_dashboard_objects(product, "es-sbert-searches-*")
    return [reports, *load_dashboard_objects(product, index, fields or {"embedding": MODEL}, reports), *searches]


def _lines(objects: list[SavedObject], product: DashboardProduct) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in to_ndjson(objects, product).splitlines()]


@pytest.mark.parametrize("product", DashboardProduct)
def test_objects_match_golden_files(product: DashboardProduct) -> None:
    assert to_ndjson(_everything(product), product) == (GOLDEN / f"{product}.ndjson").read_bytes()


@pytest.mark.parametrize("product", DashboardProduct)
def test_objects_match_schemas_and_references_resolve(product: DashboardProduct) -> None:
    check_objects(product, _lines(_everything(product), product))
    check_objects(product, _lines(_everything(product, title_vector=MODEL, body_vector=PASSAGES), product))


@pytest.mark.parametrize("product", DashboardProduct)
def test_without_reports_no_object_needs_the_loads_view(product: DashboardProduct) -> None:
    lines = _lines(load_dashboard_objects(product, "docs", {"embedding": MODEL}, None), product)
    check_objects(product, lines)
    assert not any("loads" in line["attributes"]["title"] for line in lines)


_NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_äß“{}&", min_size=1, max_size=40)


@given(_NAMES, _NAMES)
def test_object_ids_are_stable_per_index(one: str, other: str) -> None:
    ids = [
        {saved.id for saved in load_dashboard_objects(DashboardProduct.KIBANA, name, {"embedding": MODEL}, None)}
        for name in (one, other)
    ]
    assert ids[0] == {
        saved.id for saved in load_dashboard_objects(DashboardProduct.DASHBOARDS, one, {"embedding": MODEL}, None)
    }
    assert (ids[0] == ids[1]) == (one == other)
    assert one == other or not ids[0] & ids[1]


@settings(max_examples=20)
@given(_NAMES)
def test_any_index_name_gives_valid_objects(index: str) -> None:
    for product in DashboardProduct:
        check_objects(product, _lines(_everything(product, index), product))


def test_views_hide_vectors_and_label_models() -> None:
    views = [
        saved
        for saved in _everything(DashboardProduct.KIBANA, one=MODEL, parts=PASSAGES)
        if saved.type == "index-pattern"
    ]
    view = next(view for view in views if view.attributes["title"] == "docs" and "timeFieldName" not in view.attributes)
    assert orjson.loads(view.attributes["sourceFilters"]) == [
        {"value": "one"},
        {"value": "parts"},
        {"value": "parts.*"},
    ]
    lookup = orjson.loads(view.attributes["fieldFormatMap"])["one_meta.fingerprint"]
    assert lookup["params"]["lookupEntries"] == [{"key": MODEL.fingerprint, "value": "all-MiniLM-L6-v2 (0f0f0f0f)"}]
    timed = {view.attributes.get("timeFieldName") for view in views} - {None}
    assert timed == {"one_meta.embedded_at", "parts_meta.embedded_at", "@timestamp"}


def test_saved_search_shows_texts_first_and_no_vector() -> None:
    [search] = [saved for saved in _everything(DashboardProduct.KIBANA) if saved.type == "search"]
    assert search.attributes["columns"] == [
        "_score",
        "title",
        "body.en",
        "embedding_meta.tokens",
        "embedding_meta.truncated",
        "embedding_meta.embedded_at",
        "embedding_meta.fingerprint",
    ]
    # Named, because a view with a time field is sorted by it otherwise, and the best hits are not first.
    assert search.attributes["sort"] == [["_score", "desc"]]


def _views(objects: list[SavedObject]) -> list[SavedObject]:
    return [saved for saved in objects if saved.type == "index-pattern"]


@pytest.mark.parametrize("time_field", [None, "published"])
@pytest.mark.parametrize("product", DashboardProduct)
def test_names_of_data_views_differ(product: DashboardProduct, time_field: str | None) -> None:
    objects = load_dashboard_objects(
        product, "docs", {"embedding": MODEL, "parts": PASSAGES}, None, time_field=time_field
    )
    views = _views(objects)
    assert len(views) == (3 if time_field is None else 4)
    # What each product lists: Kibana names, OpenSearch Dashboards patterns.
    shown = [view.attributes["name" if product is DashboardProduct.KIBANA else "title"] for view in views]
    assert len(set(shown)) == len(shown)
    # Every pattern selects the index and nothing else.
    for view in views:
        index, *others = view.attributes["title"].split(",")
        assert index == "docs"
        assert all(other.startswith("*_") for other in others)


@pytest.mark.parametrize("product", DashboardProduct)
def test_time_field_is_that_of_the_view_to_search_in_alone(product: DashboardProduct) -> None:
    plain = load_dashboard_objects(product, "docs", {"embedding": MODEL}, None)
    timed = load_dashboard_objects(product, "docs", {"embedding": MODEL}, None, time_field="published")
    check_objects(product, _lines(timed, product))
    assert timed[0].id == plain[0].id  # installing again with another time field replaces the view
    assert "timeFieldName" not in plain[0].attributes
    assert timed[0].attributes["timeFieldName"] == "published"
    by_id = {view.id: view for view in _views(timed)}
    # One to search in; the dashboard lists all documents.
    search, listed = [saved for saved in timed if saved.type == "search"]
    assert search.references[0]["id"] == timed[0].id
    assert "timeFieldName" not in by_id[listed.references[0]["id"]].attributes
    assert search.title != listed.title
    on_dashboard = {reference["id"] for reference in timed[-1].references}
    assert listed.id in on_dashboard
    assert search.id not in on_dashboard
    times = {
        by_id[chart.references[0]["id"]].attributes.get("timeFieldName")
        for chart in timed
        if chart.type == "visualization"
    }
    # The counts of the dashboard are of all documents, not of those of its last 30 days.
    assert times == {None, "embedding_meta.embedded_at"}


CAPABILITIES: dict[str, Any] = {
    "title": {"text": {"type": "text", "searchable": True, "aggregatable": False}},
    "title.raw": {"keyword": {"type": "keyword", "searchable": True, "aggregatable": True}},
    "embedding": {"knn_vector": {"type": "knn_vector", "searchable": True, "aggregatable": False}},
    "embedding_meta": {"object": {"type": "object", "searchable": False, "aggregatable": False}},
    "embedding_meta.tokens": {"integer": {"type": "integer", "searchable": True, "aggregatable": True}},
    "parts": {"nested": {"type": "nested", "searchable": False, "aggregatable": False}},
    "parts.start": {"integer": {"type": "integer", "searchable": False, "aggregatable": False}},
    "at": {
        "date": {"type": "date", "searchable": True, "aggregatable": True, "indices": ["a"]},
        "date_nanos": {"type": "date_nanos", "searchable": True, "aggregatable": True, "indices": ["b"]},
    },
    "mixed": {
        "long": {"type": "long", "searchable": True, "aggregatable": True, "indices": ["a"]},
        "keyword": {"type": "keyword", "searchable": True, "aggregatable": True, "indices": ["b"]},
    },
    "_id": {"_id": {"type": "_id", "searchable": True, "aggregatable": True}},
    "_index": {"_index": {"type": "_index", "searchable": True, "aggregatable": True}},
    "_source": {"_source": {"type": "_source", "searchable": False, "aggregatable": False}},
    "_seq_no": {"_seq_no": {"type": "_seq_no", "searchable": True, "aggregatable": True}},
}


def test_fields_of_a_view_are_those_that_opensearch_dashboards_makes() -> None:
    fields = {field["name"]: field for field in view_fields(CAPABILITIES)}
    assert list(fields) == sorted(fields)
    assert {name: field["type"] for name, field in fields.items()} == {
        "_id": "string", "_index": "string", "_score": "number", "_source": "_source", "_type": "string",
        "at": "date", "embedding": "unknown", "embedding_meta.tokens": "number", "mixed": "conflict",
        "parts.start": "number", "title": "string", "title.raw": "string",
    }  # fmt: skip
    # Without one of these, Dashboards asks for the fields again and saves them.
    assert all({"searchable", "aggregatable", "readFromDocValues"} <= field.keys() for field in fields.values())
    assert [name for name, field in fields.items() if field["readFromDocValues"]] == [
        "at",
        "embedding_meta.tokens",
        "title.raw",
    ]
    assert fields["title.raw"]["subType"] == {"multi": {"parent": "title"}}
    assert fields["parts.start"]["subType"] == {"nested": {"path": "parts"}}
    assert "subType" not in fields["embedding_meta.tokens"]
    assert fields["mixed"]["conflictDescriptions"] == {"long": ["a"], "keyword": ["b"]}
    assert (fields["_score"]["searchable"], fields["_id"]["searchable"]) == (False, True)


def test_fields_are_stored_for_opensearch_dashboards_alone() -> None:
    listed = view_fields(CAPABILITIES)
    for product in DashboardProduct:
        objects = load_dashboard_objects(product, "docs", {"embedding": MODEL}, None, listed=listed)
        objects = [*objects, reports_view(product, "loads", listed)]
        objects += search_dashboard_objects(product, "searches-*", listed)
        check_objects(product, _lines(objects, product))
        for view in _views(objects):
            if product is DashboardProduct.KIBANA:
                assert "fields" not in view.attributes
            else:
                assert orjson.loads(view.attributes["fields"]) == listed


def test_only_dates_can_be_time_fields() -> None:
    assert [name for name in CAPABILITIES if is_date_field(CAPABILITIES, name)] == ["at"]
    assert not is_date_field(CAPABILITIES, "no such field")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line["attributes"].update(unknown=1),
        lambda line: line["references"].append({"name": "x", "type": "index-pattern", "id": "nowhere"}),
        lambda line: line["references"].clear(),
        lambda line: line.pop("typeMigrationVersion"),
        lambda line: line["attributes"].update(
            visState=line["attributes"]["visState"].replace('"enabled":true', '"enabled":1')
        ),
    ],
)
def test_check_objects_detects_errors(spoil: Any) -> None:
    lines = _lines(_everything(DashboardProduct.KIBANA), DashboardProduct.KIBANA)
    spoil(next(line for line in lines if line["type"] == "visualization"))
    with pytest.raises((AssertionError, jsonschema.ValidationError)):
        check_objects(DashboardProduct.KIBANA, lines)
