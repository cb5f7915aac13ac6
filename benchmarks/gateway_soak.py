"""Latency of ordinary requests through the gateway, first without and then with hostile clients.

    python -m benchmarks.gateway_soak --data DATA --url http://localhost:9200 [--minutes 10] [--alone 2]

DATA as in `benchmarks.acceptance`: the first 5,000 documents of `ingest/short-docs.jsonl.gz` go into an index with
vectors. Ordinary clients, in a process of their own, send at a constant rate: plain searches, semantic searches (each
text once), documents by id, and bulk requests of five documents that get vectors. The same documents and plain
searches are also requested from the engine directly: what slows these down as well is not the gateway. After `--alone`
minutes, hostile clients of the gateway are added for `--minutes`:

- two that send searches of 60,000 semantic queries, one after another;
- 512 connections from another address that send a byte of a body every five seconds, and connect again when they are
  ended;
- one that sends a bulk request of 95 MB of small documents every minute, to an index without vectors.

Wanted: no ordinary request fails, their p99 stays below five times that of the time alone, and the gateway's memory is
at the end what it was after the first third.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import random
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import orjson

from benchmarks.acceptance import delete
from benchmarks.common import machine, read_jsonl, replaced, table
from benchmarks.gateway import DOCUMENTS, INDEX, load
from tests.gateway.process import GatewayProcess, gateway_process

PLAIN = f"{INDEX}-plain"
MB = 1024 * 1024
RESULT = Path(__file__).parent / "results/gateway_soak.json"
SLOW_CONNECTIONS, SLOW_ADDRESS, SLOW_SECONDS = 512, "127.0.0.2", 5.0
# Requests of a kind that ends with it go to the engine itself.
DIRECT = ", directly"
# Requests a second of each kind.
RATES = {
    "document": 5.0, f"document{DIRECT}": 5.0, "plain search": 5.0, f"plain search{DIRECT}": 5.0,
    "semantic search": 5.0, "bulk of five": 1.0,
}  # fmt: skip
ALONE, ATTACKED = "alone", "with hostile clients"
Event = Any  # of multiprocessing, whose own types are functions


@dataclass(frozen=True)
class Answered:
    """One ordinary request.

    Attributes:
        kind: A key of `RATES`.
        at: Seconds since the clients began.
        took: Milliseconds until the whole answer was there.
        failed: What it was instead of an answer with a status of 200 or 201; empty where it was one.
    """

    kind: str
    at: float
    took: float
    failed: str


def bodies(kind: str, texts: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
    """Requests of a kind without end: method, path and body."""
    kind = kind.removesuffix(DIRECT)
    number = 0
    while True:
        text = texts[number % len(texts)]
        if kind == "plain search":
            yield "POST", f"/{INDEX}/_search", orjson.dumps({"query": {"match": {"text": text}}, "size": 10})
        elif kind == "semantic search":
            query = {"match": {"semantic": f"{text[:200]} {number}"}}
            yield "POST", f"/{INDEX}/_search", orjson.dumps({"query": query, "size": 10, "_source": ["text"]})
        elif kind == "document":
            yield "GET", f"/{INDEX}/_doc/ordinary-{number % 5}", b""
        else:
            lines = [
                ({"index": {"_id": f"ordinary-{place}"}}, {"text": f"{text[:200]} {number} {place}"})
                for place in range(5)
            ]
            yield "POST", f"/{INDEX}/_bulk", b"".join(orjson.dumps(part) + b"\n" for line in lines for part in line)
        number += 1


def ordinary(engine: str, gateway: str, texts: Sequence[str], stop: Event, results: Any) -> None:
    """Send ordinary requests of all kinds until told to stop; runs in its own process."""
    answered: list[Answered] = []
    begin = time.perf_counter()

    def send(kind: str) -> None:
        url = engine if kind.endswith(DIRECT) else gateway
        connection = _connection(url)
        requests = bodies(kind, texts)
        due = time.perf_counter() + random.random() / RATES[kind]
        while not stop.is_set():
            time.sleep(max(0.0, due - time.perf_counter()))
            method, path, body = next(requests)
            start = time.perf_counter()
            failed = ""
            try:
                content = "application/x-ndjson" if path.endswith("_bulk") else "application/json"
                connection.request(method, path, body or None, {"content-type": content} if body else {})
                answer = connection.getresponse()
                said = answer.read()
                if answer.status not in (200, 201) or b'"errors":true' in said:
                    failed = f"{answer.status} {said[:200].decode(errors='replace')}"
            except (OSError, http.client.HTTPException) as error:
                failed = repr(error)
                connection.close()
                connection = _connection(url)
            answered.append(Answered(kind, start - begin, 1000 * (time.perf_counter() - start), failed))
            due += 1 / RATES[kind]

    threads = [threading.Thread(target=send, args=(kind,)) for kind in RATES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(answered)


def many_queries(url: str, stop: Event) -> None:
    """Send searches of very many semantic queries until told to stop."""
    queries = [{"match": {"semantic": f"text number {number}"}} for number in range(60_000)]
    body = orjson.dumps({"query": {"bool": {"should": queries}}})
    _again_and_again(url, f"/{INDEX}/_search", lambda: body, stop, pause=0.0)


def large_bulks(url: str, stop: Event) -> None:
    """Send 95 MB of small documents every minute until told to stop."""
    line = b'{"index":{}}\n{"number":12345,"word":"small"}\n'
    _again_and_again(url, f"/{PLAIN}/_bulk", lambda: line * (95 * MB // len(line)), stop, pause=60.0)


def slow_bodies(url: str, stop: Event) -> None:
    """Keep very many requests open that send a byte now and then, until told to stop."""
    parts = urlsplit(url)
    head = b"POST /x/_search HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{"
    due: dict[socket.socket, float] = {}
    with selectors.DefaultSelector() as open_ones:
        while not stop.is_set():
            while len(due) < SLOW_CONNECTIONS:
                try:
                    one = socket.create_connection((parts.hostname or "", parts.port or 80), 10, (SLOW_ADDRESS, 0))
                    one.sendall(head)
                except OSError:
                    break
                open_ones.register(one, selectors.EVENT_READ)
                due[one] = time.monotonic() + SLOW_SECONDS * random.random()
            for key, _ in open_ones.select(0.1):
                one = key.fileobj  # type: ignore[assignment]
                with suppress(OSError):
                    if one.recv(65_536):
                        continue
                _drop(one, open_ones, due)
            for one, moment in list(due.items()):
                if moment <= time.monotonic():
                    try:
                        one.sendall(b" ")
                        due[one] = moment + SLOW_SECONDS
                    except OSError:
                        _drop(one, open_ones, due)


def _drop(one: socket.socket, open_ones: selectors.BaseSelector, due: dict[socket.socket, float]) -> None:
    open_ones.unregister(one)
    del due[one]
    one.close()


def _again_and_again(url: str, path: str, body: Callable[[], bytes], stop: Event, *, pause: float) -> None:
    while not stop.is_set():
        with suppress(OSError, http.client.HTTPException):
            connection = _connection(url)
            connection.request("POST", path, body(), {"content-type": "application/json"})
            connection.getresponse().read()
            connection.close()
        stop.wait(pause)


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)


def soak(
    engine: str, gateway: GatewayProcess, texts: Sequence[str], minutes: Mapping[str, float]
) -> tuple[list[Answered], list[tuple[float, int]], dict[str, tuple[float, float]]]:
    """Send ordinary requests, and in each phase those of its hostile clients.

    Args:
        engine: Its address.
        minutes: Of each phase.

    Returns:
        Ordinary requests; the gateway's memory, as seconds since the beginning and bytes; begin and end of each phase
        in such seconds.
    """
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    clients = context.Process(target=ordinary, args=(engine, gateway.url, list(texts), stop, results))
    hostile = {ALONE: [], ATTACKED: [many_queries, many_queries, slow_bodies, large_bulks]}
    memory: list[tuple[float, int]] = []
    phases: dict[str, tuple[float, float]] = {}
    clients.start()
    begin = time.perf_counter()
    for phase, targets in hostile.items():
        enough = context.Event()
        attackers = [context.Process(target=target, args=(gateway.url, enough)) for target in targets]
        for attacker in attackers:
            attacker.start()
        started = time.perf_counter() - begin
        while (passed := time.perf_counter() - begin) < started + 60 * minutes[phase]:
            memory.append((passed, gateway.memory("VmRSS")))
            time.sleep(5)
        phases[phase] = started, passed
        enough.set()
        for attacker in attackers:
            attacker.join(700)
    stop.set()
    answered: list[Answered] = results.get(timeout=700)
    clients.join(700)
    return answered, memory, phases


def percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def figures(
    answered: Sequence[Answered], memory: Sequence[tuple[float, int]], phases: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """What is reported."""
    requests: dict[str, dict[str, list[Answered]]] = {phase: defaultdict(list) for phase in phases}
    for one in answered:
        for phase, (start, end) in phases.items():
            # Without what began while processes started.
            if start + 15.0 < one.at < end:
                requests[phase][one.kind].append(one)
    start, end = phases[ATTACKED]
    third = (end - start) / 3

    def lowest(since: float, until: float) -> float:
        return min(size for at, size in memory if since <= at <= until) / MB

    return {
        "requests": {
            phase: {
                kind: {
                    "requests": len(those),
                    "failed": sum(bool(one.failed) for one in those),
                    "p50": statistics.median(one.took for one in those),
                    "p99": percentile([one.took for one in those], 0.99),
                }
                for kind, those in kinds.items()
            }
            for phase, kinds in requests.items()
        },
        "failures": sorted({one.failed for one in answered if one.failed})[:20],
        "memory": {
            "alone": lowest(*phases[ALONE]),
            "first third": lowest(start, start + third),
            "second third": lowest(start + third, end - third),
            "last third": lowest(end - third, end),
            "most": max(size for _, size in memory) / MB,
        },
    }


def section(found: dict[str, Any], minutes: Mapping[str, float]) -> str:
    """The table."""
    rows = []
    for kind, alone in found["requests"][ALONE].items():
        attacked = found["requests"][ATTACKED][kind]
        numbers = [alone["p50"], alone["p99"], attacked["p50"], attacked["p99"], attacked["p99"] / alone["p99"]]
        rows.append(
            [kind, *(f"{number:.1f}" for number in numbers), f"{attacked['failed']} of {attacked['requests']:,}"]
        )
    sizes = found["memory"]
    thirds = ", ".join(f"{sizes[f'{third} third']:.0f}" for third in ("first", "second", "last"))
    options = f"--minutes {minutes[ATTACKED]:g} --alone {minutes[ALONE]:g}"
    return "\n".join(
        [
            f"`python -m benchmarks.gateway_soak --data DATA --url … {options}`: latency in ms, without and with "
            f"hostile clients. Lowest memory of the gateway: {sizes['alone']:.0f} MB without them, {thirds} MB in each "
            f"third of the time with them; peak {sizes['most']:.0f} MB.",
            "",
            table(["requests", "median", "p99", "median, attacked", "p99, attacked", "p99 ratio", "failed"], rows),
        ]
    )


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True, help="An Elasticsearch.")
@click.option("--minutes", default=10.0, show_default=True, help="With hostile clients.")
@click.option("--alone", default=2.0, show_default=True, help="Minutes without them.")
@click.option("--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page for the table.")
def main(data: Path, url: str, minutes: float, alone: float, page: Path | None) -> None:
    """Load, start a gateway, measure."""
    lasting = {ALONE: alone, ATTACKED: minutes}
    texts = [str(row["text"]) for row in islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), 3 * DOCUMENTS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load(url, texts[:DOCUMENTS], folder)
        with gateway_process(url, folder) as gateway:
            warm = _connection(gateway.url)
            for method, path, body in islice(bodies("bulk of five", texts[DOCUMENTS:]), 3):
                warm.request(method, path, body, {"content-type": "application/x-ndjson"})
                warm.getresponse().read()
            answered, memory, phases = soak(url, gateway, texts[DOCUMENTS:], lasting)
    delete(url, INDEX)
    delete(url, PLAIN)
    found = figures(answered, memory, phases)
    RESULT.write_text(json.dumps({"machine": machine(), **found}, indent=2) + "\n")
    text = section(found, lasting)
    if page is not None:
        page.write_text(replaced(page.read_text(), "gateway soak", text, maker="benchmarks.gateway_soak"))
    click.echo(text)
    for failure in found["failures"]:
        click.echo(f"failed: {failure}", err=True)


if __name__ == "__main__":
    sys.exit(main())
