"""One command loads 20,000 documents; are they all there, found as brute force finds them, and left alone after?

    python -m benchmarks.acceptance --data DATA --url http://localhost:9200 [--url …]

DATA holds `ingest/short-docs.jsonl.gz` (id, text, source). For each engine: load with the command line
(index type flat), compare counts, compare the top 10 of ten queries with brute force over the vectors read
back from the index, load the same file again, load it without vectors into a second index, fill that in
place, and compare its vectors with the first index's. Prints a Markdown table and fails where a line fails.
"""

from __future__ import annotations

import gzip
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import machine, table
from es_sbert.config import DEFAULT_VECTOR_FIELD, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.index.document_vectors import read_vector
from es_sbert.search.semantic_index import SemanticIndex

QUERIES = (
    "a dog runs through the snow", "someone is playing a musical instrument", "how to sort a list in python",
    "the economy of India", "children are having fun at the beach", "an algorithm for shortest paths in graphs",
    "a man rides a bicycle", "database connection fails", "a war in the nineteenth century", "cooking dinner",
)  # fmt: skip
TIES = 1e-6  # documents whose cosines differ by less may be in either order


def take(source: Path, count: int, target: Path) -> list[dict[str, Any]]:
    """The first documents of a gzip'd JSONL file, also written to `target` as they are."""
    with gzip.open(source, "rb") as file:
        lines = list(itertools.islice(file, count))
    target.write_bytes(gzip.compress(b"".join(lines), 1))
    return [json.loads(line) for line in lines]


def ingest(url: str, index: str, *arguments: str) -> dict[str, Any]:
    """Run `es-sbert ingest --json` and give its summary; an exit code other than 0 ends the benchmark."""
    command = [sys.executable, "-m", "es_sbert", "ingest", "--url", url, "--index", index, "--json", "--quiet"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise click.ClickException(f"ingest ended with {done.returncode}: {done.stderr}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def vectors_of(engine: Engine, index: str, ids: list[str]) -> NDArray[np.float32]:
    """Vectors as the engine holds them, (documents, dimensions), in the order of the ids."""
    rows = []
    for start in range(0, len(ids), 1000):
        part = ids[start : start + 1000]
        found = engine.mget_sources(index, part, source_includes=[DEFAULT_VECTOR_FIELD], vectors=True)
        rows += [read_vector(found[id][DEFAULT_VECTOR_FIELD]) for id in part]
    return np.stack(rows)


def same_ranking(found: list[str], exact: NDArray[np.float32], ids: list[str]) -> bool:
    """Whether the hits are the documents of the largest cosines, ties aside.

    Args:
        exact: Cosine of every document, *shape* ``(documents,)``.
    """
    cosine = dict(zip(ids, exact.tolist(), strict=True))
    best = np.sort(exact)[::-1][: len(found)]
    return all(abs(cosine[id] - wanted) <= TIES for id, wanted in zip(found, best.tolist(), strict=True))


def check(url: str, file: Path, documents: list[dict[str, Any]], encoder: Encoder) -> dict[str, Any]:
    """All lines for one engine."""
    engine = connect(EngineSettings(url=url))
    loaded, filled = "acceptance-loaded", "acceptance-filled"
    for index in (loaded, filled):
        if engine.get_index(index):
            delete(url, index)
    ids = [document["id"] for document in documents]
    common = ("--index-type", "flat", "--precision", str(encoder.info.precision))
    started = time.perf_counter()
    first = ingest(url, loaded, "--id-field", "id", *common, str(file))
    seconds = time.perf_counter() - started
    vectors = vectors_of(engine, loaded, ids)
    with SemanticIndex(loaded, EngineSettings(url=url), encoder=encoder) as index:
        equal = 0
        for query in QUERIES:
            hits = [hit.id for hit in index.search(query, k=10).hits]
            exact = vectors @ encoder.encode([query], "query")[0]
            equal += same_ranking(hits, exact, ids)
    second = ingest(url, loaded, "--id-field", "id", *common, str(file))
    load_without_vectors(engine, filled, documents)
    backfill = ingest(url, filled, *common)
    cosines = np.sum(vectors_of(engine, filled, ids) * vectors, axis=1)
    row = {
        "engine": engine.info.label,
        "indexed": first["indexed"],
        "in the index": engine.count(loaded),
        "documents/s, with start-up": round(len(ids) / seconds),
        "top 10 as brute force": f"{equal} of {len(QUERIES)}",
        "second load: indexed / unchanged": f"{second['indexed']} / {second['unchanged']}",
        "backfill: indexed": backfill["indexed"],
        "backfill against load, smallest cosine": f"{cosines.min():.6f}",
    }
    for index_name in (loaded, filled):
        delete(url, index_name)
    engine.close()
    total = len(ids)
    if (first["indexed"], row["in the index"], equal, second["indexed"], second["unchanged"], backfill["indexed"]) != (
        total,
        total,
        len(QUERIES),
        0,
        total,
        total,
    ) or cosines.min() < 0.99999:
        raise click.ClickException(f"not as it should be: {row}")
    return row


def load_without_vectors(engine: Engine, index: str, documents: list[dict[str, Any]]) -> None:
    """Plain bulk requests, as another application would load them."""
    engine.create_index(index, {})
    for start in range(0, len(documents), 5000):
        lines = []
        for document in documents[start : start + 5000]:
            lines += [json.dumps({"index": {"_id": document["id"]}}), json.dumps(document)]
        results = engine.bulk(index, ("\n".join(lines) + "\n").encode())
        if not all(result.ok for result in results):
            raise click.ClickException("plain documents were refused")
    engine.refresh(index)


def delete(url: str, index: str) -> None:
    """Remove an index of this benchmark."""
    import urllib.request

    with urllib.request.urlopen(urllib.request.Request(f"{url}/{index}", method="DELETE")):
        pass


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", "urls", multiple=True, required=True)
@click.option("--documents", default=20_000, show_default=True)
@click.option("--precision", default="auto", show_default=True)
def main(data: Path, urls: tuple[str, ...], documents: int, precision: str) -> None:
    """Run every line on every engine."""
    with tempfile.TemporaryDirectory() as folder, Encoder(precision=precision) as encoder:
        file = Path(folder) / "documents.jsonl.gz"
        rows = [
            check(url, file, docs, encoder)
            for docs in [take(data / "ingest/short-docs.jsonl.gz", documents, file)]
            for url in urls
        ]
        click.echo(f"{documents} documents, {encoder.info.model} {encoder.info.variant}; {json.dumps(machine())}\n")
        click.echo(
            table(
                ["", *(row["engine"] for row in rows)],
                [[key, *(row[key] for row in rows)] for key in rows[0] if key != "engine"],
            )
        )


if __name__ == "__main__":
    main()
