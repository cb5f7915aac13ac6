"""Other programs write into an index while it is moved to another model: no acknowledged write is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import RequestFailed
from tests.engine.ingest_support import Interposed, load, write_jsonl
from tests.engine.migration.support import COUNT, Overheard, Place, document, everything, migrate_as, text_of
from tests.random_writer import RandomWriters, differences, shared_documents

pytestmark = pytest.mark.one_engine

OURS = {"embedding", "embedding_meta", "_routing"}


def test_writes_during_migration_are_caught_up(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """At every step, the last of them right before writes are blocked; also of an index with a small result window."""
    expected = everything()
    place.engine.put_settings(place.index, {"index.max_result_window": "70"})
    steps: list[str] = []

    def meddle(step: str) -> None:
        if step not in ("create_index", "block_writes", "shard_states") or "block_writes" in steps:
            return
        number = len(steps)
        steps.append(step)
        new, changed, gone = f"new-{number}", str(3 * number), str(3 * number + 7)
        sources = {new: document(1000 + number), changed: document(3 * number, version=1)}
        place.write(sources)
        place.delete(gone)
        expected.update(sources)
        expected.pop(gone, None)

    result = migrate_as(place, Overheard(place.engine, meddle), encoders[1])
    place.engine.put_settings(result.target, {"index.max_result_window": None})
    assert steps[-1] == "block_writes"
    assert (result.finished, result.removed > 0) == (True, True)
    place.assert_holds(expected, encoders[1])


@pytest.mark.parametrize(("step", "times"), [("open_point_in_time", 6), ("search_point_in_time", 13)])
def test_deletion_is_found_although_a_point_in_time_is_lost(
    step: str, times: int, place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine, steps, expected = place9.engine, list[str](), everything()

    def fail(name: str) -> None:
        steps.append(name)
        if name == "block_writes":
            engine.bulk(place9.index, b'{"delete":{"_id":"1"}}\n')
        if name == step and steps.count(step) == times:
            raise RequestFailed("no such point in time", "Wait.", 404)

    result = migrate_as(place9, Overheard(engine, fail), encoders[1])
    assert (result.finished, result.removed, steps.count(step) > times) == (True, 1, True)
    del expected["1"]
    place9.assert_holds(expected, encoders[1])


def test_no_acknowledged_write_is_lost_during_migrations(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    info = place.engine.info
    scripts = info.engine_type is EngineType.OPENSEARCH or info.version < (9, 0, 0)  # the server of the tests has none
    place.write(shared_documents())
    writers = RandomWriters(info.url, place.alias, threads=4, seed=13, scripts=scripts)
    results = []
    with writers.running():
        for encoder in (encoders[1], encoders[0]):
            writers.wait_for(100)
            results.append(place.migrate(encoder))
        writers.wait_for(100)
    assert all(result.finished and result.writes_refused_seconds > 0 for result in results)
    counts = writers.counts()
    assert counts.operations > 300
    assert counts.missing == 0
    assert differences(everything() | writers.expected(), place.contents(), OURS.__contains__) == []


def test_load_stops_when_its_alias_moves(place9: Place, encoders: tuple[Encoder, Encoder], tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "new.jsonl", [{"id": f"n{n}", "text": text_of(n)} for n in range(60)])

    def swap(window: int) -> None:
        if window == 1:
            assert place9.migrate(encoders[1]).finished

    encoder: Any = Interposed(encoders[0], swap)
    summary = load(
        place9.engine.info.url, encoder, place9.alias, source, dead=tmp_path / "dead.jsonl", id_field="id",
        batch_window=20, text_fields=("text",), retry_seconds=3600,
    )  # fmt: skip
    assert (summary.exit_code, summary.left > 0) == (1, True)
    assert f"{place9.alias} pointed to {place9.alias}-old" in (summary.stopped or "")
    assert "as after a migration" in (summary.stopped or "")
    # What was acknowledged before is in the new index.
    assert len(place9.contents()) == COUNT + summary.indexed
