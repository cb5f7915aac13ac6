"""The log of searches when its engine is fast, slow, busy, gone or refuses: searches never notice."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from es_sbert.errors import EngineUnreachable
from es_sbert.gateway.search_log import SearchKind, SearchLog, SearchRecord
from es_sbert.gateway.settings import QueryTextPolicy, SearchLogSettings


class Engine:
    """Answers as scripted: each entry is what becomes of one bulk request; after the last, all is taken."""

    def __init__(self, *script: Callable[[int], tuple[int, Any]] | Exception) -> None:
        self.script = list(script)
        self.taken: list[str] = []
        self.sizes: list[int] = []
        self.made: list[str] = []

    async def __call__(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
        await asyncio.sleep(0)
        if method == "PUT":
            assert content_type == "application/json"
            self.made.append(path)
            return 400, {"error": {"type": "resource_already_exists_exception"}, "status": 400}
        assert content_type == "application/x-ndjson"
        ids = [orjson.loads(line)["create"]["_id"] for line in body.splitlines()[::2]]
        self.sizes.append(len(ids))
        answer = self.script.pop(0) if self.script else _items(201)
        if isinstance(answer, Exception):
            raise answer
        status, items = answer(len(ids))
        if status == 200 and "items" in items:
            self.taken += [i for i, item in zip(ids, items["items"], strict=False) if item["create"]["status"] == 201]
        return status, items


def _items(*statuses: int) -> Callable[[int], tuple[int, Any]]:
    """Each record's status, the last one for all that follow."""

    def answer(count: int) -> tuple[int, Any]:
        all_of = [*statuses, *[statuses[-1]] * count][:count]
        types = {429: "es_rejected_execution_exception", 409: "version_conflict_engine_exception"}
        errors = [{"type": types.get(s, "document_parsing_exception"), "reason": "cannot be read"} for s in all_of]
        items = zip(all_of, errors, strict=True)
        return 200, {"items": [{"create": {"status": s} | ({"error": e} if s >= 400 else {})} for s, e in items]}

    return answer


def _refusal(status: int) -> Callable[[int], tuple[int, Any]]:
    return lambda count: (status, {"error": {"type": "security_exception", "reason": "no"}, "status": status})


def _search(number: int) -> SearchRecord:
    return SearchRecord("docs", "_search", SearchKind.SEMANTIC, 200, 1.0, texts=["secret words"], id=str(number))


def _run(engine: Engine, use: Callable[[SearchLog], Awaitable[None]], **settings: Any) -> SearchLog:
    wording = QueryTextPolicy.from_options(queries=False)
    chosen = {"wording": wording, "gateway": "here", "flush_seconds": 0.01, "close_seconds": 60.0, **settings}
    wanted = SearchLogSettings(**chosen)

    async def main() -> SearchLog:
        log = SearchLog(wanted, engine)
        log.start()
        await use(log)
        await log.close()
        return log

    return asyncio.run(main())


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)


def test_records_are_written_in_ordered_batches() -> None:
    engine = Engine()

    async def use(log: SearchLog) -> None:
        for number in range(25):
            log.record(_search(number))
        assert log.waiting == 25

    log = _run(engine, use, batch=10)
    assert engine.taken == [str(number) for number in range(25)]
    assert engine.sizes == [10, 10, 5]
    assert len(engine.made) == 1
    assert (log.written, log.dropped, log.waiting) == (25, 0, 0)


def test_lone_record_is_flushed_after_a_delay() -> None:
    engine = Engine()

    async def use(log: SearchLog) -> None:
        log.record(_search(0))
        await _until(lambda: log.written == 1)
        log.record(_search(1))
        await _until(lambda: log.written == 2)

    _run(engine, use)
    assert engine.sizes == [1, 1]


