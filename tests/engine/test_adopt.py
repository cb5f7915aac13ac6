"""Vectors that another program wrote, taken over: adopted, searched, and embedded again when their texts change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from es_sbert import SemanticIndex
from es_sbert.cli.main import cli
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.adopt import AdoptionReport, adopt_vectors
from es_sbert.index.document_vectors import UNKNOWN_FINGERPRINT, text_hash
from es_sbert.index.index_summary import describe_index
from es_sbert.index.text_template import TextTemplate
from es_sbert.vectors import Vectors
from tests.engine.ingest_support import bulk, contents, load, open_engine, put, same_vectors, vector_of
from tests.engine.migration.support import Overheard
from tests.engine.vectors import state_of, vector_mapping, vector_value
from tests.faulty_proxy import Exchange, FaultyProxy, cut_after
from tests.raised import raises, raises_as_recorded
from tests.tiny import WORDS

pytestmark = pytest.mark.one_engine

COUNT = 60
TITLE = TextTemplate.parse("{title}")
BOTH = TextTemplate.parse("{title}. {body}")


def documents(count: int = COUNT) -> list[Json]:
    """Documents whose texts the tiny model tells apart."""
    words = itertools.islice(itertools.product(WORDS[:9], WORDS[1:9]), count)
    return [
        {"id": f"d{row}", "title": f"the {one} plays {two}", "body": f"a {one} on {two} {two}", "price": row}
        for row, (one, two) in enumerate(words)
    ]


def titles(found: list[Json]) -> list[str]:
    return [document["title"] for document in found]


def create(engine: Engine, index: str) -> None:
    settings = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
    engine.create_index(
        index, {"settings": settings, "mappings": {"properties": {"vector": vector_mapping(engine, 16)}}}
    )


def write(
    engine: Engine,
    index: str,
    found: list[Json],
    vectors: Vectors,
    *,
    routing: Callable[[int], str | None] = lambda row: None,
) -> None:
    """Index documents by plain bulk requests, as any application does."""
    lines: list[Json] = []
    for row, document in enumerate(found):
        lines.append({"index": {"_id": document["id"], "routing": routing(row)}})
        lines.append(document | {"vector": vector_value(engine.info, vectors[row])})
    bulk(engine, index, *lines)
    engine.refresh(index)


@pytest.fixture
def plain(engine: Engine, index_name: str, tiny: Encoder) -> str:
    """An index of another program: a vector of each title."""
    create(engine, index_name)
    write(engine, index_name, documents(), tiny.encode(titles(documents()), "document"))
    return index_name


def run(
    engine: Engine, index: str, encoder: Encoder, text: TextTemplate | None = TITLE, **settings: Any
) -> AdoptionReport:
    template = None if text is None else text.template
    options = {"vector_field": "vector", "text_template": template} | settings
    return adopt_vectors(index, engine, encoder=encoder, **options)


def overheard(engine: Engine, before: Callable[[str], None]) -> Engine:
    """An engine that tells the name of each method that is used, right before that."""
    return cast(Engine, Overheard(engine, before))


def versions(engine: Engine, index: str) -> dict[str, int]:
    return {id: source["_version"] for id, source in contents(engine.info.url, index).items()}


def backfill(engine: Engine, index: str, encoder: Encoder, dead: Path) -> dict[str, int]:
    """`es-sbert ingest --index INDEX --vector-field vector`: what was embedded and what was current."""
    summary = load(engine.info.url, encoder, index, dead=dead, vector_field="vector")
    return {"embedded": summary.indexed, "unchanged": summary.unchanged}


def test_adopted_vectors_are_searchable_and_not_reembedded(
    engine: Engine, plain: str, tiny: Encoder, tmp_path: Path
) -> None:
    before = contents(engine.info.url, plain)
    report = run(engine, plain, tiny, sample=20)
    assert (report.exit_code, report.documents, report.with_vector, report.without_metadata) == (0, *[COUNT] * 3)
    assert len(report.compared) == 20
    assert min(one.cosine for one in report.compared) > 0.99999
    assert report.written is not None
    assert (report.written.adopted, report.failing) == (COUNT, [])

    after = contents(engine.info.url, plain)
    [tokens] = {source["vector_meta"]["tokens"] for source in after.values()}
    assert tokens == 6  # four words and two special tokens
    for id, source in after.items():
        meta = source.pop("vector_meta")
        assert (meta["fingerprint"], meta["text_hash"]) == (tiny.info.fingerprint, text_hash(source["title"]))
        assert same_vectors(vector_of(source, "vector"), vector_of(before[id], "vector"))
        assert {name: source[name] for name in documents(1)[0]} == {name: before[id][name] for name in documents(1)[0]}
    field = describe_index(engine, plain).fields[0]
    assert (field.name, field.meta.model, field.meta.text) == ("vector", tiny.info.model, "{title}")
    assert (field.vectors, field.current, field.truncated) == (COUNT, COUNT, 0)
    assert field.meta.index_type == ("int8_hnsw" if engine.info.engine_type is EngineType.ELASTICSEARCH else "hnsw")

    found = SemanticIndex(plain, engine, encoder=tiny, vector_field="vector").search(documents()[7]["title"], k=3)
    assert found.hits[0].id == "d7"
    assert found.hits[0].cosine == pytest.approx(1, abs=1e-3)
    assert backfill(engine, plain, tiny, tmp_path / "dead") == {"embedded": 0, "unchanged": COUNT}
    assert versions(engine, plain) == {f"d{row}": 2 for row in range(COUNT)}


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices of these tests are small: half of the sample is enough."""
    monkeypatch.setattr("es_sbert.index.adopt.REQUIRED_SHARE", 0.5)


