"""A field that is written into documents by partial updates: each update has one end, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from es_sbert.analysis import read_index
from es_sbert.analysis.field_writer import FieldUpdateCounts, FieldWriter
from es_sbert.analysis.text_collection import TextCollection
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import IndexMismatch, IndexMissing, RequestFailed, UsageError
from tests.engine.ingest_support import bulk, contents, load, open_engine, sentences, update, write_jsonl
from tests.engine.vectors import state_of
from tests.faulty_proxy import Fault, FaultyProxy, answer, cut_after, cut_before, refuse_items, too_large
from tests.raised import raises, raises_as_recorded

pytestmark = pytest.mark.one_engine

FIELD = "duplicate_of"


@pytest.fixture
def index(engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path) -> str:
    """An index of 20 documents with vectors, d0 to d19."""
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(20))
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id")
    return index_name


def collection(engine: Engine, index: str) -> TextCollection:
    return read_index(index, engine, "embedding", fields=[FIELD])


def writer_of(engine: Engine, index: str, field: str = FIELD, seconds: float = 30) -> FieldWriter:
    return FieldWriter(engine, index, "embedding", field, policy=RetryPolicy(seconds, first=0.01))


def write(
    engine: Engine, index: str, values: dict[str, str], texts: TextCollection | None = None, seconds: float = 30
) -> FieldUpdateCounts:
    """Give documents these values, and remove the value of all others."""
    texts = texts or collection(engine, index)
    writer = writer_of(engine, index, seconds=seconds)
    return writer.write(writer.plan(texts, {texts.ids.index(name): value for name, value in values.items()}))


def values_in(url: str, index: str) -> dict[str, str]:
    return {name: source[FIELD] for name, source in contents(url, index).items() if source.get(FIELD) is not None}


def test_only_the_field_is_written_and_only_on_change(engine: Engine, engine_url: str, index: str) -> None:
    before = contents(engine_url, index)
    assert write(engine, index, {"d1": "d0", "d2": "d0"}) == FieldUpdateCounts(written=2)
    after = contents(engine_url, index)
    for name, source in before.items():
        value = {FIELD: "d0"} if name in ("d1", "d2") else {}
        assert after[name] == source | value | {"_version": source["_version"] + len(value)}
    assert state_of(engine, index).mappings["properties"][FIELD] == {"type": "keyword"}
    assert engine.count(index, {"term": {FIELD: "d0"}}) == 2

    assert write(engine, index, {"d1": "d0", "d2": "d0"}) == FieldUpdateCounts()
    assert write(engine, index, {"d2": "d3", "d4": "d3"}) == FieldUpdateCounts(written=2, removed=1)
    assert values_in(engine_url, index) == {"d2": "d3", "d4": "d3"}
    assert engine.count(index, {"exists": {"field": FIELD}}) == 2


def test_values_of_unanalysed_documents_stay(engine: Engine, engine_url: str, index: str) -> None:
    assert write(engine, index, {"d1": "d0", "d2": "d0"}).written == 2
    writer = writer_of(engine, index)
    removals = writer.plan(collection(engine, index), {}, {"term": {"_id": "d2"}})
    assert writer.write(removals) == FieldUpdateCounts(removed=1)
    assert values_in(engine_url, index) == {"d1": "d0"}


def test_documents_with_changed_text_are_not_written(engine: Engine, engine_url: str, index: str) -> None:
    engine.put_mapping(index, {"properties": {FIELD: {"type": "keyword"}}})
    texts = collection(engine, index)
    update(engine, index, {"d1": {"price": -1}, "d2": {"text": "something else"}, "d4": {FIELD: "d0"}})
    bulk(engine, index, {"delete": {"_id": "d3"}})
    counts = write(engine, index, dict.fromkeys(["d1", "d2", "d3", "d4", "d5"], "d0"), texts=texts)
    assert counts == FieldUpdateCounts(written=3, changed=["d2"], deleted=1)
    assert values_in(engine_url, index) == {"d1": "d0", "d4": "d0", "d5": "d0"}
    assert contents(engine_url, index)["d1"]["price"] == -1


def test_document_is_updated_by_its_routing(engine: Engine, engine_url: str, index: str) -> None:
    source = contents(engine_url, index)["d0"]
    del source["_version"]
    bulk(engine, index, {"index": {"_id": "routed", "routing": "r1"}}, source)
    engine.refresh(index)
    assert write(engine, index, {"routed": "d0"}) == FieldUpdateCounts(written=1)
    hits = engine.search(index, {"query": {"term": {FIELD: "d0"}}})["hits"]["hits"]
    assert [(hit["_id"], hit["_routing"]) for hit in hits] == [("routed", "r1")]
    assert write(engine, index, {"routed": "d0"}) == FieldUpdateCounts()


@pytest.mark.parametrize(
    "faults",
    [
        [answer(429), answer(503)],
        [cut_before, cut_after],
        [refuse_items(0, 3), refuse_items(1)],
        [cut_after, cut_after],
    ],
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


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ([refuse_items(1, status=400)], "(400) es_rejected_execution_exception"),
        ([refuse_items(1, status=409), *[refuse_items(0, status=409)] * 20], "other writers changed it in each of"),
    ],
)
def test_rejected_update_is_reported_with_reason(engine_url: str, index: str, faults: list[Fault], reason: str) -> None:
    with FaultyProxy(engine_url, faults=[*faults]) as proxy, open_engine(proxy.url) as engine:
        counts = write(engine, index, {"d1": "d0", "d2": "d0"})
    assert (counts.written, list(counts.refused)) == (1, [("d2", None)])
    assert counts.refused["d2", None].startswith(reason)


def test_overloaded_engine_raises_after_retry_budget(engine_url: str, index: str) -> None:
    proxied = FaultyProxy(engine_url, always=refuse_items(0))
    with proxied as proxy, open_engine(proxy.url) as engine, raises_as_recorded(RequestFailed):
        write(engine, index, {"d1": "d0", "d2": "d0"}, seconds=0.2)
    assert values_in(engine_url, index) == {"d2": "d0"}


def test_replaced_index_is_not_written(
    engine: Engine, engine_url: str, index: str, tiny: Encoder, tmp_path: Path
) -> None:
    writer = writer_of(engine, index)
    updates = list(writer.plan(collection(engine, index), {0: "d1"}))
    engine.delete_index(index)
    with pytest.raises(IndexMissing):
        writer.write(updates)
    assert engine.get_index(index) is None
    load(engine_url, tiny, index, tmp_path / "docs.jsonl", dead=tmp_path / "dead", id_field="id")
    with raises_as_recorded(IndexMismatch):
        writer.write(updates)
    assert values_in(engine_url, index) == {}


def test_incompatible_fields_are_refused(engine: Engine, index: str) -> None:
    for name in ("text", "embedding", "embedding_meta"):
        with raises(UsageError, "name"):
            writer_of(engine, index, name)
    with raises(UsageError, "name"):
        writer_of(engine, index, "analysis.group")
    with raises_as_recorded(IndexMismatch):
        writer_of(engine, index, "price")


def test_foreign_values_are_not_overwritten(engine: Engine, index: str) -> None:
    writer_of(engine, index, "category").check_owner()  # it does not exist
    engine.put_mapping(index, {"properties": {"category": {"type": "keyword"}}})
    writer_of(engine, index, "category").check_owner()  # nothing is in it
    update(engine, index, {"d1": {"category": "theirs"}})
    engine.refresh(index)
    with raises_as_recorded(IndexMismatch):
        writer_of(engine, index, "category").check_owner()
    page = Path("docs/commands/duplicates.md").read_text("utf-8")
    request = page.partition("POST docs/_update_by_query?refresh\n")[2].partition("\n```")[0]
    body = orjson.loads(request.replace("duplicate_group", "category"))
    if engine.request_api(f"/{index}/_update_by_query", {"refresh": "true"}, body=body, method="POST") is not None:
        writer_of(engine, index, "category").check_owner()
    assert write(engine, index, {"d1": "d0"}).written == 1
    writer_of(engine, index).check_owner()
