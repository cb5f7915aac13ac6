"""A load of which too much cannot be loaded stops, says why, and goes on later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.ingest.ledger import NO_LIMIT, ErrorLimit
from tests.engine.ingest_support import Loads, letters, load, open_engine, sentences, write_jsonl

COUNT = 4000


def bad_from(start: int, kind: str) -> list[dict[str, Any]]:
    """Short documents, of which half cannot be loaded from one on."""
    documents = [{"id": f"d{n}", "text": f"cat {n % 7}", "price": n} for n in range(COUNT)]
    for document in documents[start::2]:
        match kind:
            case "rejected by us":
                document["text"] = ["a string", 7]
            case "refused by the engine":
                document["price"] = "not a number"
    return documents


@pytest.mark.parametrize("kind", ["rejected by us", "refused by the engine"])
def test_max_errors_stops_load_and_rerun_resumes(tiny_loads: Loads, kind: str) -> None:
    dead = tiny_loads.folder / "dead.jsonl"
    with open_engine(tiny_loads.url) as engine:
        engine.create_index(tiny_loads.index, {"mappings": {"properties": {"price": {"type": "long"}}}})
    path = write_jsonl(tiny_loads.folder / "d.jsonl", bad_from(1000, kind))
    options: dict[str, Any] = {"dead": dead, "id_field": "id", "batch_window": 64, "bulk_bytes": 8192}
    summary = tiny_loads.load(path, **options)
    assert summary.stopped is not None
    assert 'more than `max_errors="10%"` allows' in summary.stopped
    assert str(dead) in summary.stopped
    assert '`max_errors="off"`' in summary.stopped
    assert "the same command resumes where it stopped" in summary.stopped
    reason = "is a JSON array with a number, not a string" if kind == "rejected by us" else "price"
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
    assert len(letters(dead)) == 1500


def test_max_errors_counts_documents_of_the_index(
    es9_url: str, fresh_index: Any, tiny: Encoder, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    path = write_jsonl(tmp_path / "d.jsonl", [document | {"other": n} for n, document in enumerate(sentences(30))])
    load(es9_url, tiny, index, path, dead=tmp_path / "dead", id_field="id")
    with open_engine(es9_url) as engine:
        body = b"".join(
            b'{"index":{"_id":"n%d"}}\n{"text":%s}\n' % (n, b'"a cat"' if n < 5 else b"5") for n in range(10)
        )
        assert all(result.ok for result in engine.bulk(index, body))
    summary = load(es9_url, tiny, index, dead=tmp_path / "dead", max_errors=ErrorLimit(count=3))
    assert (summary.exit_code, summary.read, summary.indexed, summary.dead) == (1, 40, 5, 5)
    assert summary.stopped is not None
    assert 'more than `max_errors="3"` allows' in summary.stopped


def test_retry_ignores_number_of_dead_letters(es9_url: str, fresh_index: Any, tiny: Encoder, tmp_path: Path) -> None:
    index, dead = fresh_index(es9_url), tmp_path / "dead.jsonl"
    documents = [{"id": n, "text": "cat" if n < 10 else 5} for n in range(1100)]
    path = write_jsonl(tmp_path / "d.jsonl", documents)
    load(es9_url, tiny, index, path, dead=dead, id_field="id", max_errors=NO_LIMIT)
    summary = load(es9_url, tiny, index, retry=dead, dead=dead, id_field="id")
    assert (summary.stopped, summary.read, summary.dead) == (None, 1090, 1090)
    assert len(letters(dead)) == 1090