def test_unreachable_engine_loses_no_records_within_buffer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.gateway.search_log._MAX_BACKOFF_SECONDS", 0.01)
    engine = Engine(
        EngineUnreachable("nothing listens", "start it"), _refusal(503), _items(429, 201), lambda n: (200, {})
    )

    async def use(log: SearchLog) -> None:
        for number in range(3):
            log.record(_search(number))
        await _until(lambda: log.written == 3)

    with caplog.at_level(logging.WARNING, "es_sbert"):
        log = _run(engine, use)
    assert sorted(engine.taken) == ["0", "1", "2"]
    assert log.dropped == 0
    [said] = caplog.messages  # once, however often it was tried
    assert "cannot be written: nothing listens. start it" in said


def test_records_beyond_buffer_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def use(log: SearchLog) -> None:
        begin = time.perf_counter()
        for number in range(10_005):
            log.record(_search(number))
        assert time.perf_counter() - begin < 60  # no request is waited for: 10,000 of them would take longer
        assert (log.waiting, log.dropped) == (5, 10_000)

    with caplog.at_level(logging.WARNING, "es_sbert"):
        log = _run(Engine(), use, buffer=5)
    assert (log.written, log.dropped) == (5, 10_000)
    [said] = [message for message in caplog.messages if "missing" in message]
    assert "5 records wait" in said
    assert "secret words" not in caplog.text


@pytest.mark.parametrize("status", [400, 401, 403])
def test_permanent_rejection_drops_records_and_logs_remedy(status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def use(log: SearchLog) -> None:
        log.record(_search(0))
        await _until(lambda: log.dropped == 1)
        log.record(_search(1))
        await _until(lambda: log.written == 1)

    engine = Engine(_refusal(status))
    with caplog.at_level(logging.WARNING, "es_sbert"):
        _run(engine, use)
    assert engine.taken == ["1"]
    [record] = [record for record in caplog.records if getattr(record, "event", "") == "search_log_dropped"]
    assert getattr(record, "fields")["dropped"] == 1  # noqa: B009


def test_conflict_counts_as_written_and_rejection_as_dropped() -> None:
    async def use(log: SearchLog) -> None:
        for number in range(3):
            log.record(_search(number))

    log = _run(Engine(_items(409, 400, 201)), use)
    assert (log.written, log.dropped) == (2, 1)


def test_close_times_out_and_reports_lost_records(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Engine):
        async def __call__(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
            await asyncio.Event().wait()
            raise AssertionError

    async def use(log: SearchLog) -> None:
        for number in range(7):
            log.record(_search(number))

    with caplog.at_level(logging.WARNING, "es_sbert"):
        log = _run(Stuck(), use, close_seconds=0.05)
    assert (log.written, log.dropped, log.waiting) == (0, 7, 0)
    assert any("7 records are missing" in message for message in caplog.messages)


def test_records_after_close_are_dropped() -> None:
    engine = Engine()

    async def use(log: SearchLog) -> None:
        await log.close()
        log.record(_search(0))

    log = _run(engine, use)
    assert (log.dropped, engine.sizes) == (1, [])


def test_writer_crash_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def use(log: SearchLog) -> None:
        log.record(_search(0))
        await _until(lambda: bool(caplog.messages))

    with caplog.at_level(logging.ERROR, "es_sbert"):
        _run(Engine(ZeroDivisionError("a mistake of ours")), use)
    assert "the search log has ended: ZeroDivisionError" in caplog.messages[0]


def test_unresponsive_engine_is_retried(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("es_sbert.gateway.search_log._REQUEST_TIMEOUT_SECONDS", 0.02)
    monkeypatch.setattr("es_sbert.gateway.search_log._MAX_BACKOFF_SECONDS", 0.01)

    class Silent(Engine):
        asked = 0

        async def __call__(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
            self.asked += 1
            if self.asked < 4:
                await asyncio.Event().wait()
            return await super().__call__(method, path, body, content_type)

    async def use(log: SearchLog) -> None:
        log.record(_search(0))
        await _until(lambda: log.written == 1)

    with caplog.at_level(logging.WARNING, "es_sbert"):
        assert _run(Silent(), use).dropped == 0
    assert "did not respond within" in caplog.messages[0]


def test_index_is_created_before_the_first_search() -> None:
    engine = Engine()

    async def use(log: SearchLog) -> None:
        await _until(lambda: bool(engine.made))

    _run(engine, use)
    assert engine.sizes == []
