"""Indices with several vectors for each document, with byte vectors, and with other fields of the embedded text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from tests.conftest import also_opensearch2
from tests.engine.ingest_support import load, open_engine, sentences, write_jsonl
from tests.gateway import patient
from tests.gateway.bed import Bed, bed_of, ids
from tests.gateway.serving import gateway

TEXTS = [
    "a man plays guitar . the cat sleeps on the mat . a guitar sleeps on a man .",
    "the cat plays . the man sleeps on the guitar . a cat sleeps on the mat .",
    "a mat plays the guitar . the guitar plays the cat . the man plays on .",
]


@also_opensearch2
def test_each_query_returns_its_nearest_passage(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> None:
    documents = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
    options = {"passages": 12, "passage_overlap": 0}
    near: list[Json] = [{"match": {"semantic": text}} for text in ("the cat sleeps", "a guitar")]
    with bed_of(engine_url, tiny, tiny_encoder, documents, load=options, k=3, num_candidates=100) as bed:
        hits = bed.search({"query": {"bool": {"should": near}}})["hits"]["hits"]
    assert len(hits) == len(TEXTS)
    for hit in hits:
        passages = hit["inner_hits"]
        assert passages.keys() == {"embedding", "embedding_2"}
        best = [passages[name]["hits"]["hits"][0]["_score"] for name in passages]
        assert hit["_score"] == pytest.approx(sum(best), abs=1e-5)


PROPERTIES: Json = {
    "text": {"type": "text", "copy_to": "all", "fields": {"raw": {"type": "keyword"}}},
    "id": {"type": "keyword", "copy_to": "ids"},
    "all": {"type": "text"},
    "ids": {"type": "text"},
    "o": {"properties": {"headline": {"type": "alias", "path": "text"}}},
    "exact": {"type": "alias", "path": "text.raw"},
    "everything": {"type": "alias", "path": "all"},
    "number": {"type": "alias", "path": "ids"},
}
# No document has one of these words: every hit is semantic.
WORDS = "zebra quagga"


@pytest.fixture
def bed(engine_url: str, index_name: str, tiny: Path, tiny_encoder: Encoder, tmp_path: Path) -> Iterator[Bed]:
    with open_engine(engine_url) as engine:
        knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
        engine.create_index(index_name, {"settings": knn, "mappings": {"properties": PROPERTIES}})
        path = write_jsonl(tmp_path / "docs.jsonl", [{"id": one["id"], "text": one["text"]} for one in sentences(5)])
        assert load(engine_url, tiny_encoder, index_name, path, dead=tmp_path / "dead", id_field="id").indexed == 5
        engine.put_mapping(index_name, {"properties": {"vectors": {"type": "alias", "path": "embedding"}}})
    with gateway(engine_url, tiny) as url, patient.client(engine_url) as direct, patient.client(url) as through:
        yield Bed(direct, through, index_name)


def found(bed: Bed, query: Json, mode: str = "hybrid") -> int:
    return len(ids(bed.search({"query": query}, mode=mode)))


def test_full_text_query_of_the_embedded_text_becomes_hybrid(bed: Bed) -> None:
    for field in ("text", "all", "o.headline", "exact", "everything", "text.raw", "al*", "o.h*"):
        several = {"multi_match": {"query": WORDS, "fields": [f"{field}^2"]}}
        assert (found(bed, several), found(bed, several, "on")) == (5, 0), field
        assert "*" in field or found(bed, {"match": {field: WORDS}}) == 5, field
    for field in ("id", "ids", "number"):
        assert found(bed, {"match": {field: WORDS}}) == 0, field


def test_semantic_and_native_queries_name_the_text_and_the_vectors_by_another_field(bed: Bed) -> None:
    for field in ("text", "all", "o.headline", "everything", "embedding", "vectors"):
        assert found(bed, {"semantic": {"field": field, "query": WORDS}}, "on") == 5, field
    for field in ("embedding", "vectors"):
        builder = {"text_embedding": {"model_text": WORDS}}
        knn: Json = {"knn": {"field": field, "query_vector_builder": builder, "k": 5, "num_candidates": 10}}
        neural: Json = {"neural": {field: {"query_text": WORDS, "k": 5}}}
        assert found(bed, neural if bed.is_opensearch else knn, "on") == 5, field
