"""An application writes to an index while its documents are embedded in place: the report tells who did what."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport
from tests.conftest import also_opensearch2
from tests.engine.ingest_support import Interposed, Loads, bulk, put, sentences, update, wait_until
from tests.engine.sources import read_sources
from tests.random_writer import RandomWriters, shared_documents

pytestmark = pytest.mark.one_engine


@pytest.fixture
def embed(tiny_loads: Loads) -> Callable[..., LoadReport]:
    """Embed the index in place; the function is called before the fifth window of 50 documents."""

    def run(meddle: Callable[[], None] = lambda: None) -> LoadReport:
        meddling = Interposed(tiny_loads.encoder, lambda window: meddle() if window == 4 else None)
        return tiny_loads.load(encoder=meddling, batch_window=50)

    return run


def create(engine: Engine, index: str, shards: int = 1) -> None:
    """In one shard, the documents are read in the order in which they were written."""
    settings = {"index.knn": True} if engine.info.needs_index_knn else {}
    engine.create_index(index, {"settings": settings | {"number_of_shards": shards}})


@also_opensearch2
def test_every_kind_of_change_is_counted(engine: Engine, index_name: str, embed: Callable[..., LoadReport]) -> None:
    create(engine, index_name)
    documents = sentences(600)
    put(engine, index_name, documents[:100])
    embed()
    put(engine, index_name, documents[100:])

    def is_embedded(key: str) -> bool:
        return bool(read_sources(engine, index_name, [key], source_includes=["embedding_meta"])[key])

    def meddle() -> None:
        # d0 to d9 have been found unchanged, d100 to d109 have been written.
        wait_until(lambda: is_embedded("d109"))
        other = {"text": "Another text."}
        update(engine, index_name, {"d0": other, "d1": {"price": 7}})
        update(engine, index_name, {"d100": other, "d101": {"price": 7}, "d102": {"text": ""}})
        put(engine, index_name, [documents[103]])  # as an application does that knows of no vectors
        bulk(engine, index_name, *({"delete": {"_id": key}} for key in ("d104", "d105", "d2")))
        put(engine, index_name, [documents[105], {"id": "new", **other}, {"id": "none", "price": 1}])
        # In one shard, this replaces the document of that id which has none.
        bulk(engine, index_name, {"index": {"_id": "d106", "routing": "r"}}, other)

    summary = embed(meddle)
    # Deleted: d104 and d106. Changed: d100, d102, d103 and d105. Unseen: d0, new, and the other d106.
    assert (summary.missing, summary.concurrent) == (0, ConcurrentChanges(deleted=2, changed=4, unseen=3))
    assert summary.exit_code == 0
    assert f"run `es-sbert ingest --index {index_name} --vector embedding`" in summary.notes[-1]
    again = embed()
    assert (again.indexed, again.skipped.empty, again.notes) == (6, 2, ())


@also_opensearch2
def test_document_that_changes_whenever_it_is_embedded_counts_as_written_by_others(
    engine: Engine, tiny_loads: Loads
) -> None:
    index, texts = tiny_loads.index, itertools.count()
    create(engine, index)
    put(engine, index, sentences(120))
    changing = Interposed(tiny_loads.encoder, lambda _: update(engine, index, {"d0": {"text": f"Text {next(texts)}."}}))
    summary = tiny_loads.load(encoder=changing, batch_window=50)
    assert (summary.indexed, summary.skipped.superseded, summary.dead) == (119, 1, 0)
    assert (summary.missing, summary.concurrent, summary.exit_code) == (0, ConcurrentChanges(unseen=1), 0)
    assert "run `es-sbert ingest" in summary.notes[0]
    again = tiny_loads.load()
    assert (again.indexed, again.unchanged, again.notes) == (1, 119, ())


def test_random_writers_leave_exactly_what_the_report_says(
    engine: Engine, engine_url: str, index_name: str, embed: Callable[..., LoadReport]
) -> None:
    create(engine, index_name, shards=3)
    put(engine, index_name, sentences(600))
    put(engine, index_name, ({"id": name} | fields for name, fields in shared_documents().items()))
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
