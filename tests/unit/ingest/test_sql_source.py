"""Rows of a query as records, on SQLite; what is wrong with an address, refusals, and queries that fail."""

from __future__ import annotations

import math
import re
import sqlite3
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.checkpoint import default_checkpoint_path
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.sql_source import SqlSource
from es_sbert.installation import install_extra_command

COUNT = 1000
QUERY = "SELECT id, text, price FROM docs ORDER BY id"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "my docs.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE docs (id INTEGER PRIMARY KEY, text TEXT, price REAL, data BLOB)")
        rows = ((n, f"100% of number {n}", n / 8, bytes([n % 256])) for n in range(COUNT))
        db.executemany("INSERT INTO docs VALUES (?, ?, ?, ?)", rows)
    return path


def source(database: Path | str, query: str = QUERY) -> SqlSource:
    return SqlSource(query, SecretStr(f"sqlite:///{database}" if isinstance(database, Path) else database))


def read(
    wanted: SqlSource, *, lost: Any = pytest.fail, stop: threading.Event | None = None
) -> Iterator[Record | RejectedRecord]:
    settings = ReadSettings(1000, plain_text_field="text", retry_seconds=0)
    return read_records([wanted], settings, ByteCounter(), stop or threading.Event(), lost)


def check(wanted: SqlSource, *fields: str, id_field: str | None = "id") -> None:
    check_sources([wanted], 1000, fields or ("text",), id_field)


