"""Searches while an index is moved to another model: no gap, no mixture."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch
from es_sbert.search.search_result import SearchResult
from es_sbert.search.semantic_index import SemanticIndex
from tests.engine.ingest_support import wait_until
from tests.engine.migration.support import Overheard, Place, text_of
from tests.raised import raises

pytestmark = pytest.mark.one_engine


def test_open_index_follows_alias_after_old_index_is_deleted(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    first, second = encoders
    with (
        SemanticIndex(place.alias, place.engine, precision="fp32", threads=1) as by_mapping,
        SemanticIndex(place.alias, place.engine, encoder=first) as by_encoder,
        SemanticIndex(place.alias, place.engine) as by_document,
    ):
        id = by_document.similar_to("7", k=1).hits[0].id  # it has a routing of its own
        assert by_mapping.search("a man plays", k=3).hits[0].index == place.index
        target = place.migrate(second).target
        # The old index is still there: searches may go on with it.
        assert by_encoder.search("a man plays", k=3).hits[0].index == place.index
        place.engine.delete_index(place.index)
        hits = by_mapping.search("a man plays", k=3).hits
        assert hits[0].index == target
        assert by_document.similar_to(id, k=1).hits[0].index == target
        assert by_mapping.field.meta.fingerprint == second.info.fingerprint
        with SemanticIndex(place.alias, place.engine, encoder=second) as fresh:
            assert fresh.search("a man plays", k=3).hits == hits
        with raises(IndexMismatch, "model"):
            by_encoder.search("a man plays", k=3)


def test_searches_during_migration_never_fail_or_mix_models(
    place: Place, encoders: tuple[Encoder, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches from before the migration until after the old index is deleted; every hit is checked."""
    monkeypatch.setattr("es_sbert.search.search_scope.REFRESH_SECONDS", 0.5)
    engine, over, steps = place.engine, threading.Event(), list[str]()
    answers: list[tuple[str, SearchResult]] = []

    def search(number: int) -> None:
        with SemanticIndex(place.alias, EngineSettings(url=engine.info.url), precision="fp32", threads=1) as index:
            while not over.is_set():
                answers.append((text_of(number), index.search(text_of(number), k=5)))
                number += 4
                over.wait(0.05)

    def failed() -> bool:
        """Whether a search has raised an error, which ends all waits."""
        return any(done.done() for done in searches)

    def wait_for_answers(count: int) -> None:
        before = len(answers)
        wait_until(lambda: failed() or len(answers) >= before + count)

    def let_search(step: str) -> None:
        """Every thread searches between the steps of the migration."""
        if step in ("create_index", "bulk", "update_aliases", "put_settings"):
            steps.append(step)
            wait_for_answers(8)

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search, number) for number in range(4)]
        try:
            wait_for_answers(20)
            place.engine = Overheard(engine, let_search)  # type: ignore[assignment]
            result = place.migrate(encoders[1])
            place.engine = engine
            wait_until(lambda: failed() or {hit.index for _, found in answers[-8:] for hit in found} == {result.target})
            engine.delete_index(place.index)
            wait_for_answers(40)
        finally:
            over.set()
    for done in searches:
        done.result()
    assert result.finished
    assert {"create_index", "bulk", "update_aliases"} <= set(steps)
    model_of = {place.index: encoders[0], result.target: encoders[1]}
    assert {hit.index for _, found in answers for hit in found} == set(model_of)
    for text, found in answers:
        [index] = {hit.index for hit in found}
        assert len(found) == 5
        query, *vectors = model_of[index].encode([text, *(hit.source["text"] for hit in found)])
        assert [hit.cosine for hit in found] == pytest.approx([float(query @ vector) for vector in vectors], abs=1e-4)
        fingerprints = {hit.source["embedding_meta"]["fingerprint"] for hit in found}
        assert fingerprints == {model_of[index].info.fingerprint}
