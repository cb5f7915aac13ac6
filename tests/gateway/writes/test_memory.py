"""The memory of a gateway does not grow with the number of actions of a bulk request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.engine.vectors import field_of
from tests.gateway.running import GatewayProcess, gateway_process
from tests.gateway.writes.support import JSON, make

MB = 1024 * 1024
# A request is more than one window. As one, or as objects, its actions take far more than is allowed here.
BODY, MOST = 20 * MB, 100 * MB
# Every so many-th document gets a vector.
EVERY = 60


@pytest.fixture
def process(es9_url: str, tiny: Path, tmp_path: Path) -> Iterator[GatewayProcess]:
    with gateway_process(es9_url, tmp_path, "--model", str(tiny), "--precision", "fp32", "--threads", "1") as gateway:
        yield gateway


def small_documents(index: str, other: str) -> tuple[bytes, int]:
    lines: list[bytes] = []
    size = 0
    while size < BODY:
        number = len(lines)
        name = other if number % EVERY == 7 else index
        lines.append(
            b'{"index":{"_index":"%s"}}\n{"text":"a man plays guitar %d","n":%d}\n'
            % (name.encode(), number % 999, number)
        )
        size += len(lines[-1])
    return b"".join(lines), len(lines)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_large_bulk_stays_below_100_mb(
    process: GatewayProcess, es9_url: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder
) -> None:
    index, other = fresh_index(es9_url), fresh_index(es9_url)
    httpx.put(f"{es9_url}/{index}", json={"mappings": {"enabled": False}}, timeout=300, trust_env=False)
    make(es9_url, other, field_of(tiny_encoder.info, index_type="flat"))
    body, count = small_documents(index, other)
    with httpx.Client(base_url=process.url, timeout=900, trust_env=False) as client:
        # The model and all else that is loaded once does not count.
        client.put(f"/{other}/_doc/first", json={"text": "a cat"}).raise_for_status()
        process.forget_peak()
        before = process.memory("VmRSS")
        answer = client.post("/_bulk", content=body, headers=JSON)
        growth = process.memory("VmHWM") - before
        assert answer.status_code == 200, answer.text[:1000]
        told = orjson.loads(answer.content)
        assert told["errors"] is False
        assert len(told["items"]) == count
        client.post(f"/{other}/_refresh").raise_for_status()
        embedded = client.get(f"/{other}/_count", params={"q": "embedding_meta.tokens:*"}).json()["count"]
    assert embedded == len(range(7, count, EVERY)) + 1
    assert growth < MOST, f"{growth / MB:.0f} MB for a request of {len(body) / MB:.0f} MB"
