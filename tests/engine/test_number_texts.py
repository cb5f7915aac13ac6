"""Numbers such as 1.10 keep their text in the terms of an index and in `_source`, whichever command writes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch

from es_sbert import SemanticIndex
from es_sbert.analysis import read_index
from es_sbert.analysis.field_writer import FieldWriter
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import IndexMismatch
from es_sbert.index.adopt import adopt_vectors
from es_sbert.index.whole_documents import rewrites_numbers
from es_sbert.migration import document_copy
from es_sbert.migration.alias_swap import cancel_migration
from es_sbert.migration.migrate import migrate_index
from tests.engine.ingest_support import contents, letters, load
from tests.engine.migration.support import Place, expect_no_stragglers, indices_of
from tests.engine.vectors import state_of, vector_mapping, vector_value
from tests.raised import raises_as_recorded

pytestmark = pytest.mark.one_engine

KEYWORD: Json = {"type": "keyword"}
PROPERTIES: Json = {
    "text": {"type": "text"},
    "code": KEYWORD,
    "words": {"type": "text", "fields": {"raw": KEYWORD}},
    "price": {"type": "double", "fields": {"label": KEYWORD}},
    "part": {"properties": {"code": KEYWORD, "size": {"type": "float"}}},
}
KEYWORDS = ("code", "words.raw", "price.label", "part.code")
# The texts of numbers, as the terms of a keyword field, in the order of bytes.
CODES = ["-0", "-0.0", "0.0000001", "1.0", "1.1", "1.10", "12345678.50", "1e3", "3.14159265358979323846", "7", "7.00"]
CODES += ["9223372036854775808"]
SOURCE = (
    b'"code": [' + ",".join(CODES).encode() + b"], "
    b'"words": [2.50, 2.50], "price": 19.90, "part": [{"code": 4.0e1, "size": 1.50}, {"code": "4.10"}], '
    b'"quote": "\\u00e9 \\/"'
)
# A document without such a number: it is written by an update.
PLAIN = b'{"text": "a plain dog", "code": [1.5, 3], "price": 3.25}'


def documents(count: int = 3) -> dict[str, bytes]:
    texts = ["a man plays", "a cat runs", "the dog eats"][:count]
    return {str(number): b'{"text": "%b", %b}' % (text.encode(), SOURCE) for number, text in enumerate(texts)}


def write(engine: Engine, index: str, sources: dict[str, bytes]) -> None:
    heads = {key: {"_id": key} | ({"routing": "r"} if key == "2" else {}) for key in sources}
    body = b"".join(orjson.dumps({"index": heads[key]}) + b"\n" + source + b"\n" for key, source in sources.items())
    assert [result.reason for result in engine.bulk(index, body) if not result.ok] == []
    engine.refresh(index)


def create(engine: Engine, index: str, **settings: Any) -> None:
    knn = {"index.knn": True} if engine.info.needs_index_knn else {}
    engine.create_index(index, {"settings": knn | settings, "mappings": {"properties": PROPERTIES}})


def terms(engine: Engine, index: str) -> Json:
    """The terms of the keyword fields, and the number of documents with the words 2.50 and 2.5."""
    engine.refresh(index)
    aggregations = {name: {"terms": {"field": name, "size": 100, "order": {"_key": "asc"}}} for name in KEYWORDS}
    answer = engine.search(index, {"size": 0, "aggs": aggregations})
    found: Json = {
        name: {bucket["key"]: bucket["doc_count"] for bucket in answer["aggregations"][name]["buckets"]}
        for name in KEYWORDS
    }
    counts = {word: engine.count(index, {"match_phrase": {"words": word}}) for word in ("2.50", "2.5")}
    return found | counts


def expected_terms(count: int = 3, others: dict[str, dict[str, int]] | None = None) -> Json:
    fields = {"code": CODES, "words.raw": ["2.50"], "price.label": ["19.90"], "part.code": ["4.0e1", "4.10"]}
    held: Json = {name: dict.fromkeys(sorted(values), count) for name, values in fields.items()}
    for name, found in (others or {}).items():
        held[name] = dict(sorted((held[name] | found).items()))
    return held | {"2.50": count, "2.5": 0}


PLAIN_TERMS = {"code": {"1.5": 1, "3": 1}, "price.label": {"3.25": 1}}


def raw(engine: Engine, index: str, document_id: str) -> bytes:
    """`_source` in the bytes of the engine's response."""
    routing = "&routing=r" if document_id == "2" else ""
    exclude = "&_source_exclude_vectors=false" if engine.info.excludes_vectors_from_source else ""
    with urllib.request.urlopen(f"{engine.info.url}/{index}/_doc/{document_id}?{routing}{exclude}") as response:
        body: bytes = response.read()
    return body.partition(b'"_source":')[2]


