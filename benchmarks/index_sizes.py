"""What each index type takes on disk and loses in recall, compared with the estimate of `es-sbert index advise`.

    python -m benchmarks.index_sizes --data DATA --url http://localhost:9200 [--url …] [--count 20000]

DATA as in `benchmarks.flat_then_graph`, whose cached vectors are used; random vectors of the same number and length
are measured too, the hardest case for a graph. One shard, merged into one segment. Only the vector field is measured,
with the engine's own figures. Recall@10 of 100 documents, with the settings of `es-sbert search`.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np

from benchmarks.acceptance import delete
from benchmarks.common import machine, table
from benchmarks.flat_then_graph import embedded, load
from es_sbert.config import EngineSettings
from es_sbert.diagnostics.index_size import estimate_size
from es_sbert.diagnostics.recall import SearchSetting, measure_recall, sample_queries
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.index.index_type_change import force_merge
from es_sbert.index.mapping import OVERSAMPLE, IndexType, supported_index_types
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.vectors import Vectors

INDEX = "index-sizes"


def measure(engine: Engine, kind: str, index_type: IndexType, vectors: Vectors) -> list[object]:
    """A row of the table."""
    if engine.get_index(INDEX) is not None:
        delete(engine.info.url, INDEX)
    field = ensure_vector_field(
        engine,
        INDEX,
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
    load(engine, INDEX, vectors)
    force_merge(engine, INDEX)
    engine.refresh(INDEX)
    expected = estimate_size(engine.info, index_type, *vectors.shape)
    real = engine.vector_size(INDEX, "embedding")
    recall = took = "exact"
    if index_type is not IndexType.FLAT:
        setting = SearchSetting(100, OVERSAMPLE.get(index_type))
        queries = sample_queries(engine, field, 100, seed=0)
        [row] = measure_recall(engine, field, queries, [setting], k=10, target=0.95).rows
        recall = f"{row.recall.mean:.3f} ({row.recall.low:.3f}–{row.recall.high:.3f})"
        took = f"{row.median_ms:.1f}"
    delete(engine.info.url, INDEX)
    return [
        engine.info.label,
        index_type,
        kind,
        f"{expected.index / 1e6:.2f}",
        "not told" if real is None else f"{real / 1e6:.2f}",
        "–" if real is None else f"{100 * (expected.index / real - 1):+.1f} %",
        f"{expected.memory / 1e6:.2f}",
        recall,
        took,
    ]


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", "urls", multiple=True, required=True)
@click.option("--count", default=20_000, show_default=True)
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), default=".benchmarks", show_default=True)
def main(data: Path, urls: tuple[str, ...], count: int, cache: Path) -> None:
    """Load each type, merge, look."""
    sentences = embedded(data, count, cache)
    random = np.random.default_rng(0).normal(size=sentences.shape).astype(np.float32)
    rows = []
    for url in urls:
        engine = connect(EngineSettings(url=url, timeout=3600))
        for index_type in supported_index_types(engine.info):
            for kind, vectors in (("sentences", sentences), ("random", random)):
                rows.append(measure(engine, kind, index_type, vectors))
                click.echo(rows[-1], err=True)
        engine.close()
    click.echo(f"{count:,} vectors of {sentences.shape[1]} dimensions; {json.dumps(machine())}\n")
    header = [
        "engine",
        "type",
        "vectors",
        "estimate, MB",
        "measured, MB",
        "off",
        "memory, MB",
        "recall@10",
        "median ms",
    ]
    click.echo(table(header, rows))


if __name__ == "__main__":
    main()