def test_rows_are_read_in_order_with_row_numbers(database: Path) -> None:
    wanted = source(database, "SELECT *, NULL AS none FROM docs WHERE text LIKE '100%' AND ':x' != '%s' ORDER BY id")
    check(wanted)
    records = list(read(wanted))
    assert [record.fields for record in records if isinstance(record, Record)] == [
        {
            "id": n,
            "text": f"100% of number {n}",
            "price": n / 8,
            "none": None,
            "data": b64encode(bytes([n % 256])).decode(),
        }
        for n in range(COUNT)
    ]
    assert [str(record.origin) for record in records] == [f"sql:{n}" for n in range(1, COUNT + 1)]
    assert default_checkpoint_path("docs", [wanted]) == Path("docs.load-state")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1 FRM docs", "refuses the query: near \"docs\": syntax error\n  Correct the query"),
        ("SELECT * FROM missing", "refuses the query: no such table: missing"),
        ("SELECT id, text AS body FROM docs",
         "the query has no column text\n  Name one with `text_fields`; its columns are: id, body"),
        ("SELECT text FROM docs", "the query has no column id\n  Name one with `id_field`; its columns are: text"),
        ("SELECT id, text, text FROM docs", "the query has two columns called text"),
        ("SELECT 1; SELECT 2", "`sql` has several statements\n  Write one query"),
        ("SELECT ';'; DELETE FROM docs --", "`sql` has several statements"),
        ("SELECT 1 /* ; */; ATTACH 'new.db' AS new", "`sql` has several statements"),
        ("DELETE FROM docs", "not a query: it begins with DELETE\n  Write a query, such as SELECT"),
        ("-- SELECT\n/* SELECT */ drop TABLE docs", "not a query: it begins with DROP"),
        ("WITH x AS (SELECT 1) DELETE FROM docs", "refuses the query: attempt to write a readonly database"),
        ("PRAGMA query_only = OFF", "not a query: it begins with PRAGMA"),
        ("PRAGMA journal_mode = WAL", "not a query: it begins with PRAGMA"),
        ("ATTACH 'new.db' AS new", "not a query: it begins with ATTACH"),
        ("VACUUM INTO 'new.db'", "not a query: it begins with VACUUM"),
        ("COPY docs TO 'new.db'", "not a query: it begins with COPY"),
        ("INSTALL httpfs", "not a query: it begins with INSTALL"),
        ("INSERT INTO docs VALUES (1, 'a', 1, NULL) RETURNING id, text", "not a query: it begins with INSERT"),
        ("-- only a comment", "not a query: it begins with nothing"),
    ],
)  # fmt: skip
def test_invalid_queries_are_rejected_before_the_load(
    database: Path, query: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    with pytest.raises(SourceError, match=message):
        check(source(database, query))
    assert len(list(read(source(database)))) == COUNT
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize(
    "query",
    [
        "  select id, text from docs;\n-- the end; really",
        "/* all */ WITH found AS (SELECT * FROM docs) SELECT id, text FROM found",
        "VALUES (1, 2)",
        "SELECT id, text || '; ' || \";\" AS text FROM (SELECT id, text, 'it''s; ' AS \";\" FROM docs) /* ; */ ; ",
    ],
)
def test_queries_are_recognized(database: Path, query: str) -> None:
    assert list(read(source(database, query)))


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("not an address", UsageError, "the address in `database` cannot be read\n  Write it like postgresql://"),
        ("nosuchdb://u:s3cret@h/d", UsageError, "SQLAlchemy does not know the database nosuchdb"),
        ("mysql+pymysql://u:s3cret@h/d", UsageError, "needs the package pymysql, which is not installed"),
        ("sqlite:///missing.db", SourceError, "the database missing.db does not exist"),
        ("postgresql://u:s3cret@127.0.0.1:9/d", SourceError, "the database cannot be reached: connection failed"),
        ("postgres://u:s3cret@127.0.0.1:9/d", SourceError, "the database cannot be reached: connection failed"),
    ],
)
def test_invalid_database_urls_are_rejected_without_secrets(
    address: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(error, match=message) as caught:
        check(source(address))
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(source(address))
    assert list(tmp_path.iterdir()) == []


def test_unavailable_database_is_reported_as_unreachable() -> None:
    said: list[str] = []
    assert list(read(source("postgresql://u:s3cret@127.0.0.1:9/d"), lost=said.append)) == []
    [reason] = said
    assert reason.startswith("sql could not be read before its first record: the database cannot be reached (")
    assert "s3cret" not in reason


def test_invalid_value_rejects_only_its_row(database: Path) -> None:
    query = "SELECT id, text, CASE WHEN id = 1 THEN 9e999 ELSE price END AS price FROM docs WHERE id < 3 ORDER BY id"
    first, second, third = read(source(database, query))
    assert isinstance(first, Record)
    assert isinstance(third, Record)
    assert isinstance(second, RejectedRecord)
    assert (str(second.origin), second.reason) == ("sql:2", "the column price: Infinity cannot be written as JSON")
    assert math.isclose(third.fields["price"], 0.25)


def test_blobs_of_texts_and_ids_are_text(database: Path) -> None:
    query = (
        "SELECT CAST(id AS BLOB) AS id, CAST(text AS BLOB) AS text, data, CAST(price AS DECIMAL) AS price FROM docs "
        "WHERE id IN (0, 7) UNION ALL SELECT x'ff', CAST('a text' AS BLOB), NULL, 1"
    )
    settings = ReadSettings(1000, plain_text_field="text", text_fields=("text",), key_fields=("id",))
    first, second, third = read_records(
        [source(database, query)], settings, ByteCounter(), threading.Event(), pytest.fail
    )
    assert [record.fields for record in (first, second) if isinstance(record, Record)] == [
        {"id": str(n), "text": f"100% of number {n}", "data": b64encode(bytes([n])).decode(), "price": n / 8}
        for n in (0, 7)
    ]
    assert isinstance(third, RejectedRecord)
    assert "the column id holds bytes that are not valid UTF-8 (byte 0xff at position 0)" in third.reason
    assert "encode(id, 'hex') in PostgreSQL" in third.reason


def test_query_failing_midway_names_the_last_row(database: Path) -> None:
    query = "SELECT id, text, json(CASE WHEN id = 500 THEN 'no JSON' ELSE '1' END) AS j FROM docs ORDER BY id"
    *records, last = read(source(database, query))
    assert [record.fields["id"] for record in records if isinstance(record, Record)] == list(range(len(records)))
    assert 0 < len(records) <= 500
    assert isinstance(last, RejectedRecord)
    assert f"ends early after the record of line {len(records)}: the query failed: malformed JSON" in last.reason


def test_locked_database_is_reported_as_unreachable(database: Path) -> None:
    said: list[str] = []
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        wanted = SqlSource(QUERY, SecretStr(f"sqlite:///{database}?timeout=0"))
        assert list(read(wanted, lost=said.append)) == []
    assert said == ["sql could not be read before its first record: database is locked"]
    assert len(list(read(wanted))) == COUNT


def test_reading_stops_on_stop_event(database: Path) -> None:
    stop = threading.Event()
    records = read(source(database), stop=stop)
    assert isinstance(next(records), Record)
    stop.set()
    assert list(records) == []


def test_missing_extra_raises_usage_error(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(UsageError, match=re.escape(install_extra_command("sql"))):
        check(source(database))
