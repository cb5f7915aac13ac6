"""Files behind fsspec addresses: found, named without secrets, and read through whatever breaks on the way."""

from __future__ import annotations

import base64
import gzip
import io
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

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
SETTINGS = ReadSettings(1000, plain_text_field="text")
PATIENT = replace(SETTINGS, retry_seconds=120)


@pytest.fixture(autouse=True)
def _small_blocks_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_BLOCK", BLOCK)
    monkeypatch.setattr(remote_files, "_CHUNK", 3000)
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
    *sources: DocumentSource, lost: Any = pytest.fail, counter: ByteCounter | None = None
) -> list[Record | RejectedRecord]:
    return list(read_records(sources, SETTINGS, counter or ByteCounter(), threading.Event(), lost))


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


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("fault", [-7000, -1, 403, 429, 503, "down"])
def test_broken_connection_stops_reading_without_rejects(ranges: bool, fault: int | str) -> None:
    said: list[str] = []
    with HttpFiles({"/f.jsonl": LINES, "/g.jsonl": LINES}, ranges=ranges) as server:
        sources = find(f"http://anna:s3cret@{server.host}/f.jsonl", f"{server.url}/g.jsonl")
        if isinstance(fault, int):
            # Without ranges, the second answer is not read: a third one begins again.
            server.faults = [None, fault] if ranges else [None, None, fault]
        records = read_records(sources, SETTINGS, ByteCounter(), threading.Event(), said.append)
        got = [next(records)]
        if fault == "down":
            server.down.set()
        got += list(records)
        server.down.clear()
        assert numbers(read(*sources)) == [*range(COUNT), *range(COUNT)]
    assert numbers(got) == list(range(len(got)))
    assert 100 < len(got) < COUNT
    [reason] = said
    assert f"f.jsonl could not be read after the record of line {len(got)}: " in reason
    assert ("access is refused (403" in reason) == (fault == 403)
    assert "s3cret" not in reason


