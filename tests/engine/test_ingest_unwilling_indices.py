"""Indices that do something else with a document than to keep it, or put it elsewhere than its id says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine
from es_sbert.errors import VectorIndexError
from tests.engine.ingest_support import contents, letters, load, open_engine, sentences, write_jsonl


@pytest.fixture(scope="module", params=["es8", "opensearch"])
def piped(request: pytest.FixtureRequest) -> Iterator[str]:
    """An engine that has ingest pipelines; one of them drops d1, writes d2 to another index and refuses d3."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    processors = [
        {"drop": {"if": "ctx.id == 'd1'"}},
        {"set": {"field": "_index", "value": "test-elsewhere", "if": "ctx.id == 'd2'"}},
        {"fail": {"message": "not this one", "if": "ctx.id == 'd3'"}},
    ]
    with open_engine(url) as engine:
        ask(engine, "PUT", "/_ingest/pipeline/test-meddles", {"processors": processors})
        yield url
        engine.delete_index("test-elsewhere")
        ask(engine, "DELETE", "/_ingest/pipeline/test-meddles")


def ask(engine: Engine, method: str, path: str, body: Any = None) -> Any:
    return engine._request(method, path, body=body)  # type: ignore[attr-defined]


def test_what_a_pipeline_keeps_from_the_index_is_a_dead_letter_at_once(
    piped: str, fresh_index: Any, encoder: Encoder, tmp_path: Path
) -> None:
    index = fresh_index(piped)
    with open_engine(piped) as engine:
        engine.create_index(index, {"settings": {"index.default_pipeline": "test-meddles"}})
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(6))
    summary = load(piped, encoder, index, path, dead=tmp_path / "dead", id_field="id")
    assert (summary.read, summary.indexed, summary.dead, summary.retries) == (6, 3, 3, 0)
    assert set(contents(piped, index)) == {"d0", "d4", "d5"}
    reasons = {letter["id"]: letter["reason"] for letter in letters(tmp_path / "dead")}
    assert reasons["d1"].startswith("an ingest pipeline drops it")
    assert reasons["d2"].startswith("an ingest pipeline writes it to test-elsewhere")
    assert "not this one" in reasons["d3"]


def test_documents_go_where_the_routing_of_their_alias_sends_them(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    alias = f"{index_name}-alias"
    engine.create_index(index_name, {"settings": {"number_of_shards": 3}, "mappings": {"_routing": {"required": True}}})
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(12))
    with pytest.raises(VectorIndexError, match="wants a routing"):
        load(engine_url, encoder, index_name, path, dead=tmp_path / "dead", id_field="id")
    engine.update_aliases([{"add": {"index": index_name, "alias": alias, "routing": "one"}}])
    summary = load(engine_url, encoder, alias, path, dead=tmp_path / "dead", id_field="id")
    assert (summary.indexed, engine.count(alias)) == (12, 12)
    write_jsonl(path, sentences(9))
    summary = load(engine_url, encoder, alias, path, dead=tmp_path / "dead", id_field="id", prune=True)
    assert (summary.unchanged, summary.pruned, engine.count(index_name)) == (9, 3, 9)


def test_embedding_in_place_does_not_cost_what_is_not_in_the_source(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    excludes = {"_source": {"excludes": ["body"]}, "properties": {"body": {"type": "keyword"}}}
    engine.create_index(index_name, {"mappings": excludes})
    engine.bulk(index_name, b'{"index":{"_id":"1"}}\n{"text":"a river","body":"the river is long"}\n')
    with pytest.raises(VectorIndexError, match="keeps no body in its _source"):
        load(engine_url, encoder, index_name, dead=tmp_path / "dead")
    engine.refresh(index_name)
    assert engine.count(index_name, {"exists": {"field": "body"}}) == 1


def test_a_vector_that_cannot_be_kept_is_said_to_be_lost(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    engine.create_index(index_name, {"mappings": {"_source": {"excludes": ["other"]}}})
    documents = sentences(2)
    path, dead = write_jsonl(tmp_path / "docs.jsonl", documents), tmp_path / "dead"
    load(engine_url, encoder, index_name, path, dead=dead, id_field="id", vectors=("embedding={text}", "other={text}"))
    documents[0]["price"] = 100
    write_jsonl(path, documents)
    summary = load(engine_url, encoder, index_name, path, dead=dead, id_field="id", vectors=("embedding",))
    assert (summary.updated, summary.unchanged) == (1, 1)
    # Elasticsearch 9.2+ brings vectors back that _source does not hold.
    lost = not engine.info.hides_vectors_in_source
    assert [note.startswith("1 documents lost their vector in other") for note in summary.notes] == [True] * lost
    assert engine.count(index_name, {"exists": {"field": "other"}}) == 2 - lost
