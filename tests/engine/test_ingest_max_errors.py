"""A load of which too much cannot be loaded stops, says why, and goes on later."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.ingest.ingest_settings import NO_LIMIT, ErrorLimit
from tests.engine.ingest_support import Loads, put, sentences

pytestmark = pytest.mark.one_engine

COUNT = 4000


@pytest.mark.parametrize(
    ("bad", "reason"),
    [({"text": ["a string", 7]}, "is a JSON array with a number, not a string"), ({"price": "not a number"}, "price")],
    ids=["rejected by us", "refused by the engine"],
)
def test_max_errors_stops_load_and_rerun_resumes(
    engine: Engine, tiny_loads: Loads, bad: dict[str, Any], reason: str
) -> None:
    engine.create_index(tiny_loads.index, {"mappings": {"properties": {"price": {"type": "long"}}}})
    documents = [{"id": f"d{n}", "text": f"cat {n % 7}", "price": n} for n in range(COUNT)]
    for document in documents[1000::2]:
        document |= bad
    path = tiny_loads.write(documents)
    options: dict[str, Any] = {"id_field": "id", "batch_window": 64, "bulk_bytes": 8192}
    summary = tiny_loads.load(path, **options)
    assert summary.stopped is not None
    assert 'more than `max_errors="10%"` allows' in summary.stopped
    assert reason in summary.stopped
    assert (summary.exit_code, summary.left) == (1, 0)
    assert 1000 < summary.read < COUNT
    assert summary.dead > 100
    # What was read has come to its end, and nothing else has.
    assert len(tiny_loads.contents()) == summary.indexed
    rest = tiny_loads.load(path, max_errors=NO_LIMIT, **options)
    assert rest.resumed
    assert (rest.stopped, rest.read, rest.dead, rest.unchanged) == (None, COUNT, 1500, summary.indexed)
    assert len(tiny_loads.contents()) == 2500
    assert len(tiny_loads.letters()) == 1500


def test_max_errors_counts_documents_of_the_index(engine: Engine, tiny_loads: Loads) -> None:
    tiny_loads.load(tiny_loads.write(sentences(30)), id_field="id")
    put(engine, tiny_loads.index, [{"id": f"n{n}", "text": "a cat" if n < 5 else 5} for n in range(10)])
    summary = tiny_loads.load(max_errors=ErrorLimit(count=3))
    assert (summary.exit_code, summary.read, summary.indexed, summary.dead) == (1, 40, 5, 5)
    assert summary.stopped is not None
    assert 'more than `max_errors="3"` allows' in summary.stopped
