"""Loading into a graph against loading flat and building the graph once: time until a search is as good, and recall.

    python -m benchmarks.flat_then_graph --data DATA --url http://localhost:9200 [--url …] [--count 60000] [--rounds 2]

DATA holds `ingest/short-docs.jsonl.gz`; its first texts are embedded with the default model, once, in a cache file of
int8 or fp32 vectors. Elasticsearch alone can raise a field from `flat` to `hnsw` in place. Ways, each in an index of
its own with one shard, no replica and no refresh during the load, sent by four threads:

- *graph*: into `hnsw`, then a refresh;
- *graph, merged*: the same, then merged into one segment;
- *flat, raised, merged*: into `flat`, the mapping raised to `hnsw`, then merged into one segment, which builds it.

The second and the third end as the same index. Recall@10 of 200 texts that are not in the index, num_candidates 100.
"""

from __future__ import annotations

import gzip
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson

from benchmarks.acceptance import delete
from benchmarks.common import machine, spread, table
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import bulk_vector_value
from es_sbert.index.index_type_change import change_index_type, force_merge
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.search.vector_query import SearchMethod, VectorQuery, search_body
from es_sbert.vectors import Vectors

QUERIES = 200
K = 10
BATCH = 500
WAYS = {"graph": ("hnsw", False), "graph, merged": ("hnsw", True), "flat, raised, merged": ("flat", True)}


def embedded(data: Path, count: int, cache: Path) -> Vectors:
    """Vectors of the first texts. *Shape:* ``(count, dimensions)`` float32."""
    file = cache / f"short-docs-{count}.npy"
    if not file.exists():
        with gzip.open(data / "ingest/short-docs.jsonl.gz", "rb") as source:
            texts = [json.loads(line)["text"] for line in itertools.islice(source, count)]
        with Encoder() as encoder:
            cache.mkdir(parents=True, exist_ok=True)
            np.save(file, encoder.encode(texts, "document"))
    vectors: Vectors = np.load(file)
    return vectors


def load(engine: Engine, index: str, vectors: Vectors) -> None:
    """Send all vectors as a load would: four threads, bodies of some hundred documents."""

    def send(start: int) -> None:
        lines = [
            orjson.dumps({"index": {"_id": str(row)}})
            + b"\n"
            + orjson.dumps(
                {"embedding": bulk_vector_value(engine.info, vectors[row])}, option=orjson.OPT_SERIALIZE_NUMPY
            )
            for row in range(start, min(start + BATCH, len(vectors)))
        ]
        refused = [result for result in engine.bulk(index, b"\n".join(lines) + b"\n") if not result.ok]
        if refused:
            raise click.ClickException(f"{index}: {refused[0].reason}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(0, len(vectors), BATCH)))


def recall(engine: Engine, index: str, vectors: Vectors, queries: Vectors) -> tuple[float, float]:
    """Recall@10 against brute force, and milliseconds of the median search, timed here."""
    found, took = 0, []
    for query in queries:
        best = set(np.argpartition(-(vectors @ query), K)[:K])
        body = search_body(engine.info.engine_type, SearchMethod.KNN, VectorQuery("embedding", query, K))
        begin = time.perf_counter()
        hits = engine.search(index, body)["hits"]["hits"]
        took.append(1000 * (time.perf_counter() - begin))
        found += len(best & {int(hit["_id"]) for hit in hits})
    return found / (K * len(queries)), float(np.median(took))


def measure(engine: Engine, way: str, vectors: Vectors, queries: Vectors) -> dict[str, Any]:
    """One load in one way."""
    index = f"flat-then-graph-{way.split(',')[0]}"
    if engine.get_index(index) is not None:
        delete(engine.info.url, index)
    index_type, merged = WAYS[way]
    ensure_vector_field(
        engine,
        index,
        FieldRequest(
            name="embedding",
            fingerprint="0" * 32,
            model_name="benchmark",
            dimensions=vectors.shape[1],
            index_type=index_type,
        ),
        shards=1,
        replicas=0,
    )
    engine.put_settings(index, {"index.refresh_interval": "-1"})
    begin = time.perf_counter()
    load(engine, index, vectors)
    loaded = time.perf_counter() - begin
    if index_type == "flat":
        change_index_type(engine, index, "embedding", "hnsw")
    engine.refresh(index)
    if merged:
        force_merge(engine, index)
        engine.refresh(index)
    total = time.perf_counter() - begin
    found, took = recall(engine, index, vectors, queries)
    segments = sum(engine.count_segments(index).values())
    delete(engine.info.url, index)
    return {"loaded": loaded, "total": total, "recall": found, "took": took, "segments": segments}


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", "urls", multiple=True, required=True)
@click.option("--count", default=60_000, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), default=Path(".benchmarks"), show_default=True
)
def main(data: Path, urls: tuple[str, ...], count: int, rounds: int, cache: Path) -> None:
    """Load in each way, in turns."""
    vectors = embedded(data, count + QUERIES, cache)
    rows = []
    for url in urls:
        engine = connect(EngineSettings(url=url, timeout=3600))
        if engine.info.engine_type is not EngineType.ELASTICSEARCH:
            raise click.ClickException(f"{engine.info.label} cannot raise a field's index type")
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                runs[way].append(measure(engine, way, vectors[:count], vectors[count:]))
                click.echo(f"{engine.info.label} {way}: {runs[way][-1]}", err=True)
        rows += [
            [
                engine.info.label,
                way,
                *(spread([run[key] for run in of_way]) for key in ("loaded", "total")),
                spread([run["recall"] for run in of_way], 4),
                spread([run["took"] for run in of_way], 1),
                of_way[-1]["segments"],
            ]
            for way, of_way in runs.items()
        ]
        engine.close()
    click.echo(f"{count:,} vectors of {vectors.shape[1]} dimensions; {json.dumps(machine())}\n")
    header = ["engine", "way", "all sent, s", "ready, s", "recall@10", "median search, ms", "segments"]
    click.echo(table(header, rows))


if __name__ == "__main__":
    main()
