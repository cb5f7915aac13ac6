"""Saved objects: by the products' own schemas, complete, stable, and as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.diagnostics.saved_objects import DashboardProduct, SavedObject, load_objects, search_objects, to_ndjson
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


@settings(max_examples=20)
@given(_NAMES)
def test_any_index_name_gives_valid_objects(index: str) -> None:
    for product in DashboardProduct:
        check_objects(product, _lines(_everything(product, index), product))
