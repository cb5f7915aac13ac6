"""Several loads, and other programs, at work in one index at the same time: nothing of it is lost without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder, EncoderInfo
from es_sbert.engines.engine import Engine
from es_sbert.index.load_settings import BULK_LOAD_SETTINGS
from es_sbert.index.mapping import vector_fields
from es_sbert.ingest.checkpoint import default_checkpoint_path
from es_sbert.ingest.load import LocalRunner, run_load
from es_sbert.ingest.load_context import LoadContext
from es_sbert.ingest.load_plan import IngestSettings, plan_load
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.ingest.sources.find_sources import find_sources
from tests.engine.ingest_support import Interposed, load, sentences, wait_until, write_jsonl


@pytest.fixture
def es9(es9_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    return open_engine(es9_url)


@pytest.fixture
def index(es9_url: str, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(es9_url)


def before_window(encoder: Encoder, number: int, meddle: Callable[[], None]) -> Interposed:
    """Another program has its turn before this window is embedded."""
    return Interposed(encoder, lambda window: meddle() if window == number else None)


def test_overwritten_mapping_meta_is_restored(es9: Engine, index: str, encoder: Encoder, tmp_path: Path) -> None:
    """It had read `_meta` before this load wrote into it."""
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(20))
    meddling = before_window(encoder, 0, lambda: es9.put_mapping(index, {"_meta": {"owner": "app"}}))
    summary = load(es9.info.url, meddling, index, path, dead=tmp_path / "dead", id_field="id")
    assert (summary.indexed, summary.exit_code, summary.notes) == (20, 0, ())
    state = es9.get_index(index)
    assert state is not None
    assert vector_fields(state.mappings, index)["embedding"].fingerprint == encoder.info.fingerprint
    assert state.mappings["_meta"]["owner"] == "app"
    assert {state.settings.get(name) for name in BULK_LOAD_SETTINGS} == {None, "1"}
    assert load(es9.info.url, encoder, index, path, dead=tmp_path / "dead", id_field="id").unchanged == 20


def test_vectors_overwritten_by_another_writer_are_an_error(
    es9: Engine, index: str, encoder: Encoder, tmp_path: Path
) -> None:
    """The same documents with another vector field: each load writes them whole, with the vectors it has seen."""
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(20))
    load(es9.info.url, encoder, index, path, dead=tmp_path / "dead", id_field="id", vectors=("one={text}",))
    load(es9.info.url, encoder, index, path, dead=tmp_path / "dead", id_field="id", vectors=("two={text}",))

    def overwrite() -> None:
        """Goes over d0, once it is written, as a load does that knew of neither field."""
        wait_until(
            lambda: es9.mget_sources(index, ["d0"], source_includes=["text"])["d0"]["text"] == changed[0]["text"]
        )
        lines = [b'{"index":{"_id":"d0"}}', orjson.dumps({"id": "d0", "text": "New."}), b""]
        assert all(result.ok for result in es9.bulk(index, b"\n".join(lines)))

    changed = [document | {"text": f"Changed: {document['text']}"} for document in sentences(20)]
    write_jsonl(path, changed)
    before = before_window(encoder, 19, overwrite)  # one document a window
    summary = load(
        es9.info.url,
        before,
        index,
        path,
        dead=tmp_path / "dead",
        id_field="id",
        vectors=("one={text}",),
        batch_window=1,
    )
    assert summary.indexed == 20
    assert (summary.missing, summary.exit_code) == (1, 1)
    [lost] = [note for note in summary.notes if "lack the vector" in note]
    assert lost.startswith("1 documents that the engine acknowledged")
    assert "Run the same command again" in lost
    assert default_checkpoint_path(index, find_sources((str(path),), None)).exists()
    again = load(es9.info.url, encoder, index, dead=tmp_path / "dead", vectors=("one",))
    assert (again.indexed, again.unchanged, again.notes) == (1, 19, ())


def test_field_added_by_another_load_is_noted(es9: Engine, index: str, encoder: Encoder, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(5))

    def other() -> None:
        load(
            es9.info.url,
            encoder,
            index,
            path,
            dead=tmp_path / "dead",
            id_field="id",
            vectors=("two={text}",),
            state=tmp_path / "other.state",
        )

    meddling = before_window(encoder, 0, other)
    summary = load(es9.info.url, meddling, index, path, dead=tmp_path / "dead", id_field="id", vectors=("one={text}",))
    [note] = summary.notes
    assert note.startswith("two was added to the index during this load")
    assert f"es-sbert ingest --index {index} --vector two" in note
    assert load(es9.info.url, encoder, index, dead=tmp_path / "dead", vectors=("two",)).indexed == 5


def test_documents_deleted_during_load_are_an_error(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    path, state = write_jsonl(tmp_path / "docs.jsonl", sentences(20)), tmp_path / "state"

    def delete(window: int) -> None:
        if window == 3:
            wait_until(lambda: bool(engine.mget_sources(index_name, ["d0"], source_includes=["id"])))
            assert all(result.ok for result in engine.bulk(index_name, b'{"delete":{"_id":"d0"}}\n'))

    summary = load(
        engine_url,
        Interposed(encoder, delete),
        index_name,
        path,
        dead=tmp_path / "dead",
        id_field="id",
        batch_window=5,
        state=state,
    )
    assert (summary.indexed, summary.missing, summary.exit_code) == (20, 1, 1)
    assert state.exists()


class FailedOver(LocalRunner):
    """Loads, and lets the engine fail over afterwards: it reports other primary terms and holds other documents."""

    def __init__(self, encoder: Encoder, engine: Engine, documents: dict[str, Any]) -> None:
        super().__init__(encoder)
        self._engine, self._documents, self._terms_later = engine, documents, 0

    def load(self, context: LoadContext) -> EncoderInfo:
        info = super().load(context)
        assert all(result.ok for result in self._engine.bulk(context.index.name, bulk_body(self._documents)))
        self._terms_later = 1
        return info

    def __getattr__(self, name: str) -> Any:
        """It is the engine of the load too."""
        return getattr(self._engine, name)

    def primary_terms(self, name: str) -> dict[int, int] | None:
        terms = self._engine.primary_terms(name)
        return {shard: term + self._terms_later for shard, term in (terms or {}).items()}

    def run(self, settings: IngestSettings) -> LoadReport:
        engine: Any = self
        return run_load(engine, self, plan_load(engine, settings), LoadControl(), SilentMeter())


def bulk_body(documents: dict[str, Any]) -> bytes:
    lines = [line for key, source in documents.items() for line in ({"index": {"_id": key}}, source)]
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def test_updates_lost_in_failover_are_detected(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    """No count of vectors tells a document that was updated with the vector it had from its version before."""
    path, state = tmp_path / "docs.jsonl", tmp_path / "state"
    documents = sentences(12)
    load(engine_url, encoder, index_name, write_jsonl(path, documents), dead=tmp_path / "dead", id_field="id")
    before = engine.mget_sources(index_name, ["d0", "d1"], source_includes=["*"], vectors=True)
    for document in documents:
        document["price"] += 1
    documents[1]["text"] = ""
    write_jsonl(path, [*documents, {"id": "new", "text": "A new one."}])
    settings = IngestSettings(
        index=index_name, files=(str(path),), id_field="id", dead_letters=tmp_path / "dead", state=state
    )
    summary = FailedOver(encoder, engine, before).run(settings)
    assert (summary.indexed, summary.updated, summary.skipped.empty) == (1, 11, 1)
    assert (summary.missing, summary.exit_code) == (2, 1)
    assert state.exists()


def test_lossless_failover_reports_nothing_missing(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    path, documents = tmp_path / "docs.jsonl", sentences(12)
    load(engine_url, encoder, index_name, write_jsonl(path, documents), dead=tmp_path / "dead", id_field="id")
    for document in documents[:6]:
        document["price"] += 1
    documents[1]["text"] = ""
    documents[2]["text"] = "Another one."
    write_jsonl(path, documents)
    settings = IngestSettings(index=index_name, files=(str(path),), id_field="id", dead_letters=tmp_path / "dead")
    other = {"x": {"text": "Of another writer."}}
    summary = FailedOver(encoder, engine, other).run(settings)
    assert (summary.indexed, summary.updated, summary.skipped.empty, summary.unchanged) == (1, 4, 1, 6)
    assert (summary.missing, summary.exit_code) == (0, 0)


def test_in_place_writes_lost_in_failover_are_detected(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    documents = {document["id"]: document for document in sentences(8)}
    engine.create_index(index_name, {})
    engine.bulk(index_name, bulk_body(documents))
    load(engine_url, encoder, index_name, dead=tmp_path / "dead")
    source = engine.mget_sources(index_name, ["d1"], source_includes=["*"], vectors=True)["d1"]
    emptied = {"d1": source | {"text": ""}}
    engine.bulk(index_name, bulk_body(emptied | {"new": {"text": "A new one."}, "dead": {"text": 7}}))
    summary = FailedOver(encoder, engine, emptied).run(IngestSettings(index=index_name, dead_letters=tmp_path / "dead"))
    assert (summary.indexed, summary.skipped.empty, summary.dead) == (1, 1, 1)
    assert (summary.missing, summary.exit_code) == (1, 1)
    [note] = summary.notes
    assert f"`es-sbert ingest --index {index_name} --vector embedding` embeds those that are there" in note
