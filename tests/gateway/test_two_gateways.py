"""Two gateways before one engine: nothing that a client begins at one is bound to it, and each can be restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from es_sbert.cli.main import main
from tests.conftest import free_port
from tests.engine.ingest_support import sentences, write_jsonl
from tests.gateway.running import gateway_process
from tests.gateway.serving import gateway, served
from tests.gateway.test_shutdown import wait_until_closed

# Between two health checks of a server.
CHECK_SECONDS = 0.5
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host"}


class RoundRobin:
    """Requests go to the servers in turn. None is sent twice: what a server does not answer is a 502.

    Args:
        servers: Their addresses.

    Attributes:
        ready: Servers whose last health check was good.
        sent: Requests that each server has answered.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self._turn = 0
        self.ready: set[str] = set()
        self.sent = dict.fromkeys(servers, 0)

    def app(self) -> Starlette:
        """The balancer as an application."""
        methods = ["GET", "HEAD", "POST", "PUT", "DELETE"]
        return Starlette(routes=[Route("/{path:path}", self._forward, methods=methods)], lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as self._client:
            checks = [asyncio.create_task(self._check(server)) for server in self._servers]
            yield
            for check in checks:
                check.cancel()

    async def _check(self, server: str) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                status = 0
                with suppress(httpx.TransportError):
                    status = (await client.get(f"{server}/readyz")).status_code
                (self.ready.add if status == 200 else self.ready.discard)(server)
                await asyncio.sleep(CHECK_SECONDS)

    def _next(self) -> str | None:
        for _ in self._servers:
            self._turn = (self._turn + 1) % len(self._servers)
            if self._servers[self._turn] in self.ready:
                return self._servers[self._turn]
        return None

    async def _forward(self, request: Request) -> Response:
        server = self._next()
        if server is None:
            return Response("no server is ready", 503)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        target = server + request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            answer = await self._client.request(request.method, target, headers=headers, content=await request.body())
        except httpx.TransportError as error:
            return Response(f"{server}: {type(error).__name__}: {error}", 502)
        self.sent[server] += 1
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
        return Response(answer.content, answer.status_code, kept)


pytestmark = [pytest.mark.slow, pytest.mark.engine]
_TIMEOUT = 60
_DOCUMENTS = 40
# Several health checks: with the first that fails, the balancer sends nothing more.
_DRAIN_SECONDS = 10 * CHECK_SECONDS


@contextmanager
def balanced(*gateways: str) -> Iterator[tuple[RoundRobin, httpx.Client]]:
    """A balancer before gateways, once it sends requests to all of them, and a client of it."""
    balancer = RoundRobin(gateways)
    with served(balancer.app()) as url, httpx.Client(base_url=url, trust_env=False, timeout=_TIMEOUT) as http:
        wait_for_ready(balancer, len(gateways))
        yield balancer, http


def wait_for_ready(balancer: RoundRobin, count: int) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while len(balancer.ready) != count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def fill(engine: str, index: str, model: Path, folder: Path) -> None:
    """Load sentences with vectors of the model."""
    source = write_jsonl(folder / "docs.jsonl", sentences(_DOCUMENTS))
    command = ["ingest", "--url", engine, "--index", index, "--id-field", "id", "--model", str(model)]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--precision", "fp32", "--quiet", str(source)])
    assert ended.value.code == 0


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


QUERY = {"match": {"semantic": {"query": "the cat sleeps", "k": _DOCUMENTS}}}


def test_scrolls_and_points_in_time_begun_at_one_gateway_continue_at_the_other(
    engine_url: str, index_name: str, tiny: Path, tmp_path: Path
) -> None:
    fill(engine_url, index_name, tiny, tmp_path)
    with (
        gateway(engine_url, tiny) as one,
        gateway(engine_url, tiny) as other,
        balanced(one, other) as (balancer, http),
    ):

        def ask(method: str, path: str, body: Any = None) -> dict[str, Any]:
            answer = http.request(method, path, json=body)
            assert answer.status_code < 300, answer.text
            found: dict[str, Any] = answer.json()
            return found

        everything = ids(ask("POST", f"/{index_name}/_search", {"size": _DOCUMENTS, "query": QUERY}))
        assert len(everything) == _DOCUMENTS
        page = {"size": 10, "query": QUERY, "_source": False}
        found = ask("POST", f"/{index_name}/_search?scroll=1m", page)
        scrolled = ids(found)
        while got := ids(found := ask("POST", "/_search/scroll", {"scroll": "1m", "scroll_id": found["_scroll_id"]})):
            scrolled += got
        assert sorted(scrolled) == sorted(everything)
        ask("DELETE", "/_search/scroll", {"scroll_id": found["_scroll_id"]})

        opensearch = "pit_id" in (opened := open_point_in_time(http, index_name))
        pit = {"id": opened["pit_id" if opensearch else "id"], "keep_alive": "1m"}
        paged: list[str] = []
        body: dict[str, Any] = page | {"pit": pit, "sort": [{"_score": "desc"}, {"_doc": "asc"}]}
        while got := ids(found := ask("POST", "/_search", body)):
            paged += got
            body |= {"search_after": found["hits"]["hits"][-1]["sort"]}
        assert sorted(paged) == sorted(everything)
        if opensearch:
            ask("DELETE", "/_search/point_in_time", {"pit_id": [pit["id"]]})
        else:
            ask("DELETE", "/_pit", {"id": pit["id"]})
        # Each gateway had its share of both.
        counts = balancer.sent.values()
        assert max(counts) - min(counts) <= 1


def open_point_in_time(http: httpx.Client, index: str) -> dict[str, Any]:
    """By Elasticsearch's API, or else by OpenSearch's."""
    answer = http.post(f"/{index}/_pit?keep_alive=1m")
    if answer.status_code >= 400:
        answer = http.post(f"/{index}/_search/point_in_time?keep_alive=1m")
    assert answer.status_code < 300, answer.text
    opened: dict[str, Any] = answer.json()
    return opened


def test_no_request_is_lost_while_a_gateway_is_restarted(
    es8_url: str, fresh_index: Callable[[str], str], tiny: Path, tmp_path: Path
) -> None:
    index = fresh_index(es8_url)
    fill(es8_url, index, tiny, tmp_path)
    failures: list[str] = []
    searched: list[int] = []
    written: list[str] = []
    ended = threading.Event()

    def search(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=_TIMEOUT) as http:
            while not ended.is_set():
                answer = http.post(f"/{index}/_search", json={"size": 1, "query": QUERY})
                if answer.status_code != 200 or len(ids(answer.json())) != 1:
                    failures.append(answer.text)
                searched.append(answer.status_code)

    def write(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=_TIMEOUT) as http:
            while not ended.is_set():
                name = f"new-{len(written)}"
                answer = http.put(f"/{index}/_doc/{name}", json={"text": f"the cat sleeps {name}"})
                if answer.status_code != 201:
                    failures.append(answer.text)
                written.append(name)

    options = ["--model", str(tiny), "--precision", "fp32", "--threads", "1", "--port", str(free_port())]
    options += ["--drain-seconds", str(_DRAIN_SECONDS)]
    with gateway(es8_url, tiny) as other, ExitStack() as first, ExitStack() as again:
        restarted = first.enter_context(gateway_process(es8_url, tmp_path, *options))
        with balanced(restarted.url, other) as (balancer, http):
            threads = [threading.Thread(target=run, args=(str(http.base_url),)) for run in (search, search, write)]
            for thread in threads:
                thread.start()
            try:
                os.kill(restarted.process, signal.SIGTERM)
                wait_until_closed(restarted)
                first.close()
                assert balancer.ready == {other}
                again.enter_context(gateway_process(es8_url, tmp_path, *options))
                wait_for_ready(balancer, 2)
                before = balancer.sent[restarted.url]
                deadline = time.monotonic() + _TIMEOUT
                while balancer.sent[restarted.url] == before:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            finally:
                ended.set()
                for thread in threads:
                    thread.join()
    assert failures == []
    assert searched
    with httpx.Client(base_url=es8_url, trust_env=False, timeout=_TIMEOUT) as http:
        http.post(f"/{index}/_refresh")
        embedded = {"query": {"exists": {"field": "embedding"}}}
        count = http.post(f"/{index}/_count", json=embedded).json()["count"]
    assert count == _DOCUMENTS + len(written)
