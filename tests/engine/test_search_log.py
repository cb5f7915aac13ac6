"""The gateway's log by its own connection: the least rights that it needs, and engines that do not answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.errors import AccessDenied, EngineUnreachable
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search_log import SearchKind, SearchLog, SearchRecord
from es_sbert.gateway.settings import Limits, QueryTextPolicy, SearchLogSettings, monthly_index_pattern
from es_sbert.ingest.load_report import prepare_report_index
from es_sbert.mappings import read_body
from tests.conftest import free_port
from tests.engine.secured import Secured


def _use(settings: EngineSettings, name: str, use: Callable[[SearchLog], Awaitable[None]]) -> SearchLog:
    """A log on its own connection, closed afterwards."""

    async def main() -> SearchLog:
        upstream = Upstream(settings, Limits())
        upstream.open()
        wanted = SearchLogSettings(QueryTextPolicy.from_options(queries=False), "here", index=name, close_seconds=60)
        log = SearchLog(wanted, upstream.request_as_gateway)
        try:
            await use(log)
        finally:
            await log.close()
            await upstream.close()
        return log

    return asyncio.run(main())


async def _write_one(log: SearchLog) -> None:
    log.start()
    log.record(SearchRecord("docs", "_search", SearchKind.SEMANTIC, 200, 1.0, hits=0))


def test_least_privileges_for_search_log(secured_es8: Secured, caplog: pytest.LogCaptureFixture) -> None:
    name = f"test-log-{uuid.uuid4().hex[:12]}"

    def settings(*privileges: str) -> EngineSettings:
        key = secured_es8.api_key(index={monthly_index_pattern(name): privileges})
        return EngineSettings(url=secured_es8.url, api_key=key, ca_certs=secured_es8.ca_certs)  # type: ignore[arg-type]

    with pytest.raises(AccessDenied, match=r"PUT /") as caught:
        _use(settings("create_doc"), name, SearchLog.prepare)
    assert "create_index" in caught.value.remedy
    # A search goes on whatever becomes of its record.
    log = _use(settings("create_index"), name, _write_one)
    assert (log.written, log.dropped) == (0, 1)
    assert "create_doc" in caplog.text
    _use(settings("create_index"), name, SearchLog.prepare)
    log = _use(settings("create_index", "create_doc"), name, _write_one)
    assert (log.written, log.dropped) == (1, 0)
    months = secured_es8.ask("GET", f"/{monthly_index_pattern(name)}/_mapping")
    assert months
    for month, made in months.items():
        assert made["mappings"]["properties"] == read_body("common/searches")["mappings"]["properties"]
        secured_es8.ask("DELETE", f"/{month}")


def test_least_privileges_for_reports(secured_es8: Secured) -> None:
    name = f"test-loads-{uuid.uuid4().hex[:12]}"

    def open_as(*privileges: str) -> closing[Engine]:
        key = secured_es8.api_key(cluster=["monitor"], index={name: privileges})
        return closing(
            connect(
                EngineSettings(
                    url=secured_es8.url,
                    api_key=key,
                    ca_certs=secured_es8.ca_certs,  # type: ignore[arg-type]
                )
            )
        )

    with open_as("view_index_metadata", "create_doc") as engine, pytest.raises(AccessDenied, match="create_index"):
        prepare_report_index(engine, name)
    with open_as("view_index_metadata", "create_index") as engine:
        prepare_report_index(engine, name)
    with open_as("view_index_metadata", "create_doc") as engine:
        prepare_report_index(engine, name)
        [result] = engine.bulk(name, b'{"create":{}}\n{"index":"docs"}\n')
        assert result.ok, result.reason
    secured_es8.ask("DELETE", f"/{name}")


def test_search_log_without_engine_raises() -> None:
    settings = EngineSettings(url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(EngineUnreachable, match="the engine behind the gateway cannot be reached"):
        _use(settings, "test-log", SearchLog.prepare)
