"""What bulk requests through the gateway cost: time and memory of one large request, and documents a second.

    python -m benchmarks.bulk_through_gateway --data DATA --url http://localhost:9200 [--rounds 3] [--megabytes 95]

DATA as in `benchmarks.acceptance`: documents are of `ingest/short-docs.jsonl.gz`, each with a number that makes it
another text. Three measurements, in turn within every round:

- one request of `--megabytes` to an index without vectors, to the engine itself and through the gateway;
- one request of `--documents` to an index with a vector field, through the gateway. What that is made of is measured
  for comparison: `es-sbert encode` on the same texts, and the engine alone with the finished documents;
- `--texts` documents in requests of 500, one after another over each of 2 connections, through the gateway, against
  `es-sbert encode` on the same texts. No text comes twice.

Each measurement starts a new gateway process. Its memory is the growth of its peak (VmHWM) over what it
had after a first request of 500 documents. Vector fields are flat: the engine builds no graph. The engine takes its
share of the same cores.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import click
import httpx
import numpy as np
import orjson

from benchmarks.acceptance import delete
from benchmarks.common import in_own_process, machine, read_jsonl, replaced, seconds, spread, table
from es_sbert.config import DEFAULT_VECTOR_FIELD, EngineSettings
from es_sbert.encoder.encode_file import encode_file
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.index.mapping import VectorFieldMeta, index_body
from tests.gateway.process import GatewayProcess, gateway_process

PLAIN, WITH_VECTORS = "bulk-benchmark-plain", "bulk-benchmark-vectors"
MB = 1024 * 1024
PER_REQUEST, CONNECTIONS = 500, 2
RESULT = Path(__file__).parent / "results/bulk_through_gateway.json"
JSON = {"content-type": "application/x-ndjson"}
Runs = dict[str, list[float]]


def numbered(texts: Sequence[str], start: int = 0) -> Iterator[str]:
    """Texts without end, none of which comes twice."""
    number = start
    while True:
        yield f"{texts[number % len(texts)]} {number}"
        number += 1


def action(text: str) -> bytes:
    return b'{"index":{}}\n' + orjson.dumps({"text": text}) + b"\n"


def body_of(texts: Sequence[str], size: int) -> tuple[bytes, int]:
    """A bulk request of so many bytes, and the number of its documents."""
    lines: list[bytes] = []
    length = 0
    for text in numbered(texts):
        if length >= size:
            break
        lines.append(action(text))
        length += len(lines[-1])
    return b"".join(lines), len(lines)


def make_index(url: str, index: str, meta: VectorFieldMeta | None) -> None:
    """The index anew, with a vector field or without."""
    engine = connect(EngineSettings(url=url))
    if engine.get_index(index) is not None:
        delete(url, index)
    plain = {"mappings": {"properties": {"text": {"type": "text"}}}}
    engine.create_index(
        index, plain if meta is None else index_body(engine.info.engine_type, DEFAULT_VECTOR_FIELD, meta)
    )
    engine.close()


def write(client: httpx.Client, index: str, body: bytes, count: int) -> float:
    """Seconds of one bulk request.

    Raises:
        ClickException: not every document was written.
    """
    took, answer = seconds(lambda: client.post(f"/{index}/_bulk", content=body, headers=JSON))
    said = orjson.loads(answer.content)
    if answer.status_code != 200 or said["errors"] or len(said["items"]) != count:
        raise click.ClickException(f"a bulk request failed: {answer.text[:500]}")
    return took


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=3600, trust_env=False)


def encode_seconds(texts: list[str]) -> float:
    """Seconds of what `es-sbert encode` does with a file of texts, once its model is loaded."""
    with tempfile.TemporaryDirectory() as name, Encoder() as encoder:
        source = Path(name) / "texts.txt"
        source.write_text("".join(text.replace("\n", " ") + "\n" for text in texts))
        encoder.encode(texts[:64], "document")
        with source.open("rb") as file:
            target = Path(name) / "vectors.npy"
            return seconds(
                lambda: encode_file(encoder, file, target, form="lines", text_field="text", kind="document")
            )[0]


def finished(texts: list[str]) -> list[bytes]:
    """Requests of documents with vectors made before, without the gateway."""
    with Encoder() as encoder:
        vectors = encoder.encode(texts, "document")  # (texts, dimensions)
    option = orjson.OPT_SERIALIZE_NUMPY
    lines = [
        b'{"index":{}}\n' + orjson.dumps({"text": text, DEFAULT_VECTOR_FIELD: vector}, option=option) + b"\n"
        for text, vector in zip(texts, np.ascontiguousarray(vectors, np.float32), strict=True)
    ]
    return [b"".join(lines[start : start + 1000]) for start in range(0, len(lines), 1000)]


def meta_of_default() -> VectorFieldMeta:
    """A vector field of the default model."""
    with Encoder() as encoder:
        info = encoder.info
    return VectorFieldMeta(
        fingerprint=info.fingerprint, model=info.model, dimensions=info.dimensions, index_type="flat", text="{text}"
    )


class Measurements:
    """Runs and keeps their figures.

    Args:
        url: The engine.
        folder: For logs.
        texts: Of the data.
        meta: Of the vector field.
    """

    def __init__(self, url: str, folder: Path, texts: list[str], meta: VectorFieldMeta) -> None:
        self.runs: Runs = defaultdict(list)
        self._url = url
        self._folder = folder
        self._texts = texts
        self._meta = meta
        self._next = 0

    def large(self, megabytes: int) -> None:
        """One request to an index without vectors."""
        body, count = body_of(self._texts, megabytes * MB)
        self._note("large, documents", count)
        make_index(self._url, PLAIN, None)
        with client_of(self._url) as client:
            self._note("large, direct, s", write(client, PLAIN, body, count))
        make_index(self._url, PLAIN, None)
        with self._gateway("large") as client:
            self._note("large, gateway, s", write(client, PLAIN, body, count))

    def embedded(self, documents: int) -> None:
        """One request to an index with vectors."""
        texts = self._fresh(documents)
        self._note("embedded, MB", sum(len(action(text)) for text in texts) / MB)
        self._note("embedded, encode, s", in_own_process(encode_seconds, texts))
        bodies = in_own_process(finished, texts)
        make_index(self._url, WITH_VECTORS, self._meta)
        with client_of(self._url) as client:
            self._note(
                "embedded, engine, s", sum(write(client, WITH_VECTORS, part, part.count(b"\n") // 2) for part in bodies)
            )
        make_index(self._url, WITH_VECTORS, self._meta)
        with self._gateway("embedded") as client:
            body = b"".join(map(action, texts))
            self._note("embedded, gateway, s", write(client, WITH_VECTORS, body, documents))

    def rate(self, count: int) -> None:
        """Small requests, one after another over each connection, and the command on the same texts."""
        texts = self._fresh(count)
        encode = count / in_own_process(encode_seconds, texts)
        make_index(self._url, WITH_VECTORS, self._meta)
        parts = [texts[start : start + PER_REQUEST] for start in range(0, count, PER_REQUEST)]
        waiting = iter(parts)
        lock = threading.Lock()

        def connection(client: httpx.Client) -> None:
            while True:
                with lock:
                    part = next(waiting, None)
                if part is None:
                    return
                write(client, WITH_VECTORS, b"".join(map(action, part)), len(part))

        with self._gateway("rate") as client, ThreadPoolExecutor(CONNECTIONS) as connections:
            begin = time.perf_counter()
            for _ in connections.map(connection, [client] * CONNECTIONS):
                pass
            through = count / (time.perf_counter() - begin)
        self._note("rate, encode, texts/s", encode)
        self._note("rate, gateway, documents/s", through)
        self._note("rate, ratio", through / encode)

    @contextmanager
    def _gateway(self, case: str) -> Iterator[httpx.Client]:
        """A client of a gateway whose model is loaded; what its memory grows by is noted at the end."""
        # The encoder's own memory grows with the first batches, up to what it keeps.
        warm = b"".join(map(action, self._fresh(PER_REQUEST)))
        make_index(self._url, f"{WITH_VECTORS}-warm", self._meta)
        with gateway_process(self._url, self._folder) as gateway, client_of(gateway.url) as client:
            write(client, f"{WITH_VECTORS}-warm", warm, PER_REQUEST)
            before = _start(gateway)
            yield client
            self._note(f"{case}, gateway, MB", (gateway.memory("VmHWM") - before) / MB)
        delete(self._url, f"{WITH_VECTORS}-warm")

    def _fresh(self, count: int) -> list[str]:
        self._next += count
        return list(islice(numbered(self._texts, self._next - count), count))

    def _note(self, case: str, figure: float) -> None:
        self.runs[case].append(figure)
        click.echo(f"{case}: {figure:,.2f}", err=True)


def _start(gateway: GatewayProcess) -> int:
    gateway.forget_peak()
    return gateway.memory("VmRSS")


def section(runs: Runs, command: str, documents: int, texts: int) -> str:
    """The tables."""

    def shown(case: str, digits: int = 1) -> str:
        return spread(runs[case], digits) if case in runs else "–"

    large = [
        [name, shown(f"large, {way}, s"), shown(f"large, {way}, MB", 0)]
        for name, way in (("the engine itself", "direct"), ("through the gateway", "gateway"))
    ]
    parts = [
        ["through the gateway", shown("embedded, gateway, s"), shown("embedded, gateway, MB", 0)],
        ["`es-sbert encode` on the texts", shown("embedded, encode, s"), "–"],
        ["the engine alone, with finished documents", shown("embedded, engine, s"), "–"],
    ]
    rates = [[shown("rate, gateway, documents/s", 0), shown("rate, encode, texts/s", 0), shown("rate, ratio", 2)]]
    return "\n".join(
        [
            f"`{command}`: median (min–max) of the rounds. Memory is the growth of the gateway's peak.",
            "",
            f"One request of {runs['large, documents'][0]:,.0f} small documents to an index without vectors:",
            "",
            table(["", "seconds", "MB"], large),
            "",
            f"One request of {documents:,} documents ({runs['embedded, MB'][0]:.1f} MB) to an index with a flat vector "
            "field:",
            "",
            table(["", "seconds", "MB"], parts),
            "",
            f"{texts:,} documents in requests of {PER_REQUEST}, one after another over {CONNECTIONS} connections:",
            "",
            table(["documents/s through the gateway", "texts/s of `es-sbert encode`", "ratio"], rates),
        ]
    )


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True, help="An Elasticsearch or OpenSearch.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--megabytes", default=95, show_default=True, help="Of the request without vectors.")
@click.option("--documents", default=20_000, show_default=True, help="Of the request with vectors.")
@click.option("--texts", default=10_000, show_default=True, help="Written in small requests.")
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to put the tables into."
)
def main(data: Path, url: str, rounds: int, megabytes: int, documents: int, texts: int, page: Path | None) -> None:
    """Measure, and clean up."""
    found = [str(row["text"]) for row in islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), 20_000)]
    with tempfile.TemporaryDirectory() as name:
        measurements = Measurements(url, Path(name), found, meta_of_default())
        for _ in range(rounds):
            measurements.large(megabytes)
            measurements.embedded(documents)
            measurements.rate(texts)
    for index in (PLAIN, WITH_VECTORS):
        delete(url, index)
    RESULT.write_text(json.dumps({"machine": machine(), "figures": measurements.runs}, indent=2) + "\n")
    command = (
        f"python -m benchmarks.bulk_through_gateway --data DATA --url … --rounds {rounds} --megabytes {megabytes} "
        f"--documents {documents} --texts {texts}"
    )
    text = section(measurements.runs, command, documents, texts)
    if page is not None:
        made = replaced(page.read_text(), "bulk-through-gateway", text, maker="benchmarks.bulk_through_gateway")
        page.write_text(made)
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
