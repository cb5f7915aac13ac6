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

from es_sbert.errors import UsageError
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.search_log import SearchKind, SearchLog, SearchRecord
from es_sbert.gateway.settings import QueryTextPolicy, SearchLogSettings

unix = pytest.mark.skipif(sys.platform == "win32", reason="needs files of Unix")


def search(number: int, index: str = "docs") -> SearchRecord:
    return SearchRecord(index, "_search", SearchKind.SEMANTIC, 200, float(number), texts=["secret words"])


def settings(path: Path, buffer: int = 10_000, close_seconds: float = 60.0) -> SearchLogSettings:
    wording = QueryTextPolicy.from_options(queries=False)
    return SearchLogSettings(path, wording, "here", buffer=buffer, close_seconds=close_seconds)


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
        log = SearchLog(settings(path))
        log.start()
        for number in range(start, start + 1300):
            log.record(search(number))
        asyncio.run(log.close())
        assert log.dropped == 0
    assert numbers(path.read_bytes()) == list(range(2600))
    assert b"secret" not in path.read_bytes()


def test_searches_of_the_dashboards_themselves_are_not_logged(tmp_path: Path) -> None:
    log = SearchLog(settings(tmp_path / "searches.jsonl"))
    log.start()
    for number, index in enumerate([".kibana", "es-sbert-searches-*", "docs"]):
        log.record(search(number, index))
    asyncio.run(log.close())
    assert numbers((tmp_path / "searches.jsonl").read_bytes()) == [2]


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
        log = SearchLog(settings(pipe, buffer=10, close_seconds=0.2))
        metrics = GatewayMetrics()
        metrics.track_search_log(log)
        log.start()
        start = time.monotonic()
        for number in range(20_000):
            log.record(search(number))
        asyncio.run(log.close())
        assert time.monotonic() - start < 30
        assert 0 < log.dropped < 20_000
        assert metrics.registry.get_sample_value("es_sbert_gateway_search_log_dropped_total") == log.dropped
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
