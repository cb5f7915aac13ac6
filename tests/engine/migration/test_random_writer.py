"""Programs that write all the time beside two migrations: no acknowledged write is lost on any engine."""

from __future__ import annotations

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from tests.engine.migration.support import Place, everything
from tests.random_writer import RandomWriters, differences, shared_documents

pytestmark = pytest.mark.one_engine

OURS = {"embedding", "embedding_meta", "_routing"}


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