def test_file_that_came_in_one_response_may_change() -> None:
    with HttpFiles({"/f.jsonl": LINES[: BLOCK // 2]}) as server:
        records = read_records(find(f"{server.url}/f.jsonl"), SETTINGS)
        first = next(records)
        server.files["/f.jsonl"] = b""
        assert len(list(records)) > 100
        assert isinstance(first, Record)


@pytest.mark.parametrize(
    ("ranges", "faults"),
    [(True, [None, -7000, -9999, 503, 429, None, -1, 500, -50_000]), (False, [None, None, -50_000, 503, -1, 429])],
)
def test_broken_connection_resumes_at_the_last_byte(ranges: bool, faults: list[int | None]) -> None:
    with HttpFiles({"/f.jsonl": LINES}, ranges=ranges) as server:
        server.faults = faults
        records = list(read_records(find(f"{server.url}/f.jsonl"), PATIENT, on_unavailable=pytest.fail))
        assert not server.faults
    assert numbers(records) == list(range(COUNT))
    assert [record.origin.line for record in records] == list(range(1, COUNT + 1))


def test_stop_ends_the_wait_for_a_retry() -> None:
    stop = threading.Event()
    with HttpFiles({"/f.jsonl": LINES}) as server:
        sources = find(f"{server.url}/f.jsonl")
        server.faults = [503] * 100_000
        threading.Timer(0.3, stop.set).start()
        assert list(read_records(sources, replace(SETTINGS, retry_seconds=600), stop=stop)) == []
        assert server.faults


@pytest.mark.parametrize("fault", [None, -1])
@pytest.mark.parametrize("change", ["changed", "removed"])
def test_file_changed_while_reading_is_one_dead_letter(change: str, fault: int | None) -> None:
    with HttpFiles({"/f.jsonl": LINES, "/g.jsonl": LINES}) as server:
        sources = find(f"{server.url}/f.jsonl", f"{server.url}/g.jsonl")
        server.faults = [None, None, fault]
        records = read_records(sources, PATIENT, on_unavailable=pytest.fail)
        first = next(records)
        if change == "changed":
            server.files["/f.jsonl"] = LINES.replace(b"number", b"nmuber")
        else:
            del server.files["/f.jsonl"]
        got = [first, *records]
    [letter] = [each for each in got if isinstance(each, RejectedRecord)]
    line = got.index(letter)
    assert f"ends early after the record of line {line}: the file was {change} while it was read" in letter.reason
    assert numbers(got) == [*range(line), *range(COUNT)]


def test_file_is_read_to_the_end_that_it_had_when_it_was_opened() -> None:
    """Lines that are added later are a change, and no part of them is read."""
    with HttpFiles({"/f.jsonl": LINES}) as server:
        records = read_records(find(f"{server.url}/f.jsonl"), PATIENT)
        first = next(records)
        server.files["/f.jsonl"] = LINES + b'{"n": -1}\n' * 500
        *rest, last = records
    assert numbers([first, *rest]) == list(range(COUNT))
    assert isinstance(last, RejectedRecord)
    assert "the file was changed while it was read" in last.reason


def test_etag_of_each_answer_may_differ_if_size_and_time_are_equal() -> None:
    with HttpFiles({"/f.jsonl": LINES}, modified="Tue, 15 Nov 2026 12:45:26 GMT") as server:
        sources = find(f"{server.url}/f.jsonl")
        assert numbers(read(*sources)) == list(range(COUNT))
        records = read_records(sources, SETTINGS)
        next(records)
        server.modified = "Tue, 15 Nov 2026 12:45:27 GMT"
        *_, last = records
        assert isinstance(last, RejectedRecord)


def test_unknown_version_after_the_last_byte_is_no_change() -> None:
    with HttpFiles({"/f.jsonl": LINES}) as server:
        records = read_records(find(f"{server.url}/f.jsonl"), SETTINGS, on_unavailable=pytest.fail)
        got = []
        for record in records:
            got.append(record)
            if len(got) == COUNT - 1:  # the last block has been read
                server.down.set()
    assert numbers(got) == list(range(COUNT))


def test_removed_file_is_rejected(memory: Any) -> None:
    memory.pipe("/a.jsonl", LINES)
    sources = find("memory://a.jsonl")
    memory.rm("/a.jsonl")
    [reject] = read(*sources)
    assert isinstance(reject, RejectedRecord)
    assert reject.reason == "the file cannot be opened: no such file: memory://a.jsonl"


def parquet_file() -> tuple[pa.Table, bytes]:
    table, out = pa.table({"n": range(COUNT), "text": [f"number {number}" for number in range(COUNT)]}), io.BytesIO()
    parquet.write_table(table, out, row_group_size=700, compression="none", use_dictionary=False)
    return table, out.getvalue()


def test_parquet_is_read_over_a_bad_connection_and_its_failures_are_reported() -> None:
    table, data = parquet_file()
    said: list[str] = []
    with HttpFiles({"/t.parquet": data}) as server:
        sources = find(f"{server.url}/t.parquet")
        check_sources(sources, 1000, ["text"], "n")
        server.faults = [None, -5000, 503, None, -1]
        rows = list(read_records(sources, PATIENT, on_unavailable=pytest.fail))
        assert [record.fields for record in rows if isinstance(record, Record)] == table.to_pylist()
        server.faults = [None, None, None, *([503] * 100)]
        records = read(*sources, lost=said.append)
        assert numbers(records) == list(range(len(records)))
        server.faults = []
        changed = read_records(sources, SETTINGS)
        next(changed)
        server.files["/t.parquet"] = data.replace(b"number", b"nmuber")
        *_, letter = changed
    [reason] = said
    assert f"t.parquet could not be read after the record of line {len(records)}: 503" in reason
    assert isinstance(letter, RejectedRecord)
    assert "the file was changed while it was read" in letter.reason


def test_parquet_requires_range_requests() -> None:
    with (
        HttpFiles({"/t.parquet": parquet_file()[1]}, ranges=False) as server,
        pytest.raises(SourceError, match="does not support range requests; download the file"),
    ):
        check_sources(find(f"{server.url}/t.parquet"), 1000, ["text"], None)