def numbers_kept(engine: Engine, index: str, document_id: str) -> bool:
    compact = raw(engine, index, document_id).replace(b" ", b"")
    wanted = (
        ",".join(CODES).encode(),
        b'"words":[2.50,2.50],"price":19.90',
        b'[{"code":4.0e1,"size":1.50},{"code":"4.10"}]',
    )
    return all(each in compact for each in wanted)


def is_rewritten(engine: Engine, index: str) -> bool:
    """Whether the engine itself changes numbers in `_source`, but not in the terms, because it takes vectors out."""
    return rewrites_numbers(engine.info, state_of(engine, index))


def assert_kept(engine: Engine, index: str, expected: Json | None = None) -> None:
    assert terms(engine, index) == (expected or expected_terms())
    rewritten = is_rewritten(engine, index)
    assert [numbers_kept(engine, index, key) for key in ("0", "1", "2")] == [not rewritten] * 3


def raw_source(engine: Engine) -> Json:
    """Settings of an index that keeps `_source` as it was sent although it has vectors."""
    if engine.info.excludes_vectors_from_source:
        return {"index.mapping.exclude_source_vectors": False}
    if engine.info.derives_vectors_in_source:
        return {"index.knn": True, "index.knn.derived_source.enabled": False}
    return {}


@pytest.mark.parametrize("settings", [lambda engine: {}, raw_source], ids=["default", "raw"])
def test_in_place_load_keeps_numbers(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path, settings: Callable[[Engine], Json]
) -> None:
    create(engine, index_name, **settings(engine))
    write(engine, index_name, documents() | {"plain": PLAIN})
    expected = expected_terms(others=PLAIN_TERMS)
    assert terms(engine, index_name) == expected
    first = load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", text_fields=("text",))
    assert (first.indexed, first.dead) == (4, 0)
    assert_kept(engine, index_name, expected)
    held = contents(engine.info.url, index_name)
    assert all("embedding" in source and source["embedding_meta"]["document_hash"] is None for source in held.values())

    # Embedded again: now the engine may show the numbers in another form than the terms have.
    change = orjson.dumps({"update": {"_id": "plain"}}) + b'\n{"doc": {"text": "another dog"}}\n'
    again = {key: source.replace(b"a ", b"the ", 1) for key, source in documents(2).items()}
    write(engine, index_name, again)
    assert engine.bulk(index_name, change)[0].ok
    second = load(engine.info.url, tiny, index_name, dead=tmp_path / "dead")
    assert (second.indexed, second.unchanged, second.dead) == (3, 1, 0)
    assert_kept(engine, index_name, expected)

    # A document that has lost its text loses its vector, and nothing else.
    write(engine, index_name, {"0": documents()["0"].replace(b"a man plays", b"")})
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead")
    assert_kept(engine, index_name, expected)
    assert load(engine.info.url, tiny, index_name, dead=tmp_path / "dead").unchanged == 3