@pytest.mark.usefixtures("half")
def test_only_wrong_vectors_are_listed_and_reembedded(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    create(engine, index_name)
    vectors = tiny.encode(titles(documents()), "document")
    wrong = {3, 44}
    other = np.random.default_rng(0).normal(size=(COUNT, 16)).astype(np.float32)
    mixed = np.stack([other[row] if row in wrong else vectors[row] for row in range(COUNT)])
    write(engine, index_name, documents(), mixed, routing=lambda row: "r" if row % 2 else None)
    report = run(engine, index_name, tiny)
    assert {one.key for one in report.failing} == {("d3", "r"), ("d44", None)}
    assert report.written is not None
    assert (report.exit_code, report.written.adopted) == (0, COUNT - 2)
    marked = contents(engine.info.url, index_name)["d44"]
    assert marked["vector_meta"]["fingerprint"] == UNKNOWN_FINGERPRINT
    assert same_vectors(vector_of(marked, "vector"), mixed[44])  # it is only marked
    assert describe_index(engine, index_name).fields[0].current == COUNT - 2

    assert backfill(engine, index_name, tiny, tmp_path / "dead") == {"embedded": 2, "unchanged": COUNT - 2}
    after = {hit["_id"]: hit for hit in engine.search(index_name, {"size": COUNT})["hits"]["hits"]}
    assert after["d3"]["_routing"] == "r"
    source = engine.info.source_with_vectors(["vector"])
    hits = engine.search(index_name, {"size": COUNT, "_source": source})["hits"]["hits"]
    for hit in hits:
        assert same_vectors(vector_of(hit["_source"], "vector"), vectors[int(hit["_id"][1:])])
    assert describe_index(engine, index_name).fields[0].current == COUNT


def test_wrong_text_and_dry_run_write_nothing(engine: Engine, plain: str, tiny: Encoder) -> None:
    before, was = state_of(engine, plain).mappings, versions(engine, plain)
    for report in (run(engine, plain, tiny, TextTemplate.parse("{body}")), run(engine, plain, tiny, dry_run=True)):
        assert (report.exit_code, report.written) == (int(not report.is_accepted), None)
        assert state_of(engine, plain).mappings == before
        assert versions(engine, plain) == was
    assert report.is_accepted
    with raises_as_recorded(IndexMismatch):
        run(engine, plain, tiny, TextTemplate.parse("{titel}"))
    engine.put_mapping(plain, {"properties": {"empty": vector_mapping(engine, 16)}})
    with raises_as_recorded(IndexMismatch):
        run(engine, plain, tiny, vector_field="empty")


def test_documents_without_vector_or_text_are_counted_only(
    engine: Engine, plain: str, tiny: Encoder, tmp_path: Path
) -> None:
    vector = tiny.encode(["a cat"], "document")[:1]
    write(engine, plain, [{"id": "empty", "title": "  "}], vector)
    put(engine, plain, [{"id": "bare", "title": "a man sleeps"}])
    engine.refresh(plain)
    report = run(engine, plain, tiny)
    assert (report.documents, report.with_vector) == (COUNT + 2, COUNT + 1)
    assert report.without_text == 1
    assert report.written is not None
    assert (report.written.adopted, report.written.without_text) == (COUNT, 1)
    held = contents(engine.info.url, plain)
    assert "vector_meta" not in held["empty"]
    assert "vector_meta" not in held["bare"]
    assert backfill(engine, plain, tiny, tmp_path / "dead")["embedded"] == 1  # `bare`
    assert contents(engine.info.url, plain)["empty"].get("vector") is None


def test_second_run_adopts_documents_written_later(engine: Engine, plain: str, tiny: Encoder) -> None:
    run(engine, plain, tiny)
    with raises_as_recorded(IndexMismatch):
        run(engine, plain, tiny)
    more = [document | {"id": f"new{row}"} for row, document in enumerate(documents(5))]
    write(engine, plain, more, tiny.encode(titles(more), "document"))
    with raises(IndexMismatch, "text_template"):
        run(engine, plain, tiny, BOTH)
    report = run(engine, plain, tiny, None)
    assert (report.without_metadata, report.with_vector) == (5, COUNT + 5)
    assert report.written is not None
    assert report.written.adopted == 5
    assert describe_index(engine, plain).fields[0].current == COUNT + 5


def test_field_that_the_mapping_has_forgotten_is_adopted_again(engine: Engine, plain: str, tiny: Encoder) -> None:
    """Another program has replaced `_meta`; every document still has its metadata."""
    run(engine, plain, tiny)
    before, documents_before = state_of(engine, plain).mappings, contents(engine.info.url, plain)
    engine.put_mapping(plain, {"_meta": {"owner": "app"}})
    report = run(engine, plain, tiny)
    assert (report.is_accepted, report.without_metadata, report.exit_code) == (True, 0, 0)
    after = state_of(engine, plain).mappings
    assert after["_meta"] == {"owner": "app", "es_sbert": before["_meta"]["es_sbert"]}
    assert contents(engine.info.url, plain) == documents_before
    with raises_as_recorded(IndexMismatch):
        run(engine, plain, tiny)


@pytest.mark.usefixtures("half")
def test_interrupted_adoption_resumes_and_keeps_failures(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.index.adopt.PAGE", 20)
    create(engine, index_name)
    vectors = tiny.encode(titles(documents()), "document")
    vectors[59] = -vectors[59]
    write(engine, index_name, documents(), vectors)
    requests = 0

    def lose(name: str) -> None:
        """After the failing document and one page."""
        nonlocal requests
        requests += name == "bulk"
        if name == "bulk" and requests > 2:
            raise RequestFailed("the connection broke", "Try again.", 0)

    with raises_as_recorded(RequestFailed):
        run(overheard(engine, lose), index_name, tiny, retry_seconds=0)
    engine.refresh(index_name)
    assert describe_index(engine, index_name).fields[0].current in (19, 20)
    assert contents(engine.info.url, index_name)["d59"]["vector_meta"]["fingerprint"] == UNKNOWN_FINGERPRINT
    report = run(engine, index_name, tiny, None)
    assert report.without_metadata in (39, 40)
    assert (report.exit_code, report.failing) == (0, [])
    assert describe_index(engine, index_name).fields[0].current == COUNT - 1
    assert backfill(engine, index_name, tiny, tmp_path / "dead") == {"embedded": 1, "unchanged": COUNT - 1}


def test_document_changed_during_adoption_is_not_adopted(
    engine: Engine, plain: str, tiny: Encoder, tmp_path: Path
) -> None:
    def change(name: str) -> None:
        """Right before the first bulk request."""
        nonlocal is_changed
        if name != "bulk" or is_changed:
            return
        is_changed = True
        with open_engine(engine.info.url) as other:
            lines = b'{"update":{"_id":"d1"}}\n{"doc":{"title":"the mat sleeps"}}\n{"delete":{"_id":"d2"}}\n'
            assert all(result.ok for result in other.bulk(plain, lines))

    is_changed = False
    report = run(overheard(engine, change), plain, tiny)
    assert report.written is not None
    assert (report.written.adopted, report.written.changed) == (COUNT - 2, ["d1"])
    assert report.exit_code == 1
    assert "vector_meta" not in contents(engine.info.url, plain)["d1"]
    assert backfill(engine, plain, tiny, tmp_path / "dead") == {"embedded": 1, "unchanged": COUNT - 2}


def test_every_request_that_fails_is_retried(engine: Engine, plain: str, tiny: Encoder) -> None:
    """The engine executes the first request to each path of the index, and the connection breaks."""
    broken: set[str] = set()

    def first_of_path(exchange: Exchange) -> tuple[int, bytes]:
        path = exchange.path.partition("?")[0]
        if plain not in path or path in broken:
            return exchange.forward()
        broken.add(path)
        return cut_after(exchange)

    with FaultyProxy(engine.info.url, paths="", always=first_of_path) as proxy:
        command = ["index", "adopt", plain, "--vector-field", "vector", "--text-field", "title", "--url", proxy.url]
        assert not cli.main([*command, "--model", tiny.info.model, "--threads", "1"], standalone_mode=False)
    assert {path.rpartition("/")[2] for path in broken} >= {"_refresh", "_search", "_mapping", "_bulk"}
    assert all("vector_meta" in source for source in contents(engine.info.url, plain).values())
