"""How long an engine itself waits within a bulk request is bounded by the load's retry budget."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from tests.engine.ingest_support import load, sentences, write_jsonl
from tests.faulty_proxy import Exchange, FaultyProxy
from tests.tiny import write_tiny_bert

# No node has this name, so the primary shard is never active.
NOWHERE = b'{"settings": {"index.routing.allocation.require._name": "nobody"}}'


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    folder = write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")
    with Encoder(str(folder), device="cpu", precision="fp32", threads=1) as encoder:
        yield encoder


@pytest.mark.usefixtures("alone_on_engines")  # the engine's health is red
def test_missing_primary_shard_answers_within_retry_budget(
    engine_url: str, index_name: str, small: Encoder, tmp_path: Path
) -> None:
    waits: list[float] = []
    identity: list[tuple[int, bytes]] = []

    def note(exchange: Exchange) -> tuple[int, bytes]:
        if "settings.index.uuid" in exchange.path:
            # The index in its place passes for the same one: only its shard is to be missed.
            identity.append(identity[0] if identity else exchange.forward())
            return identity[0]
        if exchange.path.partition("?")[0].endswith("/_bulk"):
            if not waits:
                lose_the_shard()
            waits.append(waited(exchange))
        return exchange.forward()

    def lose_the_shard() -> None:
        for method, query, body in (("DELETE", "", None), ("PUT", "?wait_for_active_shards=0", NOWHERE)):
            request = urllib.request.Request(
                f"{engine_url}/{index_name}{query}", body, {"content-type": "application/json"}, method=method
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                assert response.status == 200

    docs = write_jsonl(tmp_path / "docs.jsonl", sentences(2))
    with FaultyProxy(engine_url, always=note, paths="") as proxy:
        summary = load(
            proxy.url,
            small,
            index_name,
            docs,
            dead=tmp_path / "dead",
            id_field="id",
            retry_seconds=5,
        )
    assert (summary.indexed, summary.left, summary.dead) == (0, 2, 0)
    # The engine's own words: it was asked to wait for less than its own minute.
    assert re.search(r"primary shard is not active Timeout: \[[1-5](\.\d+)?s\]", str(summary.stopped))
    assert waits[0] == 5
    assert all(1 <= wait <= 5 for wait in waits)


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


def waited(exchange: Exchange) -> float:
    """Seconds that a bulk request lets the engine wait."""
    found = re.search(r"[?&]timeout=(\d+)ms", exchange.path)
    return float(found[1]) / 1000 if found else 60.0
