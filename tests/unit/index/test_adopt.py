"""Which vector fields of other programs can be adopted, by their mappings alone, and the report of an adoption.

ES_SBERT_UPDATE_GOLDEN=1 rewrites the golden files of the report.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError, IndexMismatch, UsageError
from es_sbert.index.adopt import AdoptableField, AdoptionReport, ComparedDocument, MetadataCounts, adoptable_field
from es_sbert.index.mapping import IndexType, VectorFieldMeta
from tests.raised import raises, raises_as_recorded

ELASTICSEARCH = EngineInfo(EngineType.ELASTICSEARCH, (9, 3, 0), "http://localhost:9200")
OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200")
DENSE: Json = {
    "type": "dense_vector", "dims": 384, "index": True, "similarity": "cosine", "index_options": {"type": "hnsw"},
}  # fmt: skip
KNN: Json = {
    "type": "knn_vector",
    "dimension": 384,
    "method": {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil", "parameters": {}},
}


def look(
    info: EngineInfo,
    property: Json,
    *,
    field: str = "vector",
    settings: dict[str, str] | None = None,
    more: Json | None = None,
    **mappings: Any,
) -> AdoptableField:
    usual = {"index.knn": "true"} if info is OPENSEARCH else {}
    properties = {"vector": property, "body": {"type": "text"}} | (more or {})
    state = IndexState("docs", {"properties": properties} | mappings, usual | (settings or {}))
    return adoptable_field(info, state, field, "{body}")


def with_encoder(encoder: Json) -> Json:
    return KNN | {"method": KNN["method"] | {"parameters": {"encoder": encoder}}}


def faiss(encoder: str, **parameters: Any) -> Json:
    mapping = with_encoder({"name": encoder, "parameters": parameters})
    return mapping | {"method": mapping["method"] | {"engine": "faiss"}}


@pytest.mark.parametrize("index_type", list(IndexType))
def test_every_elasticsearch_index_type_is_recognized(index_type: IndexType) -> None:
    found = look(ELASTICSEARCH, DENSE | {"index_options": {"type": str(index_type), "m": 32}})
    meta = found.meta("f" * 32, "model", 384)
    assert (meta.index_type, meta.dimensions, meta.text, meta.model) == (index_type, 384, "{body}", "model")
    with raises(IndexMismatch, "model", "model"):
        found.meta("f" * 32, "model", 768)


@pytest.mark.parametrize(
    ("property", "settings", "index_type"),
    [
        (KNN, {}, IndexType.HNSW),
        (with_encoder({"name": "sq", "parameters": {"bits": 7}}), {}, IndexType.INT8_HNSW),
        # Before OpenSearch 3.6, seven bits are the default.
        (with_encoder({"name": "sq"}), {}, IndexType.INT8_HNSW),
        (KNN | {"mode": "in_memory"}, {}, IndexType.HNSW),
        (KNN, {"index.version.created": "137308127"}, IndexType.HNSW),  # 3.9.3
        (KNN | {"compression_level": "1x"}, {"index.version.created": "137317927"}, IndexType.HNSW),
        ({"type": "knn_vector", "dimension": 384, "space_type": "cosinesimil"}, {"index.knn": "false"}, IndexType.FLAT),
    ],
)
def test_opensearch_index_types_are_recognized(property: Json, settings: dict[str, str], index_type: IndexType) -> None:
    assert look(OPENSEARCH, property, settings=settings).entry.index_type == index_type


def refused(kind: type[EsSbertError], *args: Any, **options: Any) -> None:
    with raises_as_recorded(kind):
        look(*args, **options)


@pytest.mark.parametrize(
    ("info", "property"),
    [
        (ELASTICSEARCH, DENSE | {"similarity": "l2_norm"}),
        (ELASTICSEARCH, DENSE | {"index": False}),
        (ELASTICSEARCH, DENSE | {"element_type": "bit"}),
        (OPENSEARCH, {"type": "knn_vector", "dimension": 384}),
        (OPENSEARCH, KNN | {"method": KNN["method"] | {"engine": "faiss"}}),
        (OPENSEARCH, KNN | {"data_type": "binary"}),
        (OPENSEARCH, with_encoder({"name": "pq"})),
        (OPENSEARCH, KNN | {"compression_level": "32x"}),
        (OPENSEARCH, faiss("sq", bits=16)),
        (OPENSEARCH, KNN | {"method": KNN["method"] | {"name": "ivf", "engine": "faiss"}}),
        # In 3.6 this compresses to one bit.
        (OPENSEARCH, KNN | {"method": KNN["method"] | {"name": "flat"}}),
    ],
)
def test_field_that_cannot_be_searched_is_rejected(info: EngineInfo, property: Json) -> None:
    refused(IndexMismatch, info, property)


def test_opensearch_graph_of_a_future_version_needs_a_stated_compression() -> None:
    refused(
        IndexMismatch,
        OPENSEARCH,
        KNN,
        settings={"index.version.created": "137317827"},  # 3.10.0
    )


def test_non_vector_fields_are_rejected() -> None:
    refused(IndexMismatch, ELASTICSEARCH, {"type": "text"})
    refused(IndexMismatch, ELASTICSEARCH, {"properties": {}})
    refused(IndexMismatch, OPENSEARCH, DENSE)
    nested = {"type": "nested", "properties": {"vector": DENSE}}
    refused(IndexMismatch, ELASTICSEARCH, nested)
    pages: Json = {"type": "nested", "properties": {"page": {"type": "long"}}}
    refused(IndexMismatch, ELASTICSEARCH, pages)
    unsized = DENSE | {"dims": None}
    refused(IndexMismatch, ELASTICSEARCH, unsized)


def test_unknown_or_nested_field_is_rejected() -> None:
    refused(IndexMismatch, ELASTICSEARCH, DENSE, field="embedding")
    refused(IndexMismatch, ELASTICSEARCH, {"type": "text"}, field="x")
    inside: Json = {"ml": {"properties": {"vector": DENSE}}}
    refused(UsageError, ELASTICSEARCH, DENSE, field="ml.vector", more=inside)


def test_conflicting_metadata_field_is_rejected() -> None:
    there: Json = {"vector_meta": {"type": "keyword"}}
    refused(IndexMismatch, ELASTICSEARCH, DENSE, more=there)
    there = {"vector_meta": {"properties": {"by": {"type": "keyword"}}}}
    assert look(ELASTICSEARCH, DENSE, more=there).name == "vector"


@pytest.mark.parametrize("block", ["write", "read_only", "read_only_allow_delete", "metadata"])
def test_index_with_a_block_is_refused_before_its_mapping_changes(block: str) -> None:
    with raises_as_recorded(IndexMismatch):
        look(ELASTICSEARCH, DENSE, settings={f"index.blocks.{block}": "true"})


GOLDEN = Path(__file__).parents[1] / "golden" / "adoption"
META = VectorFieldMeta(
    fingerprint="f" * 32, model="all-MiniLM-L6-v2", dimensions=384, index_type="hnsw", text="{title}\n{body}"
)


def report(
    failing: int, of: int, written: MetadataCounts | None = None, *, cosine: float = 0.4, without_text: int = 0
) -> AdoptionReport:
    cosines = [*(cosine + n / 1000 for n in range(failing)), *(1.0 - n / 1e6 for n in range(of - failing))]
    names = ["bad\x1b[2J", *(f"d{row}" for row in range(1, of))]
    compared = [ComparedDocument((name, None), value, name == "d1") for name, value in zip(names, cosines, strict=True)]
    compared.sort(key=lambda one: one.cosine)
    return AdoptionReport("docs-1", "vector", META, 1200, 1100, 1100, 0.999, compared, without_text, written)


TOO_MANY = {f"r{n}": "(400) document_parsing_exception: too many fields" for n in range(12)}
REPORTS = {
    "adopted-with-failing": report(
        3, 300, MetadataCounts(adopted=1080, without_text=3, changed=["c1", "c2"], refused=TOO_MANY)
    ),
    "adopted": report(0, 5, MetadataCounts(adopted=5)),
    "dry-run": report(1, 300),
    "refused": report(290, 300, cosine=-0.05, without_text=4),
}


@pytest.mark.parametrize("name", REPORTS)
def test_report_and_exit_code(name: str) -> None:
    text = "\n".join(REPORTS[name].lines("docs")) + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("ES_SBERT_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
    assert all(line.isprintable() for line in text.splitlines())
    assert REPORTS[name].exit_code == int(name in ("refused", "adopted-with-failing"))


def test_json_report_lists_every_failing_document() -> None:
    plain = REPORTS["adopted-with-failing"].as_json()
    assert [one["id"] for one in plain["sample"]["failing"]] == ["bad\x1b[2J", "d1", "d2"]
    assert (plain["accepted"], plain["meta"]["text"], plain["written"]["adopted"]) == (True, "{title}\n{body}", 1080)
    routed = ComparedDocument(("a", "r"), 0.12345678, False).as_json()
    assert routed == {"id": "a", "routing": "r", "cosine": 0.123457, "truncated": False}


def test_sample_is_accepted_if_99_percent_reach_the_minimum() -> None:
    assert [report(failing, 100).is_accepted for failing in (0, 1, 2)] == [True, True, False]
    # Accepted, but the vector of a document is not adopted.
    assert report(0, 100, MetadataCounts(adopted=99, changed=["d1"])).exit_code == 1
