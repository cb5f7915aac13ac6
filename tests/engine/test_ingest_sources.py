"""Tables loaded into real engines and compared with their source, row by row."""

from __future__ import annotations

import io
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import contents, letters, load, same_vectors, sentences, vector_of

COUNT = 90


def table(count: int) -> pa.Table:
    """Documents with a column of each kind; the price of every thirtieth is infinite, of every seventh missing."""
    ids = range(count)
    prices = [float("inf") if n % 30 == 29 else float("nan") if n % 7 == 6 else n / 8 for n in ids]
    return pa.table(
        {
            "id": pa.array([f"d{n}" for n in ids]).dictionary_encode(),
            "text": [d["text"] for d in sentences(count)],
            "price": prices,
            "cost": pa.array([Decimal(n) / 100 for n in ids], pa.decimal128(20, 2)),
            "at": pa.array([datetime(2026, 1, 1, 12, n % 60, tzinfo=UTC) for n in ids], pa.timestamp("us", "UTC")),
            "day": [date(2026, 1, 1 + n % 28) for n in ids],
            "data": [bytes([n % 256]) for n in ids],
            "tags": [["a", f"b{n}"] if n % 2 else None for n in ids],
            "nested": [{"rank": n, "label": None} for n in ids],
        }
    )


def expected(count: int) -> dict[str, dict[str, Any]]:
    """Id → document of the rows of `table` that can be loaded."""
    return {
        f"d{n}": {
            "id": f"d{n}",
            "text": document["text"],
            "price": None if n % 7 == 6 else n / 8,
            "cost": n / 100,
            "at": f"2026-01-01T12:{n % 60:02}:00Z",
            "day": f"2026-01-{1 + n % 28:02}",
            "data": b64encode(bytes([n % 256])).decode(),
            "tags": ["a", f"b{n}"] if n % 2 else None,
            "nested": {"rank": n, "label": None},
        }
        for n, document in enumerate(sentences(count))
        if n % 30 != 29
    }


def as_bytes(rows: pa.Table) -> bytes:
    out = io.BytesIO()
    parquet.write_table(rows, out, row_group_size=max(1, len(rows) // 3))
    return out.getvalue()


def compare(url: str, index: str, wanted: dict[str, dict[str, Any]], encoder: Encoder) -> None:
    """The index holds these documents, each as it is and with its own text's vector."""
    stored = contents(url, index)
    assert set(stored) == set(wanted)
    keys = sorted(wanted)
    vectors = encoder.encode([wanted[key]["text"] for key in keys], "document")
    for key, vector in zip(keys, vectors, strict=True):
        found = stored[key]
        assert same_vectors(vector_of(found), vector)
        written_by_us = ("embedding", "embedding_meta", "_version")
        assert {name: value for name, value in found.items() if name not in written_by_us} == wanted[key]


def test_tables_are_loaded_row_by_row(engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path) -> None:
    path, dead = tmp_path / "docs.parquet", tmp_path / "dead"
    path.write_bytes(as_bytes(table(COUNT)))
    summary = load(engine_url, encoder, index_name, path, dead=dead, id_field="id", batch_window=25)
    assert (summary.read, summary.indexed, summary.dead) == (COUNT, COUNT - 3, 3)
    compare(engine_url, index_name, expected(COUNT), encoder)
    assert [letter["line"] for letter in letters(dead)] == [30, 60, 90]
    assert {letter["reason"] for letter in letters(dead)} == {"the column price: Infinity cannot be written as JSON"}
    again = load(engine_url, encoder, index_name, path, dead=dead, id_field="id")
    assert (again.unchanged, again.indexed, again.updated) == (COUNT - 3, 0, 0)
    assert not list(tmp_path.glob("*load-state*"))
