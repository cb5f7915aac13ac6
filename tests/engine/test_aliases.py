"""Aliases of several indices, lists of names and patterns: searches, loads through the write index, and rollovers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from es_sbert import SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, NotFoundError, UsageError, VectorIndexError
from es_sbert.index.vector_field import ensure_vector_field
from tests.engine.ingest_support import ask, load, put, sentences, write_jsonl
from tests.engine.vectors import request_for, state_of
from tests.raised import raises, raises_as_recorded

pytestmark = pytest.mark.one_engine

TEXT = "The river and the river met number 0."


@pytest.fixture(scope="module")
def encoder(tiny: Encoder) -> Encoder:
    return tiny


@dataclass(frozen=True)
class Rolling:
    """An alias of two indices: the older one with vectors, the newer one, its write index, as a rollover makes it."""

    engine: Engine
    url: str
    alias: str
    old: str
    new: str

    def write(self, index: str, *documents: dict[str, Any]) -> None:
        put(self.engine, index, documents)
        self.engine.refresh(index)


@pytest.fixture
def rolling(engine: Engine, index_name: str, encoder: Encoder, tmp_path: Path) -> Iterator[Rolling]:
    url, alias = engine.info.url, f"{index_name}-logs"
    old, new = f"{alias}-000001", f"{alias}-000002"
    try:
        load(url, encoder, old, write_jsonl(tmp_path / "old.jsonl", sentences(6)), dead=tmp_path / "dead",
             id_field="id", index_type="int8_hnsw")  # fmt: skip
        engine.update_aliases([{"add": {"index": old, "alias": alias, "is_write_index": True}}])
        ask(engine, "POST", f"/{alias}/_rollover")
        yield Rolling(engine, url, alias, old, new)
    finally:
        for index in (old, new):
            engine.delete_index(index)


def opened(rolling: Rolling, name: str | Sequence[str], encoder: Encoder) -> SemanticIndex:
    return SemanticIndex(name, rolling.engine, encoder=encoder)


def test_searches_go_on_over_the_indices_with_the_field(
    rolling: Rolling, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    """After a rollover without a template; the alias, a list and a pattern are the same search."""
    rolling.write(rolling.new, {"id": "late", "text": "The river is late."})
    for name in (rolling.alias, f"{rolling.old},{rolling.new}", f"{rolling.alias}-*", [rolling.old, rolling.new]):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "es_sbert"), opened(rolling, name, encoder) as index:
            result = index.search(TEXT, 10)
            assert {hit.index for hit in result} == {rolling.old}
            assert len(result) == 6
            assert result.hits[0].cosine == pytest.approx(1.0, abs=1e-5)  # the tiny model gives most texts one vector
            assert result.indices_without_field == (rolling.new,)
            assert index.search_vector(encoder.encode(TEXT, "query"), 10).indices_without_field == (rolling.new,)
            assert {hit.id for hit in index.similar_to("d0", 10)} == {f"d{number}" for number in range(1, 6)}
        assert f"{rolling.new} lacks the vector field embedding" in caplog.text
    with opened(rolling, rolling.old, encoder) as index:
        assert index.search(TEXT).indices_without_field == ()
    with raises(IndexMismatch, "vector_field", "embedding"):
        opened(rolling, rolling.new, encoder)


def test_hybrid_search_finds_words_in_indices_without_the_field(rolling: Rolling, encoder: Encoder) -> None:
    rolling.write(rolling.new, {"id": "late", "text": "A word that no other document has: hippopotamus."})
    with opened(rolling, rolling.alias, encoder) as index:
        result = index.hybrid("hippopotamus", 10)
        found = {hit.id: hit for hit in result}
        assert found["late"].cosine is None
        assert found["late"].lexical is not None
        assert found["d0"].cosine is not None
        assert result.indices_without_field == (rolling.new,)


def test_a_pattern_applies_the_filters_of_aliases(rolling: Rolling, encoder: Encoder) -> None:
    """As the engine does: the filter of an alias counts unless the index is meant by its own name too."""
    narrow = f"{rolling.alias}-narrow"
    by_price = {"range": {"price": {"lt": 0.25}}}
    rolling.engine.update_aliases([{"add": {"index": rolling.old, "alias": narrow, "filter": by_price}}])
    for name, count in ((f"{narrow}*", 2), (f"{narrow},{rolling.new}", 2), (f"{rolling.alias}-*", 6)):
        with opened(rolling, name, encoder) as index:
            assert len(index.search(TEXT, 10)) == count, name


@pytest.fixture
def tenants(engine: Engine, index_name: str, encoder: Encoder, tmp_path: Path) -> Rolling:
    """An index of five shards with documents of two routings; `alias` is the first tenant's, `new` the other's."""
    rows = [document | {"tenant": "one" if number % 2 else "two"} for number, document in enumerate(sentences(12))]
    engine.create_index(index_name, {"settings": {"index.number_of_shards": 5}})
    load(engine.info.url, encoder, index_name, write_jsonl(tmp_path / "rows.jsonl", rows), dead=tmp_path / "dead",
         id_field="id", routing_field="tenant")  # fmt: skip
    one, two = f"{index_name}-one", f"{index_name}-two"
    for alias, routing in ((one, "one"), (two, "two")):
        engine.update_aliases([{"add": {"index": index_name, "alias": alias, "routing": routing}}])
    return Rolling(engine, engine.info.url, one, index_name, two)


def test_the_routing_of_an_alias_limits_searches(tenants: Rolling, encoder: Encoder) -> None:
    """To the shards that the engine itself would search by this alias."""
    with opened(tenants, tenants.alias, encoder) as index:
        for result in (
            index.search(TEXT, 20),
            index.search(TEXT, 20, min_cosine=-1.0),
            index.hybrid("river", 20),
            index.search_vector(encoder.encode(TEXT, "query"), 20),
        ):
            assert {hit.source["tenant"] for hit in result} == {"one"}
            assert {hit.id for hit in result} == {f"d{number}" for number in range(1, 12, 2)}
        assert len(index.similar_to("d1", 20)) == 5
        with raises(NotFoundError, "id"):
            index.similar_to("d2")
    for names in ([tenants.alias, tenants.old], [tenants.alias, tenants.new]):
        with raises_as_recorded(IndexMismatch):
            opened(tenants, names, encoder)
    with raises_as_recorded(IndexMismatch):
        opened(tenants, f"{tenants.alias},{tenants.alias}-*", encoder)
    for name in (f"{tenants.old}-*e", f"{tenants.old}*"):  # to an alias that matches a pattern, no routing applies
        with opened(tenants, name, encoder) as index:
            assert len(index.search(TEXT, 20)) == 12


@pytest.mark.long
def test_the_filter_of_an_alias_of_a_data_stream_limits_searches(
    es9_full_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    """OpenSearch has no such aliases."""
    stream = fresh_index(es9_full_url)
    narrow = f"{stream}-narrow"
    with httpx.Client(base_url=es9_full_url, timeout=60, trust_env=False) as client:
        template: Json = {"index_patterns": [stream], "data_stream": {}, "priority": 500}
        client.put(f"/_index_template/{stream}", json=template).raise_for_status()
        # The build lacks the API that deletes a data stream; the server ends with the run.
        lines = [
            line
            for number, each in enumerate(sentences(6))
            for line in ({"create": {}}, each | {"@timestamp": 1000 + number, "number": number})
        ]
        body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        client.post(f"/{stream}/_bulk?refresh=true", content=body, headers={"content-type": "application/x-ndjson"})
        load(es9_full_url, encoder, stream, dead=tmp_path / "dead")
        action = {"add": {"index": stream, "alias": narrow, "filter": {"range": {"number": {"lt": 2}}}}}
        client.post("/_aliases", json={"actions": [action]}).raise_for_status()
        for name in (narrow, f"{narrow}*"):
            with SemanticIndex(name, es9_full_url, encoder=encoder) as index:
                assert {hit.source["number"] for hit in index.search(TEXT, 10)} == {0, 1}
                assert {hit.source["number"] for hit in index.hybrid("river", 10)} <= {0, 1}


def test_many_indices_are_searched_at_once(rolling: Rolling, encoder: Encoder) -> None:
    """More names than fit into a request line."""
    names = [f"{rolling.alias}-many-{'x' * 150}-{number:02}" for number in range(20)]
    try:
        for name in names:
            ensure_vector_field(rolling.engine, name, request_for(encoder, text="{text}"), shards=1, replicas=0)
        with opened(rolling, f"{rolling.alias}-*", encoder) as index:
            assert len(index.search(TEXT, 10)) == 6
            assert len(index.hybrid(TEXT, 10)) == 6
    finally:
        for name in names:
            rolling.engine.delete_index(name)


def test_loads_through_the_alias_are_refused_with_the_write_index(
    rolling: Rolling, encoder: Encoder, tmp_path: Path
) -> None:
    """A document that the older index holds would be there twice."""
    path, dead = write_jsonl(tmp_path / "new.jsonl", sentences(1)), tmp_path / "dead"
    with raises_as_recorded(VectorIndexError):
        load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")
    with raises_as_recorded(IndexMismatch):
        ensure_vector_field(rolling.engine, rolling.alias, request_for(encoder))
    assert "embedding" not in state_of(rolling.engine, rolling.new).mappings.get("properties", {})
    with raises_as_recorded(VectorIndexError):
        load(rolling.url, encoder, rolling.alias, dead=dead)
    assert load(rolling.url, encoder, rolling.new, path, dead=dead, id_field="id").indexed == 1
    reader = {"alias": rolling.alias, "is_write_index": False}
    rolling.engine.update_aliases([{"add": {"index": index} | reader} for index in (rolling.old, rolling.new)])
    with raises_as_recorded(IndexMismatch):
        load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")
    rolling.engine.update_aliases([{"remove": {"index": rolling.new, "alias": rolling.alias}}])
    with raises_as_recorded(IndexMismatch):
        load(rolling.url, encoder, rolling.alias, path, dead=dead, id_field="id")


def test_semantic_index_deletes_through_an_alias(rolling: Rolling, encoder: Encoder, tmp_path: Path) -> None:
    with opened(rolling, rolling.alias, encoder) as index:
        rolling.write(
            rolling.new, {"id": "d1", "text": "The same id in two indices."}, {"id": "n1", "text": "A storm."}
        )
        assert index.delete(["d1", "n1", "d2", "d-none"]) == 4
        assert {hit.id for hit in index.search(TEXT, 10)} == {"d0", "d3", "d4", "d5"}
        with raises_as_recorded(VectorIndexError):
            index.embed_missing(dead_letters=tmp_path / "dead")
    with opened(rolling, f"{rolling.alias}-*", encoder) as pattern:
        for write in (lambda: pattern.add([{"text": "a"}]), lambda: pattern.delete("d0")):
            with raises_as_recorded(UsageError):
                write()
