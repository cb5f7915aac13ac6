"""Tables and objects of a store loaded into real engines and compared with their source, row by row."""

from __future__ import annotations

import gzip
import io
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet

from es_sbert.encoder.encoder import Encoder
from es_sbert.ingest import read_documents
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.sources import remote_files
from es_sbert.ingest.sources.document_source import Record, RejectedRecord
from tests.engine.conftest import use_s3
from tests.engine.ingest_support import contents, letters, load, same_vectors, sentences, vector_of
from tests.engine.object_store import SECRET_KEY, ObjectStore
from tests.engine.relay import Relay

COUNT = 90
MANY, HALF = 300, 120


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


def after_records(monkeypatch: pytest.MonkeyPatch, count: int, call: Callable[[], object]) -> None:
    """Do something in the thread that reads, once it has read so many records of the first load that comes."""
    original = read_documents.read_records
    calls = [call]

    def counted(*arguments: Any) -> Iterator[Record | RejectedRecord]:
        for number, record in enumerate(original(*arguments), 1):
            yield record
            if number == count and calls:
                calls.pop()()

    monkeypatch.setattr(read_documents, "read_records", counted)


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


def test_prune_removes_rows_missing_from_table(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    index, path, rows = fresh_index(es9_url), tmp_path / "docs.parquet", table(28)
    path.write_bytes(as_bytes(rows))
    load(es9_url, encoder, index, path, dead=tmp_path / "dead", id_field="id")
    path.write_bytes(as_bytes(rows.slice(5)))
    summary = load(es9_url, encoder, index, path, dead=tmp_path / "dead", id_field="id", prune=True)
    assert (summary.unchanged, summary.pruned) == (23, 5)
    compare(es9_url, index, {key: value for key, value in expected(28).items() if int(key[1:]) >= 5}, encoder)


@pytest.fixture
def remotely(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., LoadReport]:
    """Loads an address into one index, from a folder of the test's own; `index` is its name."""
    monkeypatch.chdir(tmp_path)
    index = fresh_index(es9_url)

    def run(*addresses: str, **options: Any) -> LoadReport:
        dead = tmp_path / "dead"
        return load(es9_url, encoder, index, *addresses, dead=dead, id_field="id", **options)

    run.index = index  # type: ignore[attr-defined]
    return run


def holds(folder: Path, secret: str) -> list[Path]:
    """Files of a folder in which a secret stands."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_load_from_object_store(s3: ObjectStore, es9_url: str, remotely: Any, encoder: Encoder, tmp_path: Path) -> None:
    documents = sentences(COUNT)
    lines = [orjson.dumps(document) + b"\n" for document in documents]
    s3.put("docs/a.jsonl", b"".join(lines[:30]))
    s3.put("docs/b.jsonl.gz", gzip.compress(b"".join(lines[30:60])))
    s3.put("docs/deep/c.parquet", as_bytes(pa.Table.from_pylist(documents[60:])))
    s3.put("docs/broken.jsonl", b'{"id": "broken"')
    summary = remotely("s3://documents/docs/*.jsonl*", "s3://documents/docs/**/*.parquet")
    assert (summary.read, summary.indexed, summary.dead) == (COUNT + 1, COUNT, 1)
    compare(es9_url, remotely.index, {document["id"]: document for document in documents}, encoder)
    [letter] = letters(tmp_path / "dead")
    assert (letter["source"], letter["line"]) == ("s3://documents/docs/broken.jsonl", 1)
    s3.remove("docs/broken.jsonl")
    s3.put("docs/a.jsonl", b"".join(lines[10:30]))
    summary = remotely("s3://documents/docs/*.jsonl*", "s3://documents/docs/**/*.parquet", prune=True)
    assert (summary.unchanged, summary.pruned) == (COUNT - 10, 10)
    assert not list(tmp_path.glob("*load-state*"))
    assert not holds(tmp_path, SECRET_KEY)


@pytest.mark.parametrize("name", ["many.jsonl", "many.parquet"])
def test_object_store_failure_stops_load_and_rerun_resumes(
    s3: ObjectStore,
    es9_url: str,
    remotely: Any,
    encoder: Encoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(remote_files, "_BLOCK", 2000)
    monkeypatch.setattr(remote_files, "_CHUNK", 2000)
    # Longer than the end of a Parquet file that is read at once.
    documents = [document | {"filler": f"{number:01000}"} for number, document in enumerate(sentences(MANY))]
    rows = b"".join(orjson.dumps(document) + b"\n" for document in documents)
    if not name.endswith("jsonl"):
        out = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(documents), out, row_group_size=30, compression="none")
        rows = out.getvalue()
    address = s3.put(name, rows)
    with Relay(s3.environment["AWS_ENDPOINT_URL"]) as relay:
        # Its client has retries of its own, half a minute of them in all, which are not what is shown here.
        use_s3(monkeypatch, {"AWS_ENDPOINT_URL": relay.url, "AWS_MAX_ATTEMPTS": "1"})
        after_records(monkeypatch, HALF, relay.stop)
        summary = remotely(address, batch_window=16, bulk_bytes=20_000, retry_seconds=1)
    assert summary.stopped is not None
    assert f"{address} could not be read after the record of line {summary.read}: " in summary.stopped
    assert "the same command resumes where it stopped" in summary.stopped
    assert (summary.exit_code, summary.dead, summary.left) == (1, 0, 0)
    assert HALF <= summary.indexed < MANY
    use_s3(monkeypatch, s3.environment)
    again = remotely(address)
    assert again.resumed
    assert (again.unchanged, again.indexed) == (summary.indexed, MANY - summary.indexed)
    compare(es9_url, remotely.index, {document["id"]: document for document in documents}, encoder)
    assert not (tmp_path / "dead").exists()
