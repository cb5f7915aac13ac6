"""Two gateways before one engine, of which one is restarted."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.conftest import free_port
from tests.engine.ingest_support import sentences, wait_until
from tests.gateway import patient
from tests.gateway.conftest import loaded_index
from tests.gateway.running import gateway_process
from tests.gateway.serving import gateway
from tests.gateway.test_shutdown import wait_until_closed

pytestmark = [pytest.mark.slow, pytest.mark.engine]
# Between two health checks of a server.
CHECK_SECONDS = 0.5
# Several health checks: with the first that fails, the balancer sends nothing more.
DRAIN_SECONDS = 10 * CHECK_SECONDS
DOCUMENTS = 40
QUERY = {"match": {"semantic": {"query": "the cat sleeps", "k": DOCUMENTS}}}


class Balancer:
    """Chooses among the servers whose last health check was good, as a load balancer does."""

    def __init__(self, *urls: str) -> None:
        self._urls = urls
        self.ready: set[str] = set()
        self.chosen: Counter[str] = Counter()

    def watch(self, ended: threading.Event) -> None:
        while not ended.is_set():
            for url in self._urls:
                status = 0
                with suppress(httpx.TransportError):  # it is not ready
                    status = patient.get(f"{url}/readyz").status_code
                (self.ready.add if status == 200 else self.ready.discard)(url)
            time.sleep(CHECK_SECONDS)

    def choose(self) -> str:
        url = random.choice(sorted(self.ready))
        self.chosen[url] += 1
        return url


def test_no_request_is_lost_while_a_gateway_is_restarted(
    es9_url: str, tiny: Path, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    failures: list[str] = []
    written: list[str] = []
    ended = threading.Event()
    options = ["--model", str(tiny), "--precision", "fp32", "--threads", "1", "--port", str(free_port())]
    options += ["--drain-seconds", str(DRAIN_SECONDS)]

    def search(http: httpx.Client, index: str) -> None:
        answer = http.post(f"{balancer.choose()}/{index}/_search", json={"size": 1, "query": QUERY})
        if answer.status_code != 200 or len(answer.json()["hits"]["hits"]) != 1:
            failures.append(answer.text)

    def write(http: httpx.Client, index: str) -> None:
        name = f"new-{len(written)}"
        answer = http.put(f"{balancer.choose()}/{index}/_doc/{name}", json={"text": f"the cat sleeps {name}"})
        if answer.status_code != 201:
            failures.append(answer.text)
        written.append(name)

    def repeat(send: Callable[[httpx.Client, str], None]) -> None:
        with patient.client("") as http:
            while not ended.is_set():
                send(http, index)

    with (
        loaded_index(es9_url, tiny_encoder, sentences(DOCUMENTS)) as index,
        gateway(es9_url, tiny) as other,
        ExitStack() as first,
        ExitStack() as again,
        ThreadPoolExecutor(4) as threads,
    ):
        restarted = first.enter_context(gateway_process(es9_url, tmp_path, *options))
        balancer = Balancer(restarted.url, other)
        running = [threads.submit(balancer.watch, ended)]
        try:
            wait_until(lambda: len(balancer.ready) == 2)
            running += [threads.submit(repeat, send) for send in (search, search, write)]
            os.kill(restarted.process, signal.SIGTERM)
            wait_until_closed(restarted)
            first.close()
            assert balancer.ready == {other}
            again.enter_context(gateway_process(es9_url, tmp_path, *options))
            wait_until(lambda: len(balancer.ready) == 2)
            before = balancer.chosen[restarted.url]
            wait_until(lambda: balancer.chosen[restarted.url] > before + 10)
        finally:
            ended.set()
        for each in running:
            each.result()
        assert failures == []
        patient.post(f"{es9_url}/{index}/_refresh")
        embedded = {"query": {"exists": {"field": "embedding"}}}
        count = patient.post(f"{es9_url}/{index}/_count", json=embedded).json()["count"]
    assert count == DOCUMENTS + len(written)
