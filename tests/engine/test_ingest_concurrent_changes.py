"""Several loads, and other programs, at work in one index at the same time: nothing of it is lost without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.bulk_request import BulkItemResult
from es_sbert.engines.engine import Engine
from es_sbert.index.mapping import vector_fields
from es_sbert.ingest.checkpoint import default_checkpoint_path
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.ingest.sources.file_sources import find_sources
from tests.engine.ingest_support import Interposed, Loads, bulk, put, sentences, update, wait_until, write_jsonl
from tests.engine.sources import read_sources
from tests.engine.vectors import state_of

pytestmark = pytest.mark.one_engine


def before_window(encoder: Encoder, number: int, meddle: Callable[[], None]) -> Interposed:
    """Another program has its turn before this window is embedded."""
    return Interposed(encoder, lambda window: meddle() if window == number else None)


def test_overwritten_mapping_meta_is_restored(engine: Engine, loads: Loads) -> None:
    """It had read `_meta` before this load wrote into it."""
    path = loads.write(sentences(20))
    meddling = before_window(loads.encoder, 0, lambda: engine.put_mapping(loads.index, {"_meta": {"owner": "app"}}))
    summary = loads.load(path, encoder=meddling, id_field="id")
    assert (summary.indexed, summary.exit_code, summary.notes) == (20, 0, ())
    mappings = state_of(engine, loads.index).mappings
    assert vector_fields(mappings, loads.index)["embedding"].fingerprint == loads.encoder.info.fingerprint
    assert mappings["_meta"]["owner"] == "app"
    assert loads.load(path, id_field="id").unchanged == 20


def test_vectors_overwritten_by_another_writer_are_noted(engine: Engine, loads: Loads) -> None:
    """The same documents with another vector field: each load writes them whole, with the vectors it has seen."""
    path = loads.write(sentences(20))
    loads.load(path, id_field="id", vectors=("one={text}",))
    loads.load(path, id_field="id", vectors=("two={text}",))

    def overwrite() -> None:
        """Goes over d0, once it is written, as a load does that knew of neither field."""
        wait_until(
            lambda: (
                read_sources(engine, loads.index, ["d0"], source_includes=["text"])["d0"]["text"] == changed[0]["text"]
            )
        )
        put(engine, loads.index, [{"id": "d0", "text": "New."}])

    changed = [document | {"text": f"Changed: {document['text']}"} for document in sentences(20)]
    write_jsonl(path, changed)
    before = before_window(loads.encoder, 19, overwrite)  # one document a window
    summary = loads.load(path, encoder=before, id_field="id", vectors=("one={text}",), batch_window=1)
    assert summary.indexed == 20
    assert (summary.missing, summary.concurrent, summary.exit_code) == (0, ConcurrentChanges(changed=1), 0)
    [note] = [note for note in summary.notes if "by others" in note]
    assert note.startswith("1 document was written by others during this load: run the same")
    assert not default_checkpoint_path(loads.index, find_sources((str(path),), None)).exists()
    again = loads.load(vectors=("one",))
    assert (again.indexed, again.unchanged, again.notes) == (1, 19, ())


def test_field_added_by_another_load_is_noted(loads: Loads) -> None:
    path = loads.write(sentences(5))

    def other() -> None:
        loads.load(path, id_field="id", vectors=("two={text}",), state=loads.folder / "other.state")

    meddling = before_window(loads.encoder, 0, other)
    [note] = loads.load(path, encoder=meddling, id_field="id", vectors=("one={text}",)).notes
    assert note.startswith("two was added to the index during this load")
    assert f"es-sbert ingest --index {loads.index} --vector two" in note
    assert loads.load(vectors=("two",)).indexed == 5


def test_documents_deleted_during_load_are_noted(engine: Engine, loads: Loads) -> None:
    """One that this load has written, and one that it has found unchanged."""
    path = loads.write(sentences(3))
    loads.load(path, id_field="id")
    write_jsonl(path, sentences(20))

    def delete(window: int) -> None:
        if window == 3:
            wait_until(lambda: bool(read_sources(engine, loads.index, ["d3"], source_includes=["id"])))
            bulk(engine, loads.index, {"delete": {"_id": "d0"}}, {"delete": {"_id": "d3"}})

    meddling = Interposed(loads.encoder, delete)
    options: dict[str, Any] = {"id_field": "id", "state": loads.folder / "state"}
    summary = loads.load(path, encoder=meddling, batch_window=5, **options)
    assert (summary.indexed, summary.unchanged) == (17, 3)
    assert (summary.missing, summary.concurrent, summary.exit_code) == (0, ConcurrentChanges(deleted=2), 0)
    assert summary.notes[0].startswith("2 documents of this load were deleted by others during the load: run the same")
    assert not (loads.folder / "state").exists()
    again = loads.load(path, **options)
    assert (again.indexed, again.unchanged, again.notes) == (2, 18, ())


def test_changes_that_the_source_keeps_are_not_noted(engine: Engine, loads: Loads) -> None:
    """Another program counts clicks, and writes documents of its own."""
    path = loads.write(sentences(3))
    loads.load(path, id_field="id")
    write_jsonl(path, sentences(20))

    def count_clicks(window: int) -> None:
        if window == 3:
            wait_until(lambda: bool(read_sources(engine, loads.index, ["d3"], source_includes=["id"])))
            update(engine, loads.index, {"d0": {"clicks": 1}, "d3": {"clicks": 1}})
            put(engine, loads.index, [{"id": "own", "text": "Not of the source."}])

    summary = loads.load(path, encoder=Interposed(loads.encoder, count_clicks), id_field="id", batch_window=5)
    assert (summary.indexed, summary.unchanged) == (17, 3)
    assert (summary.missing, summary.concurrent, summary.notes) == (0, ConcurrentChanges(), ())


class LosingEngine:
    """The engine of a load that does not execute writes which it acknowledges, as in a failover if it `fails`."""

    _LATER = 1 << 20

    def __init__(self, engine: Engine, lost: set[str], *, fails: bool = True) -> None:
        self._engine, self._lost, self._fails, self._sent = engine, lost, fails, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def bulk(self, name: str, body: bytes, **options: Any) -> list[BulkItemResult]:
        options.pop("actions", None)
        lines = body.split(b"\n")
        sent, results, ids = [], {}, []
        for action, source in zip(lines[::2], lines[1::2], strict=False):
            [head] = orjson.loads(action).values()
            ids.append(head["_id"])
            if head["_id"] in self._lost:
                results[head["_id"]] = BulkItemResult(200, head["_id"], "", name, "updated", (self._LATER, 1))
            else:
                sent += [action, source]
        self._sent = True
        if sent:
            results |= {result.id: result for result in self._engine.bulk(name, b"\n".join([*sent, b""]), **options)}
        return [results[document_id] for document_id in ids]

    def primary_terms(self, name: str) -> dict[int, int]:
        later = int(self._sent and self._fails)
        return {shard: term + later for shard, term in (self._engine.primary_terms(name) or {}).items()}

    def load(self, encoder: Encoder, settings: IngestSettings) -> LoadReport:
        engine: Any = self
        return run_load(
            engine, encoder, plan_load(engine, settings, resolve_sources(settings)), LoadControl(), ProgressMeter()
        )


def test_updates_lost_in_failover_are_detected(engine: Engine, loads: Loads) -> None:
    """No count of vectors tells a document that was updated with the vector it had from its version before."""
    path, state = loads.folder / "docs.jsonl", loads.folder / "state"
    documents = sentences(12)
    loads.load(write_jsonl(path, documents), id_field="id")
    for document in documents:
        document["price"] += 1
    documents[1]["text"] = ""
    write_jsonl(path, [*documents, {"id": "new", "text": "A new one."}, {"id": "newer", "text": "Another one."}])
    settings = IngestSettings(
        index=loads.index, files=(str(path),), id_field="id", dead_letters=loads.dead, state=state
    )
    summary = LosingEngine(engine, {"d0", "d1", "new"}).load(loads.encoder, settings)
    assert (summary.indexed, summary.updated, summary.skipped.empty) == (2, 11, 1)
    assert (summary.missing, summary.concurrent, summary.exit_code) == (3, ConcurrentChanges(), 1)
    assert "Run the same command again" in summary.notes[0]
    assert state.exists()
    again = loads.load(path, id_field="id", state=state)
    assert (again.indexed, again.updated, again.skipped.empty, again.exit_code) == (1, 1, 1, 0)


def test_lossless_failover_reports_nothing_missing(engine: Engine, loads: Loads) -> None:
    path, documents = loads.folder / "docs.jsonl", sentences(12)
    loads.load(write_jsonl(path, documents), id_field="id")
    put(engine, loads.index, [{"id": "x", "text": "Of another writer."}])
    for document in documents[:6]:
        document["price"] += 1
    documents[1]["text"] = ""
    documents[2]["text"] = "Another one."
    write_jsonl(path, documents)
    settings = IngestSettings(index=loads.index, files=(str(path),), id_field="id", dead_letters=loads.dead)
    summary = LosingEngine(engine, set()).load(loads.encoder, settings)
    assert (summary.indexed, summary.updated, summary.skipped.empty, summary.unchanged) == (1, 4, 1, 6)
    assert (summary.missing, summary.concurrent, summary.exit_code) == (0, ConcurrentChanges(), 0)


@pytest.mark.parametrize("fails", [True, False], ids=["failover", "no failover"])
def test_in_place_writes_lost_are_detected(engine: Engine, loads: Loads, fails: bool) -> None:
    """A vector, and the removal of one. Without a failover, the engine has lost them for another reason."""
    engine.create_index(loads.index, {})
    put(engine, loads.index, sentences(8))
    loads.load()
    update(engine, loads.index, {"d1": {"text": ""}})
    more = {"new": "A new one.", "newer": "Another one.", "dead": 7}
    put(engine, loads.index, [{"id": key, "text": text} for key, text in more.items()])
    settings = IngestSettings(index=loads.index, dead_letters=loads.dead)
    summary = LosingEngine(engine, {"d1", "new"}, fails=fails).load(loads.encoder, settings)
    assert (summary.indexed, summary.skipped.empty, summary.dead) == (2, 1, 1)
    assert (summary.missing, summary.concurrent, summary.exit_code) == (2, ConcurrentChanges(), 1)
    [note] = summary.notes
    assert note.startswith("2 documents that this load wrote are missing from")
    assert f"`es-sbert ingest --index {loads.index} --vector embedding` embeds those that are there" in note
    assert loads.load().indexed == 1
