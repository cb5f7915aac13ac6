"""Saved objects: by the products' own schemas, complete, stable, and as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.diagnostics.saved_objects import (
    DashboardProduct,
    SavedObject,
    load_objects,
    search_objects,
    to_ndjson,
)
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
from tests.dashboards.checks import check_objects

GOLDEN = Path(__file__).parents[1] / "golden/dashboards"
MODEL = VectorFieldMeta(
    fingerprint="0f" * 32, model="all-MiniLM-L6-v2", dimensions=384, index_type="hnsw", text="{title}. {body.en}"
)
PASSAGES = MODEL.model_copy(update={"passages": ChunkRules.from_tokens(64), "text": "{body.en}"})


def _everything(product: DashboardProduct, index: str = "docs", **fields: VectorFieldMeta) -> list[SavedObject]:
    searches = search_objects(product, "es-sbert-searches-*")
    return [*load_objects(product, index, fields or {"embedding": MODEL}), *searches]


def _lines(objects: list[SavedObject], product: DashboardProduct) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in to_ndjson(objects, product).splitlines()]


@pytest.mark.parametrize("product", DashboardProduct)
def test_objects_match_golden_files(product: DashboardProduct) -> None:
    assert to_ndjson(_everything(product), product) == (GOLDEN / f"{product}.ndjson").read_bytes()


@pytest.mark.parametrize("product", DashboardProduct)
def test_objects_match_schemas_and_references_resolve(product: DashboardProduct) -> None:
    check_objects(product, _lines(_everything(product), product))
    check_objects(product, _lines(_everything(product, title_vector=MODEL, body_vector=PASSAGES), product))


_NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_äß“{}&", min_size=1, max_size=40)


@given(_NAMES, _NAMES)
def test_object_ids_are_stable_per_index(one: str, other: str) -> None:
    ids = [
        {saved.id for saved in load_objects(DashboardProduct.KIBANA, name, {"embedding": MODEL})}
        for name in (one, other)
    ]
    assert ids[0] == {saved.id for saved in load_objects(DashboardProduct.DASHBOARDS, one, {"embedding": MODEL})}
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


@pytest.mark.parametrize("product", DashboardProduct)
def test_names_of_data_views_differ(product: DashboardProduct) -> None:
    objects = load_objects(product, "docs", {"embedding": MODEL, "parts": PASSAGES})
    views = [saved for saved in objects if saved.type == "index-pattern"]
    assert len(views) == 3
    # What each product lists: Kibana names, OpenSearch Dashboards patterns.
    shown = [view.attributes["name" if product is DashboardProduct.KIBANA else "title"] for view in views]
    assert len(set(shown)) == len(shown)
    # Every pattern selects the index and nothing else.
    for view in views:
        index, *others = view.attributes["title"].split(",")
        assert index == "docs"
        assert all(other.startswith("*_") for other in others)


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
