"""The search log: lines in order, rotation, and a file that is slow, full or gone. Searches never notice."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.gateway.search_log import SearchLog, SearchRecorder, SearchTrace
from es_sbert.gateway.settings import SearchLogSettings, check_index_name
from tests.unit.gateway.test_search_notes import semantic_query

ROOT = Path(__file__).parents[3]
unix = pytest.mark.skipif(sys.platform == "win32", reason="needs files of Unix")


def search(number: int, index: str = "docs", text: str = "secret words") -> Json:
    return {"index": index, "milliseconds": {"total": float(number)}, "texts": [text]}


def settings(
    path: Path, *, log_queries: bool = False, buffer: int = 10_000, seconds: float = 60.0
) -> SearchLogSettings:
    return SearchLogSettings(path, log_queries, "here", buffer=buffer, close_seconds=seconds)


def logged(path: Path, *records: Json, log_queries: bool = False) -> list[Json]:
    """The lines that a gateway writes."""
    log = SearchLog(settings(path, log_queries=log_queries))
    log.start()
    for record in records:
        log.record(record)
    asyncio.run(log.close())
    assert log.dropped == 0
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def numbers(content: bytes) -> list[int]:
    return [int(orjson.loads(line)["milliseconds"]["total"]) for line in content.splitlines()]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_records_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    for start in (0, 1300):
        logged(path, *map(search, range(start, start + 1300)))
    assert numbers(path.read_bytes()) == list(range(2600))
    assert b"secret" not in path.read_bytes()


def test_searches_of_the_dashboards_themselves_are_not_logged(tmp_path: Path) -> None:
    indices = [".kibana", "es-sbert-searches-*", "es-sbert-loads*", "es-sbert-loads", "docs"]
    records = [search(number, index) for number, index in enumerate(indices)]
    assert [line["index"] for line in logged(tmp_path / "searches.jsonl", *records)] == ["docs"]


@unix
@pytest.mark.parametrize("removed", [False, True])
def test_file_that_was_rotated_is_created_again(tmp_path: Path, removed: bool) -> None:
    path, old = tmp_path / "searches.jsonl", tmp_path / "searches.jsonl.1"
    log = SearchLog(settings(path))
    log.start()
    log.record(search(0))
    until(lambda: path.stat().st_size > 0)
    if removed:
        path.unlink()
    else:
        path.rename(old)
    log.record(search(1))
    asyncio.run(log.close())
    assert numbers(path.read_bytes()) == [1]
    if not removed:
        assert numbers(old.read_bytes()) == [0]


@unix
def test_reader_that_does_not_keep_up_costs_records_but_never_blocks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = SearchLog(settings(pipe, buffer=10, seconds=0.2))
        log.start()
        start = time.monotonic()
        for number in range(20_000):
            log.record(search(number))
        asyncio.run(log.close())
        assert time.monotonic() - start < 30
        assert 0 < log.dropped < 20_000
        assert any(getattr(record, "event", "") == "search_log_dropped" for record in caplog.records)
    finally:
        os.close(reader)


@unix
def test_error_costs_its_records_and_no_line_is_joined_to_a_broken_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write, failing = tmp_path / "searches.jsonl", os.write, threading.Event()

    def half(descriptor: int, data: memoryview) -> int:
        if not failing.is_set():
            return write(descriptor, data)
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) - 50])

    monkeypatch.setattr("es_sbert.gateway.search_log.os.write", half)
    log = SearchLog(settings(path))
    log.start()
    log.record(search(0))
    until(lambda: path.stat().st_size > 0)
    failing.set()
    with caplog.at_level(logging.WARNING):
        log.record(search(1))
        until(lambda: log.dropped == 1)
    failing.clear()
    log.record(search(2))
    asyncio.run(log.close())
    first, broken, last = path.read_bytes().splitlines()
    assert numbers(first + b"\n" + last) == [0, 2]
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(broken)
    assert "1 record is missing from the search log" in caplog.text
    assert "No space left on device" in caplog.text


def test_records_after_the_end_are_counted(tmp_path: Path) -> None:
    log = SearchLog(settings(tmp_path / "searches.jsonl"))
    log.start()
    asyncio.run(log.close())
    log.record(search(0))
    assert log.dropped == 1


def test_dash_is_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = SearchLog(settings(Path("-")))
    log.start()
    log.record(search(3))
    asyncio.run(log.close())
    assert numbers(capfdbinary.readouterr().out) == [3]


def test_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        SearchLog(settings(tmp_path / "missing" / "searches.jsonl"))


@pytest.mark.parametrize("name", ["es-sbert-searches", "searches", "log-2026.01"])
def test_name_of_an_index_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(UsageError, match="is the name of an index") as caught:
        settings(Path(name))
    assert f"{name}.jsonl" in caught.value.remedy
    assert "docs/kibana.md" in caught.value.remedy


@pytest.mark.parametrize("name", ["-", "searches.jsonl", "searches.log", "logs/searches"])
def test_names_of_files_are_accepted(name: str) -> None:
    assert settings(Path(name)).path == Path(name)


def _names(value: Json, prefix: str = "") -> set[str]:
    names: set[str] = set()
    for name, inner in value.items():
        names |= _names(inner, f"{prefix}{name}.") if isinstance(inner, dict) else {prefix + name}
    return names


def _mapped(properties: Json, prefix: str = "") -> set[str]:
    names: set[str] = set()
    for name, field in properties.items():
        inner = field.get("properties")
        names |= _mapped(inner, f"{prefix}{name}.") if inner else {prefix + name}
    return names


def test_lines_and_index_template_have_the_same_fields(tmp_path: Path) -> None:
    recorder = SearchRecorder("docs", "search", [SearchTrace(queries=(semantic_query(),), seconds=0.5)], status=200)
    recorder.watch().part(b'{"hits":{"total":3}}')
    [line] = logged(tmp_path / "searches.jsonl", *recorder.records(), log_queries=True)
    template = orjson.loads((ROOT / "examples/search-log/index-template.json").read_bytes())
    assert _names(line) == _mapped(template["template"]["mappings"]["properties"])


@pytest.mark.parametrize("log_queries", [False, True])
def test_query_text_is_logged_only_when_enabled(tmp_path: Path, log_queries: bool) -> None:
    texts = ["Plants  and\tenergy ", "plants and energy", "plants and energies"]
    path, restarted = tmp_path / "searches.jsonl", tmp_path / "restarted.jsonl"
    lines = logged(path, *(search(0, text=text) for text in texts), log_queries=log_queries)
    assert [line.get("query") for line in lines] == ([[text] for text in texts] if log_queries else [None] * 3)
    assert (b"energ" in path.read_bytes()) is log_queries
    [first], [same], [other] = (line["query_hash"] for line in lines)
    assert first == same != other
    # The key of the hashes is that of the process.
    assert logged(restarted, search(0, text=texts[0]))[0]["query_hash"] != [first]


@pytest.mark.parametrize("name", ["", "-a", "_a", "Upper", "a*", "a/b", "a b", "a" * 250, "a,b"])
def test_invalid_index_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="not a valid index name"):
        check_index_name(name)