def test_second_vector_field_keeps_numbers_and_the_first_vector(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    """The second load writes documents whose vector and passages it has to keep; no default pipeline runs again."""
    create(engine, index_name)
    write(engine, index_name, documents())
    engine.put_settings(index_name, {"index.default_pipeline": f"missing-{index_name}"})
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", vectors=("embedding={text}",))
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", vectors=("parts={text}",), passages=8)
    before = contents(engine.info.url, index_name)
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", vectors=("third={text}",))
    assert_kept(engine, index_name)
    for key, source in contents(engine.info.url, index_name).items():
        assert {name: source[name] for name in before[key] if name != "_version"} == {
            name: value for name, value in before[key].items() if name != "_version"
        }
        assert "third" in source


def test_document_is_a_dead_letter_if_a_final_pipeline_would_run_again(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    """Numbers of numeric fields are no reason: they are indexed by their value."""
    create(engine, index_name, **{"index.final_pipeline": "_none"})
    harmless = {"price": b'{"text": "a man", "part": {"size": 1.50}, "unmapped": {"long": 0.10}}'}
    write(engine, index_name, documents(1) | harmless)
    engine.put_settings(index_name, {"index.final_pipeline": f"missing-{index_name}"})
    report = load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", text_fields=("text",))
    assert (report.indexed, report.dead) == (1, 1)
    [letter] = letters(tmp_path / "dead")
    assert letter["id"] == "0"
    assert "is the number" in letter["reason"]
    assert f"'missing-{index_name}' again (index.final_pipeline)" in letter["reason"]
    assert terms(engine, index_name) == expected_terms(1)


def test_number_whose_text_is_lost_is_not_written_again(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    """The words of fields without a keyword form of their own can only be compared with the engine's number."""
    create(engine, index_name)
    fields: Json = {
        "note": {"type": "text"},
        "list": {"type": "nested", "properties": {"code": KEYWORD}},
        "labels": KEYWORD | {"index": False},
        "label": {"type": "float", "copy_to": "labels"},
        "length": {"type": "double", "fields": {"words": {"type": "text"}}},
    }
    engine.put_mapping(index_name, {"properties": fields})
    sources = {
        "lost": b'{"text": "a man", "note": 1.10}',
        "nested": b'{"text": "a man", "list": [{"code": 2.0}, {"code": 7.00}]}',
        "label": b'{"text": "a man", "label": [1.5, 1e3]}',
        "length": b'{"text": "a man", "length": 7.00}',
        "same": b'{"text": "a man", "note": [3.75, 1.0], "list": {"code": 1.5}, "label": 1.5, "length": [7, 7.5]}',
    }
    write(engine, index_name, sources)
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", text_fields=("text",))
    write(engine, index_name, {key: source.replace(b"man", b"cat") for key, source in sources.items()})
    report = load(engine.info.url, tiny, index_name, dead=tmp_path / "dead")
    rewritten = is_rewritten(engine, index_name)
    assert (report.indexed, report.dead) == ((1, 4) if rewritten else (5, 0))
    reasons = {letter["id"]: letter["reason"] for letter in letters(tmp_path / "dead")}
    assert set(reasons) == (sources.keys() - {"same"} if rewritten else set())
    if rewritten:
        assert "(label: 1000.0, indexed in labels)" in reasons["label"]
        assert "(length: 7.0, indexed in length.words)" in reasons["length"]
        assert "(note: 1.1)" in reasons["lost"]
        assert "(list.code: 7.0)" in reasons["nested"]
        wanted = {"index_type": "int8_hnsw", "replace_index": True, "dead_letters": tmp_path / "dead"}
        with raises_as_recorded(IndexMismatch):
            migrate_index(index_name, engine, encoder=tiny, retry_seconds=30, **wanted)
        cancel_migration(index_name, engine)
    phrase: Json = {"match_phrase": {"note": "1.10"}}
    nested: Json = {"nested": {"path": "list", "query": {"term": {"list.code": "7.00"}}}}
    engine.refresh(index_name)
    assert [engine.count(index_name, query) for query in (phrase, nested)] == [1, 1]


def test_lost_text_is_found_in_every_type_of_text(
    opensearch_url: str,
    open_engine: Callable[[str], Engine],
    fresh_index: Callable[[str], str],
    tiny: Encoder,
    tmp_path: Path,
) -> None:
    """The other builds of the tests have `text` and `flattened` alone."""
    engine, index = open_engine(opensearch_url), fresh_index(opensearch_url)
    types = ("match_only_text", "search_as_you_type", "wildcard", "constant_keyword", "flat_object")
    fields: Json = {name: {"type": name} for name in types}
    fields["constant_keyword"]["value"] = "1.10"
    create(engine, index, **{"index.knn": True})
    engine.put_mapping(index, {"properties": fields})
    values = dict.fromkeys(types, b"1.10") | {"flat_object": b'{"code": 1.10}'}
    sources = {name: b'{"text": "a man", "%b": %b}' % (name.encode(), value) for name, value in values.items()}
    write(engine, index, sources)
    load(engine.info.url, tiny, index, dead=tmp_path / "dead", text_fields=("text",))
    write(engine, index, {key: source.replace(b"man", b"cat") for key, source in sources.items()})
    assert is_rewritten(engine, index)
    report = load(engine.info.url, tiny, index, dead=tmp_path / "dead")
    assert (report.indexed, report.dead) == (0, len(types))
    assert {letter["id"] for letter in letters(tmp_path / "dead")} == set(types)


def test_field_writer_and_clients_of_callers_keep_numbers(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    """Clients parse with their own parsers, which know nothing of the text of numbers."""
    create(engine, index_name)
    write(engine, index_name, documents())
    load(engine.info.url, tiny, index_name, dead=tmp_path / "dead", text_fields=("text",))
    texts = read_index(index_name, engine, "embedding", fields=["group"])
    writer = FieldWriter(engine, index_name, "embedding", "group", policy=RetryPolicy(30))
    assert writer.write(writer.plan(texts, dict.fromkeys(range(3), "same"))).written == 3
    assert_kept(engine, index_name)
    assert {source["group"] for source in contents(engine.info.url, index_name).values()} == {"same"}
    write(engine, index_name, documents())
    is_opensearch = engine.info.engine_type is EngineType.OPENSEARCH
    with (
        closing((OpenSearch if is_opensearch else Elasticsearch)(engine.info.url)) as client,
        SemanticIndex(index_name, client, encoder=tiny) as index,
    ):
        assert index.embed_missing().indexed == 3
    assert_kept(engine, index_name)


def test_adoption_keeps_numbers(engine: Engine, index_name: str, tiny: Encoder) -> None:
    vector = vector_mapping(engine, tiny.info.dimensions)
    knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
    engine.create_index(index_name, {"settings": knn, "mappings": {"properties": PROPERTIES | {"vector": vector}}})
    sources = documents()
    vectors = tiny.encode([json.loads(source)["text"] for source in sources.values()], "document")
    for (key, source), one in zip(sources.items(), vectors, strict=True):
        value = orjson.dumps(vector_value(engine.info, one))
        sources[key] = source[:-1] + b', "vector": ' + value + b"}"
    write(engine, index_name, sources)
    wanted = {"vector_field": "vector", "text_template": "{text}", "sample": 3}
    report = adopt_vectors(index_name, engine, encoder=tiny, **wanted)
    assert report.written is not None
    assert (report.written.adopted, report.written.refused) == (3, {})
    assert_kept(engine, index_name)
    held = contents(engine.info.url, index_name)
    assert all(source["vector_meta"]["fingerprint"] == tiny.info.fingerprint for source in held.values())


@pytest.fixture
def place(
    engine: Engine, fresh_index: Callable[[str], str], encoders: tuple[Encoder, Encoder], tmp_path: Path
) -> Iterator[Place]:
    """An index of these documents behind an alias, embedded with the first model."""
    name = fresh_index(engine.info.url)
    index = f"{name}-old"
    create(engine, index)
    write(engine, index, documents())
    engine.update_aliases([{"add": {"index": index, "alias": name}}])
    place = Place(engine, name, index, tmp_path / "dead")
    place.embed(encoders[0])
    yield place
    for each in indices_of(engine, name):
        engine.delete_index(each)


def test_migrations_keep_numbers(
    place: Place, encoders: tuple[Encoder, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_no_stragglers(monkeypatch)
    new = place.migrate(encoders[1]).target
    assert_kept(place.engine, new)
    write(place.engine, new, {"0": documents()["0"].replace(b"a man", b"the man")})
    assert_kept(place.engine, place.migrate(encoders[0]).target)


def test_migration_compares_the_text_of_numbers(
    place: Place, encoders: tuple[Encoder, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_no_stragglers(monkeypatch)
    copy = document_copy.copy_write

    def as_an_update_does(hit: Json, *args: Any) -> document_copy.BulkWrite:
        value = hit["_source"]["part"][0] | {"code": float(hit["_source"]["part"][0]["code"])}
        return copy(hit | {"_source": hit["_source"] | {"part": [value, *hit["_source"]["part"][1:]]}}, *args)

    monkeypatch.setattr(document_copy, "copy_write", as_an_update_does)
    with raises_as_recorded(IndexMismatch):
        place.migrate(encoders[1])
