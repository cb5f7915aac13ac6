"""Searches while an index is moved to another model: no gap, no mixture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.search.search_result import SearchResult
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.vectors import Vectors
from tests.engine.migration.support import Overheard, Place, make_place, text_of

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
        vector = by_mapping.encoder.encode(["a man plays"], "query")[0]
        result = place.migrate(second)
        # The old index still stands: both may go on with it.
        assert by_encoder.search("a man plays", k=3).hits[0].index == place.index
        place.engine.delete_index(place.index)
        hits = by_mapping.search("a man plays", k=3).hits
        assert hits[0].index == result.target
        assert by_document.similar_to(id, k=1).hits[0].index == result.target
        assert by_mapping.field.meta.fingerprint == second.info.fingerprint
        query = second.encode(["a man plays"], "query")[0]
        for hit in hits:
            expected = second.encode([hit.source["text"]], "document")[0]
            assert hit.cosine == pytest.approx(float(np.dot(query, expected)), abs=1e-5)
        with pytest.raises(IndexMismatch, match="not of"):
            by_encoder.search("a man plays", k=3)
        # A vector of the old model may not be compared with anything any more.
        with SemanticIndex(place.alias, place.engine, encoder=second) as fresh:
            assert fresh.search("a man plays", k=3).hits == hits
        assert vector.shape == (16,)


def test_searches_during_migration_never_fail_or_mix_models(
    engine: Engine, encoders: tuple[Encoder, Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches from before the migration until after the old index is deleted; every hit is checked."""
    monkeypatch.setattr("es_sbert.search.search_scope.REFRESH_SECONDS", 0.5)
    made = make_place(engine, encoders[0], tmp_path / "dead.jsonl")
    place = next(made)
    by_fingerprint = {encoder.info.fingerprint: encoder for encoder in encoders}
    over = threading.Event()
    answers: list[tuple[str, SearchResult]] = []
    errors: list[Exception] = []

    def search(number: int) -> None:
        with SemanticIndex(place.alias, EngineSettings(url=engine.info.url), precision="fp32", threads=1) as index:
            while not over.is_set():
                begin = time.monotonic()
                text = text_of(number)
                number += 4
                try:
                    answers.append((text, index.search(text, k=5)))
                except Exception as error:  # whatever it is, the test must see it
                    errors.append(error)
                over.wait(max(0.0, 0.05 - (time.monotonic() - begin)))

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search, number) for number in range(4)]
        try:
            wait_until(lambda: len(answers) >= 20 or bool(errors))
            steps: list[str] = []

            def let_search(step: str) -> None:
                """Every thread searches between the steps of the migration."""
                if step in ("create_index", "bulk", "update_aliases", "put_settings"):
                    steps.append(step)
                    seen = len(answers)
                    wait_until(lambda: len(answers) >= seen + 8 or bool(errors))

            place.engine = Overheard(engine, let_search)  # type: ignore[assignment]
            result = place.migrate(encoders[1])
            place.engine = engine
            wait_until(
                lambda: bool(errors) or {hit.index for _, found in answers[-8:] for hit in found} == {result.target}
            )
            engine.delete_index(place.index)
            after = len(answers)
            wait_until(lambda: len(answers) >= after + 40 or bool(errors))
        finally:
            over.set()
    for done in searches:
        done.result()
    assert errors == []
    assert result.finished
    assert {"create_index", "bulk", "update_aliases"} <= set(steps)
    model_of = {place.index: encoders[0], result.target: encoders[1]}
    vectors: dict[tuple[str, str], Vectors] = {}

    def vector(encoder: Encoder, text: str) -> Vectors:
        key = (encoder.info.fingerprint, text)
        if key not in vectors:
            vectors[key] = encoder.encode([text], "query")[0]  # the models have no prompts
        return vectors[key]

    for text, found in answers:
        [index] = {hit.index for hit in found}
        encoder = model_of[index]
        assert len(found) == 5
        for hit in found:
            meta = hit.source["embedding_meta"]
            assert by_fingerprint[meta["fingerprint"]] is encoder
            cosine = float(np.dot(vector(encoder, text), vector(encoder, hit.source["text"])))
            assert hit.cosine == pytest.approx(cosine, abs=1e-4)
    assert indices(answers) == set(model_of)
    next(made, None)


def indices(answers: list[tuple[str, SearchResult]]) -> set[str]:
    return {hit.index for _, found in answers for hit in found}


def wait_until(happened: Callable[[], bool]) -> None:
    """Generous: the machine may be slow."""
    deadline = time.monotonic() + 180
    while not happened():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
