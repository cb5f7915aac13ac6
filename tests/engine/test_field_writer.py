"""A field that is written into documents by partial updates: each update has one end, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.analysis import read_index
from es_sbert.analysis.field_writer import FieldUpdateCounts, FieldWriter
from es_sbert.analysis.text_collection import TextCollection
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import IndexMismatch, IndexMissing, RequestFailed, UsageError
from tests.engine.ingest_support import contents, load, open_engine, sentences, write_jsonl
from tests.faulty_proxy import Exchange, Fault, FaultyProxy, answer, cut_after, cut_before, refuse_items, too_large

pytestmark = pytest.mark.one_engine

FIELD = "duplicate_of"


@pytest.fixture
def index(engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path) -> str:
    """An index of 20 documents with vectors, d0 to d19."""
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(20))
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id")
    return index_name


def collection(engine: Engine, index: str, field: str = FIELD) -> TextCollection:
    return read_index(engine, index, "embedding", fields=[field])


def write(
    engine: Engine,
    index: str,
    values: dict[str, str],
    *,
    texts: TextCollection | None = None,
    field: str = FIELD,
    seconds: float = 30,
) -> FieldUpdateCounts:
    """Give documents these values, and remove the value of all others."""
    texts = texts or collection(engine, index, field)
    writer = FieldWriter(engine, index, "embedding", field, policy=RetryPolicy(seconds, first=0.01))
    return writer.write(writer.plan(texts, {texts.ids.index(name): value for name, value in values.items()}))


def values_in(url: str, index: str, field: str = FIELD) -> dict[str, str]:
    return {name: source[field] for name, source in contents(url, index).items() if source.get(field) is not None}


def bulk(engine: Engine, index: str, *lines: Any) -> None:
    results = engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert all(result.ok for result in results)


def test_only_the_field_is_written_and_only_on_change(engine: Engine, engine_url: str, index: str) -> None:
    before = contents(engine_url, index)
    assert write(engine, index, {"d1": "d0", "d2": "d0"}) == FieldUpdateCounts(written=2)
    after = contents(engine_url, index)
    for name, source in before.items():
        value = {FIELD: "d0"} if name in ("d1", "d2") else {}
        assert after[name] == source | value | {"_version": source["_version"] + len(value)}
    state = engine.get_index(index)
    assert state is not None
    assert state.mappings["properties"][FIELD] == {"type": "keyword"}
    assert engine.count(index, {"term": {FIELD: "d0"}}) == 2

    assert write(engine, index, {"d1": "d0", "d2": "d0"}) == FieldUpdateCounts()
    assert write(engine, index, {"d2": "d3", "d4": "d3"}) == FieldUpdateCounts(written=2, removed=1)
    assert values_in(engine_url, index) == {"d2": "d3", "d4": "d3"}
    assert engine.count(index, {"exists": {"field": FIELD}}) == 2


def test_values_of_unanalysed_documents_stay(engine: Engine, engine_url: str, index: str) -> None:
    assert write(engine, index, {"d1": "d0", "d2": "d0"}).written == 2
    writer = FieldWriter(engine, index, "embedding", FIELD, policy=RetryPolicy(30))
    removals = writer.plan(collection(engine, index), {}, {"term": {"_id": "d2"}})
    assert writer.write(removals) == FieldUpdateCounts(removed=1)
    assert values_in(engine_url, index) == {"d1": "d0"}


def test_documents_with_changed_text_are_not_written(engine: Engine, engine_url: str, index: str) -> None:
    engine.put_mapping(index, {"properties": {FIELD: {"type": "keyword"}}})
    texts = collection(engine, index)
    bulk(engine, index, {"update": {"_id": "d1"}}, {"doc": {"price": -1}})
    bulk(engine, index, {"update": {"_id": "d2"}}, {"doc": {"text": "something else"}})
    bulk(engine, index, {"delete": {"_id": "d3"}})
    bulk(engine, index, {"update": {"_id": "d4"}}, {"doc": {FIELD: "d0"}})
    counts = write(engine, index, dict.fromkeys(["d1", "d2", "d3", "d4", "d5"], "d0"), texts=texts)
    assert counts == FieldUpdateCounts(written=3, changed=["d2"], deleted=1)
    assert values_in(engine_url, index) == {"d1": "d0", "d4": "d0", "d5": "d0"}
    assert contents(engine_url, index)["d1"]["price"] == -1


def test_routed_document_and_nested_object_field(engine: Engine, engine_url: str, index: str, tiny: Encoder) -> None:
    source = contents(engine_url, index)["d0"]
    del source["_version"]
    bulk(engine, index, {"index": {"_id": "routed", "routing": "r1"}}, source)
    engine.refresh(index)
    assert write(engine, index, {"routed": "d0"}, field="duplicate_of") == FieldUpdateCounts(written=1)
    hits = engine.search(index, {"query": {"term": {"duplicate_of": "d0"}}})["hits"]["hits"]
    assert [(hit["_id"], hit["_routing"]) for hit in hits] == [("routed", "r1")]
    assert write(engine, index, {"routed": "d0"}, field="duplicate_of") == FieldUpdateCounts()


def test_dotted_field_is_found_in_a_mapping_without_objects(
    engine: Engine, engine_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path
) -> None:
    if engine.info.engine_type is not EngineType.ELASTICSEARCH:
        pytest.skip("only Elasticsearch has mappings without objects")
    index = fresh_index(engine_url)
    engine.create_index(index, {"mappings": {"subobjects": False}})
    load(
        engine_url, tiny, index, write_jsonl(tmp_path / "docs.jsonl", sentences(5)), dead=tmp_path / "d", id_field="id"
    )
    assert write(engine, index, {"d1": "d0", "d2": "d0"}, field="duplicate_of") == FieldUpdateCounts(written=2)
    assert write(engine, index, {"d1": "d0"}, field="duplicate_of") == FieldUpdateCounts(removed=1)
    state = engine.get_index(index)
    assert state is not None
    ours = {name: entry for name, entry in state.mappings["_meta"]["es_sbert"].items() if name != "written_fields"}
    engine.put_mapping(index, {"_meta": {"es_sbert": ours}})
    with pytest.raises(IndexMismatch, match="values in duplicate_of that would be overwritten"):
        FieldWriter(engine, index, "embedding", "duplicate_of", policy=RetryPolicy(30)).check_owner()


def restarts(exchange: Exchange) -> tuple[int, bytes]:
    return answer(503)(exchange)


@pytest.mark.parametrize(
    "faults",
    [[answer(429), restarts], [cut_before, cut_after], [refuse_items(0, 3), refuse_items(1)], [cut_after, cut_after]],
    ids=["refused", "cut", "items", "answers-lost"],
)
def test_transient_failures_are_retried_and_counted_once(engine_url: str, index: str, faults: list[Fault]) -> None:
    with FaultyProxy(engine_url, faults=list(faults)) as proxy, open_engine(proxy.url) as engine:
        counts = write(engine, index, {f"d{n}": "d0" for n in range(1, 10)})
        assert not proxy.faults
    assert counts == FieldUpdateCounts(written=9)
    assert values_in(engine_url, index) == {f"d{n}": "d0" for n in range(1, 10)}


def test_request_too_large_is_split(engine_url: str, index: str) -> None:
    with FaultyProxy(engine_url, always=too_large(400)) as proxy, open_engine(proxy.url) as engine:
        assert write(engine, index, {f"d{n}": "d0" for n in range(1, 20)}).written == 19
    assert len(values_in(engine_url, index)) == 19


def test_rejected_update_is_reported_with_reason(engine_url: str, index: str) -> None:
    with FaultyProxy(engine_url, faults=[refuse_items(1, status=400)]) as proxy, open_engine(proxy.url) as engine:
        counts = write(engine, index, {"d1": "d0", "d2": "d0"})
    assert (counts.written, list(counts.refused)) == (1, [("d2", None)])
    assert counts.refused["d2", None].startswith("(400) es_rejected_execution_exception")


def test_overloaded_engine_raises_after_retry_budget(engine_url: str, index: str) -> None:
    with FaultyProxy(engine_url, always=refuse_items(0)) as proxy, open_engine(proxy.url) as engine:
        with pytest.raises(RequestFailed, match="did not accept 1 update within 0.2 s") as caught:
            write(engine, index, {"d1": "d0", "d2": "d0"}, seconds=0.2)
        assert "run the same command again" in caught.value.remedy
    assert values_in(engine_url, index) == {"d2": "d0"}


def test_replaced_index_is_not_written(
    engine: Engine, engine_url: str, index: str, tiny: Encoder, tmp_path: Path
) -> None:
    writer = FieldWriter(engine, index, "embedding", FIELD, policy=RetryPolicy(5))
    updates = list(writer.plan(collection(engine, index), {0: "d1"}))
    engine.delete_index(index)
    with pytest.raises(IndexMissing, match="was deleted since it was read"):
        writer.write(updates)
    assert engine.get_index(index) is None
    load(engine_url, tiny, index, tmp_path / "docs.jsonl", dead=tmp_path / "dead", id_field="id")
    with pytest.raises(IndexMismatch, match="replaced since it was read"):
        writer.write(updates)
    assert values_in(engine_url, index) == {}


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("text", UsageError, "holds the vector or the text"),
        ("embedding", UsageError, "holds the vector or the text"),
        ("embedding_meta", UsageError, "holds the vector or the text"),
        ("_id", UsageError, "is not a valid name"),
        ("analysis.group", UsageError, "is not a valid name"),
        ("price", IndexMismatch, "the field price of .* has the type float, which cannot hold the result"),
        ("nested", IndexMismatch, "the field nested of .* has the type object"),
    ],
)
def test_incompatible_fields_are_refused(
    es9_url: str,
    fresh_index: Callable[[str], str],
    tiny: Encoder,
    tmp_path: Path,
    name: str,
    error: type[Exception],
    message: str,
) -> None:
    index = fresh_index(es9_url)
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(3))
    load(es9_url, tiny, index, path, dead=tmp_path / "dead", id_field="id")
    with open_engine(es9_url) as engine, pytest.raises(error, match=message):
        FieldWriter(engine, index, "embedding", name, policy=RetryPolicy(5))


def test_foreign_values_are_not_overwritten(engine: Engine, index: str) -> None:
    engine.put_mapping(index, {"_meta": {"owner": "app"} | _meta(engine, index)})
    writer = FieldWriter(engine, index, "embedding", "category", policy=RetryPolicy(5))
    writer.check_owner()  # it does not exist
    engine.put_mapping(index, {"properties": {"category": {"type": "keyword"}}})
    FieldWriter(engine, index, "embedding", "category", policy=RetryPolicy(5)).check_owner()  # nothing is in it
    bulk(engine, index, {"update": {"_id": "d1"}}, {"doc": {"category": "theirs"}})
    engine.refresh(index)
    writer = FieldWriter(engine, index, "embedding", "category", policy=RetryPolicy(5))
    with pytest.raises(IndexMismatch, match="1 document of .* has values in category that would be overwritten"):
        writer.check_owner()
    page = Path("docs/commands/duplicates.md").read_text("utf-8")
    request = page.partition("POST docs/_update_by_query?refresh\n")[2].partition("\n```")[0]
    body = orjson.loads(request.replace("duplicate_group", "category"))
    if engine.request_api(f"/{index}/_update_by_query", {"refresh": "true"}, body=body, method="POST") is not None:
        FieldWriter(engine, index, "embedding", "category", policy=RetryPolicy(5)).check_owner()
    assert write(engine, index, {"d1": "d0"}).written == 1
    FieldWriter(engine, index, "embedding", FIELD, policy=RetryPolicy(5)).check_owner()
    assert _meta(engine, index)["owner"] == "app"
    assert set(_meta(engine, index)["es_sbert"]) == {"fields", "written_fields"}


def _meta(engine: Engine, index: str) -> dict[str, Any]:
    state = engine.get_index(index)
    assert state is not None
    meta: dict[str, Any] = state.mappings["_meta"]
    return meta


def test_missing_index_is_refused(es9_url: str) -> None:
    with open_engine(es9_url) as engine, pytest.raises(IndexMissing):
        FieldWriter(engine, "no-such-index", "embedding", FIELD, policy=RetryPolicy(5))
