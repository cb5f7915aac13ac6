"""Where the time of a semantic query through the gateway goes, with one client.

    python -m benchmarks.query_parts --data DATA --url http://localhost:9200 [--queries 300] [--rounds 3]

DATA as in `benchmarks.acceptance`: the first 5,000 documents of `ingest/short-docs.jsonl.gz` go into an index, others
are searched for, each text once. For each text in turn, on one connection each: the query through the gateway; the kNN
request that the gateway makes of it, sent to the engine with its vector ready; the text's encoding alone, in this
process; and a plain `match` directly and through the gateway. What is left of the first when the next two are taken
away is the time of the gateway itself.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from benchmarks.acceptance import delete
from benchmarks.common import machine, read_jsonl, replaced, seconds, spread, table
from benchmarks.gateway import DOCUMENTS, INDEX, asked, load
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder
from tests.gateway.running import serve

RESULT = Path(__file__).parent / "results/query_parts.json"
PARTS = ("through the gateway", "encoding alone", "kNN with a ready vector", "match, directly", "match, gateway")


class Connection:
    """One connection that is kept.

    Args:
        index: What is searched.
    """

    def __init__(self, url: str, index: str) -> None:
        self._path = f"/{index}/_search"
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def search(self, body: Any, path: str | None = None) -> Any:
        """The answer to a search.

        Raises:
            RuntimeError: it is an error.
        """
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request("POST", path or self._path, data, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(text.decode())
        return json.loads(text)


def measure(
    url: str, gateway: str, texts: Sequence[str], index: str = INDEX, model: str = DEFAULT_MODEL
) -> dict[str, list[float]]:
    """Part → milliseconds of each text."""
    engine, through, page = Connection(url, index), Connection(gateway, index), Connection(gateway, index)
    found: dict[str, list[float]] = defaultdict(list)

    def timed(part: str, *call: Any) -> None:
        found[part].append(1000 * seconds(lambda: call[0](*call[1:]))[0])

    with Encoder(model) as encoder:
        for text in texts:
            timed("through the gateway", through.search, json.dumps(asked(text)).encode())
            # The same query in the engine's words; its vector comes from the cache.
            ready = page.search({"index": index, "body": asked(text)}, "/ui/api/body")["body"]
            timed("kNN with a ready vector", engine.search, json.dumps(ready).encode())
            timed("encoding alone", encoder.encode, [text], "query")
            plain = json.dumps({"query": {"match": {"text": text}}, "size": 10, "_source": ["text"]}).encode()
            timed("match, directly", engine.search, plain)
            timed("match, gateway", through.search, plain)
    return dict(found)


def own_time(run: Mapping[str, Sequence[float]]) -> float:
    """The gateway's own milliseconds: what is left of the median without those of encoding and kNN."""
    whole, encoding, search = (statistics.median(run[part]) for part in PARTS[:3])
    return whole - encoding - search


def section(runs: list[dict[str, list[float]]], queries: int, rounds: int) -> str:
    """The table."""
    medians = [{part: statistics.median(run[part]) for part in PARTS} for run in runs]
    own = [own_time(run) for run in runs]
    rows = [[part, spread([one[part] for one in medians], 2)] for part in PARTS]
    rows.insert(3, ["the gateway's own", spread(own, 2)])
    rows.append(["passing on", spread([one[PARTS[4]] - one[PARTS[3]] for one in medians], 2)])
    return "\n".join(
        [
            f"`python -m benchmarks.query_parts --data DATA --url … --queries {queries} --rounds {rounds}`: "
            f"{DOCUMENTS:,} "
            f"documents, {queries:,} different texts, one client; medians of a round, median (min–max) of the rounds.",
            "",
            table(["part", "ms"], rows),
        ]
    )


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True, help="An Elasticsearch.")
@click.option("--queries", default=300, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to put the table into."
)
def main(data: Path, url: str, queries: int, rounds: int, page: Path | None) -> None:
    """Load, start a gateway, measure."""
    rows = islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), DOCUMENTS + queries * (rounds + 1))
    texts = [str(row["text"]) for row in rows]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load(url, texts[:DOCUMENTS], folder)
        with serve(url, folder) as gateway:
            batches = [texts[start : start + queries] for start in range(DOCUMENTS, len(texts), queries)]
            runs = [measure(url, gateway, batch) for batch in batches][1:]  # the first warms up
    delete(url, INDEX)
    RESULT.write_text(json.dumps({"machine": machine(), "milliseconds": runs}, indent=2) + "\n")
    text = section(runs, queries, rounds)
    if page is not None:
        page.write_text(replaced(page.read_text(), "query parts", text, maker="benchmarks.query_parts"))
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
