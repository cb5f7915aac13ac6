"""Recall, sizes, change of type and migration of a field of passages, and of two fields at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from es_sbert.diagnostics.recall import RecallQueries, measure_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import read_stored_vectors
from es_sbert.index.index_summary import count_vectors
from es_sbert.index.vector_field import read_vector_field
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from tests.engine.migration.support import Place, expect_no_stragglers, text_of

COUNT = 60


def long_document(number: int) -> Json:
    """A title, and a body of one to five sentences."""
    body = ". ".join(text_of(100 * number + sentence) for sentence in range(1 + number % 5)) + "."
    return {"title": text_of(number), "body": body}


def test_passages_recall_size_and_migration_with_two_fields(
    engine: Engine, index_name: str, encoders: tuple[Encoder, Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_no_stragglers(monkeypatch)
    first, second = encoders
    place = Place(engine, f"{index_name}-alias", index_name, tmp_path / "dead.jsonl")
    knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
    engine.create_index(index_name, {"settings": knn})
    engine.update_aliases([{"add": {"index": index_name, "alias": place.alias}}])
    place.write({str(number): long_document(number) for number in range(COUNT)})
    of_title = IngestSettings(index=index_name, vectors=("of_title={title}",), dead_letters=place.dead)
    of_body = IngestSettings(
        index=index_name, vectors=("embedding={body}",), passages=8, passage_overlap=0, dead_letters=place.dead
    )
    for settings in (of_title, of_body):
        run_load(engine, first, plan_load(engine, settings, resolve_sources(settings)), LoadControl(), ProgressMeter())

    field = read_vector_field(engine, index_name, "embedding")
    assert field.meta.passages is not None
    before = place.contents(index_name)
    passages = sum(len(read_stored_vectors(source["embedding"])) for source in before.values())
    assert passages > COUNT
    assert count_vectors(engine, index_name, field) == passages
    queries = RecallQueries(first.encode([text_of(number) for number in range(20)], "query"), [None] * 20)
    assert measure_index(engine, field, queries)[-1].recall.mean > 0.9

    result = place.migrate(second)
    try:
        assert (result.finished, result.copied, result.embedded, result.dead) == (True, COUNT, COUNT, 0)
        assert result.compared > 50
        after = place.contents()
        for name, source in before.items():
            now = after[name]
            title = second.encode([source["title"]], "document")[0]
            assert np.allclose(read_stored_vectors(now["of_title"])[0][2], title, atol=1e-6)
            old, new = (read_stored_vectors(document["embedding"]) for document in (source, now))
            assert [(start, end) for start, end, _ in new] == [(start, end) for start, end, _ in old]
            texts = [source["body"][start:end] for start, end, _ in new]
            expected = second.encode(texts, "document")
            assert np.allclose(np.stack([vector for _, _, vector in new]), expected, atol=1e-6)
        moved = read_vector_field(engine, place.alias, "embedding")
        assert (moved.meta.passages, moved.meta.fingerprint) == (field.meta.passages, second.info.fingerprint)
    finally:
        engine.delete_index(result.target)
