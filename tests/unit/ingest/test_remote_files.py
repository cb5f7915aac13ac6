"""Files behind fsspec addresses: found, named without secrets, and read through whatever breaks on the way."""

from __future__ import annotations

import base64
import gzip
import io
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.checkpoint import default_checkpoint_path
from es_sbert.ingest.sources import remote_files
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    DocumentSource,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.find_sources import find_sources
from es_sbert.ingest.sources.remote_files import is_url, redact_secrets
from es_sbert.io.file_formats import FileFormat
from tests.http_files import HttpFiles

COUNT = 3000
LINES = b"".join(b'{"n": %d, "text": "number %d"}\n' % (number, number) for number in range(COUNT))
BLOCK = 10_000


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_BLOCK", BLOCK)
    monkeypatch.setattr(remote_files, "_CHUNK", 3000)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "RetryPolicy", partial(RetryPolicy, first=0.01))


@pytest.fixture
def memory() -> Iterator[Any]:
    """The filesystem `memory://`, empty."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def find(*addresses: str, form: FileFormat | None = None) -> list[DocumentSource]:
    return find_sources(addresses, form)


def read(
    *sources: DocumentSource,
    seconds: float = 120,
    lost: Any = pytest.fail,
    counter: ByteCounter | None = None,
    stop: threading.Event | None = None,
) -> list[Record | RejectedRecord]:
    settings = ReadSettings(1000, plain_text_field="text", retry_seconds=seconds)
    return list(read_records(sources, settings, counter or ByteCounter(), stop or threading.Event(), lost))


def numbers(records: list[Record | RejectedRecord]) -> list[int]:
    return [record.fields["n"] for record in records if isinstance(record, Record)]


def test_addresses_are_told_from_paths() -> None:
    assert all(map(is_url, ["s3://bucket/key", "HTTPS://host/f", "zip://*.csv::s3://b/f.zip"]))
    assert not any(map(is_url, ["docs.jsonl", r"C:\docs", "a:b", "/a://b", "c://x"]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://anna:s3cret@host/f.csv", "sftp://host/f.csv"),
        ("sftp://anna:s3:cr@et@host/f@g.csv", "sftp://host/f@g.csv"),
        ("https://token@host/f.csv", "https://host/f.csv"),
        ("http://anna:s3cret@host/f?x=s3cret&y", "http://host/f?…"),
        ("404, message='', url='https://a:s3cret@h/f?sig=s3cret'", "404, message='', url='https://h/f?…'"),
        ("simplecache::https://a:s3cret@h/f", "simplecache::https://h/f"),
        ("abfs://container@account/f", "abfs://container@account/f"), ("s3://bucket/what?.csv", "s3://bucket/what?.csv"),
    ],
)  # fmt: skip
def test_redact_secrets(text: str, shown: str) -> None:
    assert redact_secrets(text) == shown


def test_remote_patterns_compression_and_formats_work_like_paths(memory: Any) -> None:
    memory.pipe(
        {"/docs/b.jsonl.gz": gzip.compress(LINES), "/docs/a.jsonl": LINES, "/docs/deep/c.csv": b"n,text\n1,x\n"}
    )
    sources = find("memory://docs/*.jsonl*")
    assert [source.name for source in sources] == ["memory:///docs/a.jsonl", "memory:///docs/b.jsonl.gz"]
    assert [source.size for source in sources] == [len(LINES), len(gzip.compress(LINES))]
    check_sources(sources, 1000, ["text"], "n")
    counter = ByteCounter()
    assert numbers(read(*sources, counter=counter)) == [*range(COUNT), *range(COUNT)]
    assert counter.bytes == sum(source.size or 0 for source in sources)
    [deep] = find("memory://docs/**/*.csv")
    assert [record.fields for record in read(deep) if isinstance(record, Record)] == [{"n": "1", "text": "x"}]
    assert default_checkpoint_path("docs", sources) == Path("docs.load-state")


def test_sources_are_picklable(memory: Any) -> None:
    memory.pipe("/a.jsonl", LINES)
    [source] = find("memory://a.jsonl")
    assert pickle.loads(pickle.dumps(source)) == source


def test_file_url_equals_the_local_path(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").write_bytes(LINES)
    assert find(f"file://{tmp_path}/*.jsonl") == find(f"{tmp_path}/*.jsonl")
    assert find(f"file://{tmp_path}/a.jsonl") == find(f"{tmp_path}/a.jsonl")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("memory://none.jsonl", "memory://none.jsonl cannot be read: no such file"),
        ("memory://*.none", "no file matches memory://"),
        ("memory://docs", "memory://docs is a folder\n  Name the files in it, e.g. 'memory://docs/\\*.jsonl'"),
        ("memory://docs/odd", "the name of memory://docs/odd does not indicate its format"),
        ("http://anna:s3cret@127.0.0.1:9/f.jsonl?key=s3cret", r"http://127.0.0.1:9/f.jsonl\?… cannot be read: "),
    ],
)
def test_invalid_urls_are_rejected_without_secrets(memory: Any, address: str, message: str) -> None:
    memory.pipe("/docs/odd", b"x")
    with pytest.raises(SourceError, match=message) as caught:
        find(address)
    assert "s3cret" not in repr(caught.value.__cause__) + str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "MySQL", "sqlite"])
def test_database_is_refused_with_the_way_to_load_a_query(scheme: str) -> None:
    with pytest.raises(UsageError, match=r"://db.example/shop is a database.*\n.*copy.*DuckDB") as caught:
        find(f"{scheme}://anna:s3cret@db.example/shop")
    assert "s3cret" not in str(caught.value)


def test_unknown_or_uninstalled_protocol_raises_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Protocol not known: gopher\n  Use an address that fsspec knows"):
        find("gopher://host/f.jsonl")
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(UsageError, match=r"abfs:// needs a package that is not installed \(.*adlfs"):
        find("abfs://container@account/f.jsonl")


@pytest.mark.parametrize("ranges", [True, False])
def test_http_with_basic_auth_and_signed_url(ranges: bool) -> None:
    credentials = "Basic " + base64.b64encode(b"anna:s3cret").decode()
    with HttpFiles({"/docs/f.jsonl.gz": gzip.compress(LINES)}, ranges=ranges, authorization=credentials) as server:
        [source] = find(f"http://anna:s3cret@{server.host}/docs/f.jsonl.gz?signature=s3cret")
        check_sources([source], 1000, ["text"], None)
        assert source.name == f"http://{server.host}/docs/f.jsonl.gz?…"
        assert "s3cret" not in repr(source)
        assert source.size == len(gzip.compress(LINES))
        assert numbers(read(source)) == list(range(COUNT))
        with pytest.raises(SourceError, match="401") as caught:
            find(f"http://anna:wr0ng@{server.host}/docs/f.jsonl.gz")
        assert "wr0ng" not in str(caught.value)


def test_server_without_ranges_is_read_in_one_response() -> None:
    with HttpFiles({"/f.jsonl": LINES}, ranges=False) as server:
        assert numbers(read(*find(f"{server.url}/f.jsonl"))) == list(range(COUNT))


@pytest.mark.parametrize(
    ("ranges", "faults"),
    [(True, [None, -7000, -9999, 503, 429, None, -1, 500, -50_000]), (False, [None, None, -50_000, 503, -1, 429])],
)
def test_broken_connection_resumes_at_the_last_byte(ranges: bool, faults: list[int | None]) -> None:
    with HttpFiles({"/f.jsonl": LINES}, ranges=ranges) as server:
        server.faults = faults
        records = read(*find(f"{server.url}/f.jsonl"))
        assert not server.faults
    assert numbers(records) == list(range(COUNT))
    assert [record.origin.line for record in records] == list(range(1, COUNT + 1))


def test_persistent_disconnects_stop_reading_without_rejects() -> None:
    said: list[str] = []
    with HttpFiles({"/f.jsonl": LINES, "/g.jsonl": LINES}) as server:
        sources = find(f"http://anna:s3cret@{server.host}/f.jsonl", f"{server.url}/g.jsonl")
        server.faults = [None, None, *([503] * 1000)]
        records = read(*sources, seconds=0, lost=said.append)
    assert numbers(records) == list(range(len(records)))
    assert 300 < len(records) < COUNT
    [reason] = said
    assert f"f.jsonl could not be read after the record of line {len(records)}: 503" in reason
    assert "s3cret" not in reason


@pytest.mark.parametrize("change", ["changed", "removed"])
def test_file_changed_while_reading_is_rejected(change: str) -> None:
    with HttpFiles({"/f.jsonl": LINES}) as server:
        sources = find(f"{server.url}/f.jsonl")
        server.faults = [None, None, -1]
        settings = ReadSettings(1000, plain_text_field="text", retry_seconds=120)
        records = read_records(sources, settings, ByteCounter(), threading.Event(), pytest.fail)
        first = [next(records)]
        if change == "changed":
            server.files["/f.jsonl"] = LINES.replace(b"number", b"nmuber")
        else:
            del server.files["/f.jsonl"]
        *rest, last = records
    assert numbers([*first, *rest]) == list(range(1 + len(rest)))
    assert isinstance(last, RejectedRecord)
    assert (
        f"ends early after the record of line {1 + len(rest)}: the file was {change} while it was read" in last.reason
    )


def test_removed_file_is_rejected(memory: Any) -> None:
    memory.pipe("/a.jsonl", LINES)
    sources = find("memory://a.jsonl")
    memory.rm("/a.jsonl")
    [reject] = read(*sources)
    assert isinstance(reject, RejectedRecord)
    assert reject.reason == "the file cannot be opened: no such file: memory://a.jsonl"


def test_retry_wait_stops_on_stop_event() -> None:
    stop = threading.Event()
    with HttpFiles({"/f.jsonl": LINES}) as server:
        sources = find(f"{server.url}/f.jsonl")
        server.faults = [503] * 10_000
        begin = time.monotonic()
        threading.Timer(0.3, stop.set).start()
        assert read(*sources, seconds=600, stop=stop) == []
        assert time.monotonic() - begin < 300


def tables() -> tuple[pa.Table, bytes, bytes]:
    """A table, as Parquet and as Arrow."""
    table = pa.table({"n": range(COUNT), "text": [f"number {number}" for number in range(COUNT)]})
    as_parquet, as_arrow = io.BytesIO(), io.BytesIO()
    parquet.write_table(table, as_parquet, row_group_size=700, compression="none", use_dictionary=False)
    with ipc.new_file(as_arrow, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)
    return table, as_parquet.getvalue(), as_arrow.getvalue()


def test_tables_are_read_over_a_bad_connection() -> None:
    table, as_parquet, as_arrow = tables()
    with HttpFiles({"/t.parquet": as_parquet, "/t.arrow": as_arrow}) as server:
        for name in ("t.parquet", "t.arrow"):
            sources = find(f"{server.url}/{name}")
            check_sources(sources, 1000, ["text"], "n")
            server.faults = [None, -5000, 503, None, -1]
            records = read(*sources)
            assert not server.faults
            assert [record.fields for record in records if isinstance(record, Record)] == table.to_pylist()


def test_parquet_requires_range_requests() -> None:
    _, as_parquet, as_arrow = tables()
    with HttpFiles({"/t.parquet": as_parquet, "/t.arrow": as_arrow}, ranges=False) as server:
        with pytest.raises(SourceError, match="does not support range requests; download the file"):
            check_sources(find(f"{server.url}/t.parquet"), 1000, ["text"], None)
        assert numbers(read(*find(f"{server.url}/t.arrow"))) == list(range(COUNT))


def test_server_failing_during_a_table_reports_it_unreachable() -> None:
    _, as_parquet, as_arrow = tables()
    with HttpFiles({"/t.parquet": as_parquet, "/t.arrow": as_arrow}) as server:
        for name in ("t.parquet", "t.arrow"):
            said: list[str] = []
            sources = find(f"{server.url}/{name}")
            server.faults = [None, None, None, *([503] * 1000)]
            records = read(*sources, seconds=0, lost=said.append)
            server.faults = []
            assert numbers(records) == list(range(len(records)))
            [reason] = said
            assert f"{name} could not be read" in reason


def test_unavailable_server_does_not_mean_removed_file() -> None:
    said: list[str] = []
    with HttpFiles({"/f.jsonl": LINES}) as server:
        sources = find(f"{server.url}/f.jsonl")
        settings = ReadSettings(1000, plain_text_field="text", retry_seconds=0.5)
        records = read_records(sources, settings, ByteCounter(), threading.Event(), said.append)
        first = next(records)
        server.down.set()
        rest = list(records)
    assert numbers([first, *rest]) == list(range(1 + len(rest)))
    assert len(rest) + 1 < COUNT
    [reason] = said
    assert "f.jsonl could not be read after the record of line" in reason


def test_revoked_access_stops_reading() -> None:
    said: list[str] = []
    with HttpFiles({"/f.jsonl": LINES}) as server:
        sources = find(f"{server.url}/f.jsonl")
        server.faults = [None, 403]
        records = read(*sources, lost=said.append)
    assert numbers(records) == list(range(len(records)))
    assert "access is refused (403" in said[0]
