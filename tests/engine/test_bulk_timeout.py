"""How long an engine itself waits within a bulk request is bounded by the load's retry budget."""

from __future__ import annotations

import re

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from tests.engine.ingest_support import Loads, sentences
from tests.faulty_proxy import Exchange, FaultyProxy


def test_engine_waits_at_most_for_the_retry_budget(tiny_loads: Loads) -> None:
    paths: list[str] = []

    def note(exchange: Exchange) -> tuple[int, bytes]:
        paths.append(exchange.path)
        return exchange.forward()

    with FaultyProxy(tiny_loads.url, always=note) as proxy:
        assert tiny_loads.load(tiny_loads.write(sentences(2)), url=proxy.url, retry_seconds=5).indexed == 2
    waits = [int(found[1]) for path in paths if (found := re.search(r"[?&]timeout=(\d+)ms", path))]
    assert len(waits) == len(paths) > 0
    assert all(1000 <= wait <= 5000 for wait in waits)


@pytest.mark.parametrize(("asked", "client", "sent"), [(300, 60, "48000ms"), (300, 600, "60000ms"), (0, 60, "1000ms")])
def test_bulk_timeout_is_shorter_than_client_timeout(
    engine_url: str, index_name: str, asked: float, client: float, sent: str
) -> None:
    paths: list[str] = []

    def note(exchange: Exchange) -> tuple[int, bytes]:
        paths.append(exchange.path)
        return 200, orjson.dumps({"items": [{"index": {"_id": "1", "status": 201}}]})

    with FaultyProxy(engine_url, always=note) as proxy:
        engine = connect(EngineSettings(url=proxy.url, timeout=client))
        engine.bulk(index_name, b'{"index":{}}\n{}\n', timeout=asked)
        engine.bulk(index_name, b'{"index":{}}\n{}\n')
        engine.close()
    assert [f"timeout={sent}" in path for path in paths] == [True, False]
    assert all("filter_path=items" in path for path in paths)
