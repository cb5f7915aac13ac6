"""An application writes to an index while its documents are embedded in place: the report tells who did what."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport
from tests.conftest import also_opensearch2
from tests.engine.ingest_support import Interposed, load, sentences, wait_until
from tests.random_writer import RandomWriters, shared_documents

pytestmark = pytest.mark.one_engine

Json = dict[str, Any]


class Application:
    """A program that reads and writes an index."""

    def __init__(self, engine: Engine, index: str) -> None:
        self._engine, self.index = engine, index

    def put(self, documents: list[Json], routing: str | None = None) -> None:
        self._send("index", [(document["id"], routing, document) for document in documents])

    def update(self, *changes: tuple[str, Json]) -> None:
        self._send("update", [(document_id, None, {"doc": doc}) for document_id, doc in changes])

    def delete(self, *ids: str) -> None:
        self._send("delete", [(document_id, None, None) for document_id in ids])

    def _send(self, action: str, items: list[tuple[str, str | None, Json | None]]) -> None:
        lines = b""
        for document_id, routing, body in items:
            head: Json = {"_id": document_id} | ({} if routing is None else {"routing": routing})
            head |= {"retry_on_conflict": 5} if action == "update" else {}
            lines += orjson.dumps({action: head}) + b"\n" + (b"" if body is None else orjson.dumps(body) + b"\n")
        results = self._engine.bulk(self.index, lines)
        assert all(result.ok for result in results), results

    def wait_until_embedded(self, document_id: str, routing: str | None = None) -> None:
        def is_embedded() -> bool:
            [found] = self._engine.mget(self.index, [(document_id, routing)], source_includes=["embedding_meta"])
            return found is not None and bool(found["_source"])

        wait_until(is_embedded)


@pytest.fixture
def app(engine: Engine, index_name: str) -> Application:
    """In one shard: the documents are read in the order in which they were written."""
    settings = {"index.knn": True} if engine.info.needs_index_knn else {}
    engine.create_index(index_name, {"settings": settings})
    return Application(engine, index_name)


@pytest.fixture
def embed(engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path) -> Callable[..., LoadReport]:
    """Embed the index in place; the function is called before the fifth window of 50 documents."""

    def run(meddle: Callable[[], None] = lambda: None, index: str = index_name, **options: Any) -> LoadReport:
        meddling = Interposed(tiny, lambda window: meddle() if window == 4 else None)
        return load(engine_url, meddling, index, dead=tmp_path / "dead", batch_window=50, **options)

    return run


@also_opensearch2
def test_deleted_and_added_documents_are_counted_apart(app: Application, embed: Callable[..., LoadReport]) -> None:
    app.put(sentences(600))

    def meddle() -> None:
        app.wait_until_embedded("d0")
        app.delete("d0")
        app.put(sentences(630)[600:])

    summary = embed(meddle)
    assert summary.indexed == 600
    assert (summary.missing, summary.concurrent) == (0, ConcurrentChanges(deleted=1, unseen=30))
    assert summary.exit_code == 0
    assert summary.notes == (
        "1 document of this load was deleted by others during the load",
        "30 documents were written by others during this load and have no current vector: run `es-sbert ingest "
        f"--index {app.index} --vector embedding`, or use `watch_seconds`",
    )
    again = embed()
    assert (again.indexed, again.unchanged, again.notes) == (30, 599, ())


def test_every_kind_of_change_is_counted(app: Application, embed: Callable[..., LoadReport]) -> None:
    documents = sentences(600)
    app.put(documents[:100])
    embed()
    app.put(documents[100:])

    def meddle() -> None:
        # d0 to d9 have been found unchanged, d100 to d109 have been written.
        app.wait_until_embedded("d109")
        app.update(("d0", {"text": "Another text."}), ("d1", {"price": 7}))
        app.update(("d100", {"text": "Another text."}), ("d101", {"price": 7}), ("d102", {"text": ""}))
        app.put([documents[103]])  # as an application does that knows of no vectors
        app.delete("d104", "d105", "d2")
        app.put([documents[105], {"id": "new", "text": "A new one."}, {"id": "none", "price": 1}])
        # In one shard, this replaces the document of that id which has none.
        app.put([{"id": "d106", "text": "With a routing of its own."}], routing="r")

    summary = embed(meddle)
    # Deleted: d104 and d106. Changed: d100, d102, d103 and d105. Unseen: d0, new, and the other d106.
    assert (summary.missing, summary.concurrent) == (0, ConcurrentChanges(deleted=2, changed=4, unseen=3))
    assert summary.exit_code == 0
    again = embed()
    assert (again.indexed, again.skipped.empty, again.notes) == (6, 2, ())


def test_changes_that_leave_the_vector_current_are_not_noted(
    app: Application, embed: Callable[..., LoadReport]
) -> None:
    app.put(sentences(600))

    def meddle() -> None:
        app.wait_until_embedded("d0")
        app.update(*((f"d{number}", {"price": number}) for number in range(0, 600, 2)))

    summary = embed(meddle)
    assert (summary.missing, summary.concurrent, summary.notes) == (0, ConcurrentChanges(), ())
    assert embed().unchanged == 600


def test_other_documents_of_a_filtered_alias_do_not_count(
    app: Application, embed: Callable[..., LoadReport], engine: Engine, index_name: str
) -> None:
    """A document that leaves the alias has been written all the same."""
    alias = f"{index_name}-alias"
    engine.refresh(index_name)
    engine.put_mapping(index_name, {"properties": {"kind": {"type": "keyword"}}})
    engine.update_aliases([{"add": {"index": index_name, "alias": alias, "filter": {"term": {"kind": "a"}}}}])
    app.put([document | {"kind": "ab"[number % 2]} for number, document in enumerate(sentences(600))])

    def meddle() -> None:
        app.wait_until_embedded("d0")
        app.update(("d0", {"kind": "b"}))
        app.put(
            [{"id": "new-a", "text": "A new one.", "kind": "a"}, {"id": "new-b", "text": "A new one.", "kind": "b"}]
        )
        app.delete("d1")

    summary = embed(meddle, alias)
    assert summary.indexed == 300
    assert (summary.missing, summary.concurrent) == (0, ConcurrentChanges(unseen=1))


def test_documents_with_routing_are_compared_by_it(app: Application, embed: Callable[..., LoadReport]) -> None:
    app.put(sentences(600)[:300], routing="one")
    app.put(sentences(600)[300:], routing="two")

    def meddle() -> None:
        app.wait_until_embedded("d0", "one")
        app.put([{"id": "d0", "text": "Changed."}, {"id": "new", "text": "A new one."}], routing="one")

    summary = embed(meddle)
    assert (summary.indexed, summary.missing) == (600, 0)
    assert summary.concurrent == ConcurrentChanges(changed=1, unseen=1)


def test_documents_that_lose_one_of_two_vectors_are_counted(app: Application, embed: Callable[..., LoadReport]) -> None:
    app.put([document | {"title": document["text"]} for document in sentences(600)])

    def meddle() -> None:
        app.wait_until_embedded("d0")
        app.update(("d0", {"title": "Another title."}), ("d1", {"text": "Another text."}), ("d2", {"price": 7}))

    summary = embed(meddle, vectors=("embedding={text}", "title_embedding={title}"))
    assert (summary.indexed, summary.concurrent, summary.exit_code) == (600, ConcurrentChanges(changed=2), 0)
    assert "--vector embedding --vector title_embedding" in summary.notes[0]


@also_opensearch2
def test_document_that_changes_whenever_it_is_embedded_counts_as_written_by_others(
    app: Application, engine_url: str, tiny: Encoder, tmp_path: Path
) -> None:
    app.put(sentences(120))
    texts = itertools.count()
    changing = Interposed(tiny, lambda window: app.update(("d0", {"text": f"Text {next(texts)}."})))
    summary = load(engine_url, changing, app.index, dead=tmp_path / "dead", batch_window=50)
    assert (summary.indexed, summary.skipped.superseded, summary.dead) == (119, 1, 0)
    assert (summary.missing, summary.concurrent, summary.exit_code) == (0, ConcurrentChanges(unseen=1), 0)
    assert "run `es-sbert ingest" in summary.notes[0]
    again = load(engine_url, tiny, app.index, dead=tmp_path / "dead", batch_window=50)
    assert (again.indexed, again.unchanged, again.notes) == (1, 119, ())


def test_rejected_documents_are_not_counted_as_written_by_others(
    app: Application, embed: Callable[..., LoadReport]
) -> None:
    app.put([*sentences(600), {"id": "dead", "text": 7}])
    summary = embed(lambda: app.put([{"id": "new", "text": "A new one."}]))
    assert (summary.dead, summary.concurrent, summary.exit_code) == (1, ConcurrentChanges(unseen=1), 1)


def test_random_writers_leave_exactly_what_the_report_says(
    engine: Engine, engine_url: str, index_name: str, embed: Callable[..., LoadReport]
) -> None:
    engine.create_index(index_name, {"settings": {"number_of_shards": 3}})
    app = Application(engine, index_name)
    app.put(sentences(600))
    app.put([{"id": name} | fields for name, fields in shared_documents().items()])
    writers = RandomWriters(engine_url, index_name, threads=2, seed=7, scripts=False)

    def meddle() -> None:
        with writers.running():
            writers.wait_for(150)

    report = embed(meddle)
    # Nothing was written after the fifth window: another run finds what the report has counted.
    changes = report.concurrent
    assert (report.missing, report.exit_code) == (0, 0), report
    assert changes.changed + changes.unseen > 0
    again = embed()
    assert again.indexed + again.skipped.empty - report.skipped.empty == changes.changed + changes.unseen
    assert (again.missing, again.concurrent, again.notes) == (0, ConcurrentChanges(), ())
