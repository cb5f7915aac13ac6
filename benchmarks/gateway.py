"""The overhead of the gateway for a request that passes through, and the rate of semantic searches.

    python -m benchmarks.gateway --data DATA --url http://localhost:9200 [--rounds 3] [--seconds 10] [--rate 100]

The first 5,000 documents of `DATA/ingest/short-docs.jsonl.gz` go into an index, the
others are what is searched for. Load comes from wrk and k6, on the same cores as everything else. The engine itself and
the gateway take turns within every round; figures are medians of the rounds.

Pass-through: a plain `match` query over 64 connections, as fast as possible (which measures both cores together) and
at a constant, much lower rate (which measures the overhead of the gateway). Semantic: distinct queries, each embedded,
and 100 repeated queries, which come from the cache; and kNN with a ready vector without the gateway, for comparison.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.common import delete, ingest, machine, read_jsonl, replaced, spread, table
from benchmarks.load import Figures, closed_loop, constant_rate
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from tests.gateway.running import serve

INDEX = "gateway-benchmark"
DOCUMENTS, QUERIES, REPEATED = 5_000, 14_000, 100
CONNECTIONS = (1, 8, 64)
RESULT = Path(__file__).parent / "results/gateway.json"


def load(url: str, texts: list[str], folder: Path) -> None:
    """The documents into the index, with vectors."""
    source = folder / "documents.jsonl"
    source.write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
    engine = connect(EngineSettings(url=url))
    if engine.get_index(INDEX) is not None:
        delete(url, INDEX)
    engine.close()
    ingest(url, INDEX, str(source))


def write_bodies(path: Path, bodies: Iterator[Mapping[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(body) + b"\n" for body in bodies))
    return path


def measure(direct: str, through: str, folder: Path, texts: list[str], *, rounds: int, seconds: int, rate: int) -> Any:
    """Case → runs.

    Args:
        direct, through: Addresses of the engine and the gateway.
        texts: To search for.
    """
    search = f"/{INDEX}/_search"
    plain = write_bodies(folder / "plain", ({"query": {"match": {"text": text}}, "size": 10} for text in texts[:1000]))
    runs: dict[str, list[Figures]] = defaultdict(list)

    def note(case: str, figures: Figures) -> None:
        runs[case].append(figures)
        click.echo(f"{case}: {figures}", err=True)

    for number in range(rounds):
        for name, url in (("direct", direct), ("gateway", through)):
            note(f"passed on, closed loop, {name}", closed_loop(url + search, plain, connections=64, seconds=seconds))
            note(
                f"passed on, constant rate, {name}",
                constant_rate(url + search, plain, connections=64, seconds=seconds, rate=rate),
            )
        for connections in CONNECTIONS:
            # Each run has texts that no other has: the cache must not know them.
            part = len(texts) // (rounds * len(CONNECTIONS))
            start = (number * len(CONNECTIONS) + CONNECTIONS.index(connections)) * part
            distinct = write_bodies(folder / "distinct", map(asked, texts[start : start + part]))
            again = write_bodies(folder / "again", map(asked, texts[:REPEATED]))
            for name, url, bodies in (
                ("distinct", through, distinct),
                ("cached", through, again),
                ("vector", direct, folder / "vectors"),
            ):
                note(
                    f"{name}, {connections}",
                    closed_loop(url + search, bodies, connections=connections, seconds=seconds),
                )
    return runs


def asked(text: str) -> Mapping[str, Any]:
    return {"query": {"match": {"semantic": text}}, "size": 10, "_source": ["text"]}


def ready(texts: list[str]) -> Iterator[Mapping[str, Any]]:
    """The same searches with vectors made before, in Elasticsearch's words."""
    vectors = Encoder("all-MiniLM-L6-v2").encode(texts, "query")  # (texts, dimensions)
    for vector in vectors:
        knn = {"field": "embedding", "query_vector": vector.tolist(), "k": 100, "num_candidates": 200}
        yield {"query": {"knn": knn}, "size": 10, "_source": ["text"]}


def section(runs: Mapping[str, list[Figures]], rounds: int, seconds: int, rate: int) -> str:
    """Both tables."""

    def row(case: str, *names: object) -> list[object]:
        figures = runs[case]
        shown = [
            spread([getattr(one, key) for one in figures], digits)
            for key, digits in (("rate", 0), ("p50", 2), ("p99", 2))
        ]
        return [*names, *shown, sum(one.failed for one in figures)]

    def added(case: str, key: str) -> float:
        pairs = zip(runs[f"passed on, {case}, gateway"], runs[f"passed on, {case}, direct"], strict=True)
        return statistics.median(getattr(one, key) - getattr(other, key) for one, other in pairs)

    header = ["requests/s", "median, ms", "p99, ms", "failed"]
    passed = [
        row(f"passed on, {case}, {name}", case, name)
        for case in ("constant rate", "closed loop")
        for name in ("direct", "gateway")
    ]
    by_meaning = [
        row(f"{kind}, {connections}", kind, connections)
        for kind in ("distinct", "cached", "vector")
        for connections in CONNECTIONS
    ]
    return "\n".join(
        [
            f"`python -m benchmarks.gateway --data DATA --url … --rounds {rounds} --seconds {seconds} --rate {rate}`: "
            f"{DOCUMENTS:,} documents; median (min–max) of the rounds. At {rate} requests/s over 64 connections the "
            f"gateway adds {added('constant rate', 'p50'):.2f} ms at the median and "
            f"{added('constant rate', 'p99'):.2f} ms "
            "at p99. The closed loop shows what engine, gateway and load generator do together on two cores.",
            "",
            table(["passed on", "", *header], passed),
            "",
            "Semantic searches in a closed loop: `distinct` queries are embedded, `cached` ones come again; `vector` "
            "is the engine alone with ready vectors.",
            "",
            table(["queries", "connections", *header], by_meaning),
        ]
    )


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True, help="An Elasticsearch.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=10, show_default=True, help="Of each run.")
@click.option("--rate", default=100, show_default=True, help="Requests a second, well below what the machine can do.")
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to put the tables into."
)
def main(data: Path, url: str, rounds: int, seconds: int, rate: int, page: Path | None) -> None:
    """Load, start a gateway, measure."""
    rows = islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), DOCUMENTS + QUERIES)
    texts = [str(row["text"]) for row in rows]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load(url, texts[:DOCUMENTS], folder)
        write_bodies(folder / "vectors", ready(texts[DOCUMENTS : DOCUMENTS + REPEATED]))
        with serve(url, folder) as gateway:
            runs = measure(url, gateway, folder, texts[DOCUMENTS:], rounds=rounds, seconds=seconds, rate=rate)
    delete(url, INDEX)
    figures = {case: [asdict(one) for one in found] for case, found in runs.items()}
    RESULT.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    text = section(runs, rounds, seconds, rate)
    if page is not None:
        page.write_text(replaced(page.read_text(), "gateway", text, maker="benchmarks.gateway"))
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
