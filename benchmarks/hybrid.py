"""nDCG@10 of words (BM25), of meaning (kNN), and of both in one search with several weights, in a real index.

    python -m benchmarks.hybrid --data DATA --url http://localhost:9200 [--set cisi --set arguana-rebuilt] [--limit 200]

DATA holds `retrieval/SET/` in the BEIR layout. Titles are prepended to texts; the words are looked for with the
engine's default analyzer. The index type is flat, so that nothing is lost to a graph. Queries that are documents of the
collection leave themselves out. Each fusion looks at the first 100 of each side.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.common import machine, table
from es_sbert.config import EngineSettings
from es_sbert.encoder.batching import Vectors
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.evaluation.beir_files import read_beir_folder
from es_sbert.evaluation.ranking_metrics import Run, measure_run
from es_sbert.evaluation.task_data import RetrievalCollection
from es_sbert.ingest.load import LocalRunner, run_load
from es_sbert.ingest.load_plan import IngestSettings, plan_load
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.search.hybrid_search import HybridSearch, hybrid_request, keyword_query, lexical_clause
from es_sbert.search.search_request import SearchParams, SearchRequest, search_request
from es_sbert.search.search_scope import SearchScope, read_search_scope

K = 20  # nDCG looks at 10 of them, of which one may be the query itself
RRF = [(1, 2), (1, 1), (2, 1), (3, 1), (4, 1)]
WEIGHTED = [(1, 1), (10, 1), (40, 1), (100, 1), (200, 1), (400, 1)]
NORMALIZED = [(0.3, 0.7), (0.5, 0.5), (0.7, 0.3), (0.8, 0.2), (0.9, 0.1)]

Ranker = Callable[[str, Vectors], list[str]]  # text, vector → ids, best first


def send(engine: Engine, request: SearchRequest[Any]) -> list[str]:
    """Ids of the hits, best first."""
    if len(request.bodies) > 1:
        answers = engine.multi_search(request.indices, request.bodies)
    else:
        answers = [engine.search(request.indices, request.bodies[0], named_scores=request.named_scores)]
    return [hit.id for hit in request.read(answers)]


def rankers(engine: Engine, searched: SearchScope) -> Iterator[tuple[str, str, Ranker]]:
    """Kind, weights of meaning and words, and what ranks so."""
    engine_type, index = engine.info.engine_type, searched.indices[0]
    asked = SearchParams.of(K, {"source": False})

    def lexical(text: str, vector: Vectors) -> list[str]:
        body = {"query": lexical_clause(keyword_query(text, ["text"]), None), "size": K, "_source": False}
        return [hit["_id"] for hit in engine.search(index, body)["hits"]["hits"]]

    def semantic(text: str, vector: Vectors) -> list[str]:
        return send(engine, search_request(engine_type, searched, {"embedding": vector}, asked))

    def hybrid(fusion: str, weights: tuple[float, float]) -> Ranker:
        def rank(text: str, vector: Vectors) -> list[str]:
            search = HybridSearch.of(
                text, K, {"fusion": fusion, "weights": weights, "lexical_fields": ["text"], "source": False}
            )
            return send(engine, hybrid_request(engine_type, searched, {"embedding": vector}, search))

        return rank

    yield "words", "", lexical
    yield "meaning", "", semantic
    fusions = [("rrf", RRF), ("weighted", WEIGHTED)]
    if engine_type is EngineType.OPENSEARCH:
        fusions.append(("normalized", NORMALIZED))
    for fusion, pairs in fusions:
        for weights in pairs:
            yield fusion, f"{weights[0]:g} : {weights[1]:g}", hybrid(fusion, weights)


def load(engine: Engine, encoder: Encoder, index: str, data: RetrievalCollection) -> None:
    """Fill a new index by the ingest pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        rows = ({"id": identifier, "text": text} for identifier, text in data.documents.items())
        file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        wanted = IngestSettings(
            index=index,
            files=(str(file),),
            id_field="id",
            text_fields=("text",),
            index_type="flat",
            dead_letters=Path(folder) / "dead.jsonl",
        )
        summary = run_load(engine, LocalRunner(encoder), plan_load(engine, wanted), LoadControl(), SilentMeter())
    if summary.indexed != len(data.documents):
        raise click.ClickException(f"{index} took {summary.indexed:,} of {len(data.documents):,} documents")
    engine.refresh(index)


def rows_of(engine: Engine, encoder: Encoder, data: RetrievalCollection) -> Iterator[tuple[str, str, float]]:
    """Kind, weights, nDCG@10 × 100."""
    index = f"hybrid-{uuid.uuid4().hex[:12]}"
    try:
        load(engine, encoder, index, data)
        searched = read_search_scope(engine, [index], ["embedding"])
        vectors = encoder.encode(list(data.queries.values()), "query")  # (queries, dimensions)
        for kind, weights, rank in rankers(engine, searched):
            found: Run = {}
            for (query, text), vector in zip(data.queries.items(), vectors, strict=True):
                own = data.own(query)
                ids = [id for id in rank(text, vector) if id != own]
                found[query] = {id: 1.0 / place for place, id in enumerate(ids, start=1)}
            yield kind, weights, measure_run(found, data.judgements)["ndcg@10"]
    finally:
        engine.delete_index(index)


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True)
@click.option(
    "--set", "sets", multiple=True, default=("cisi", "agentset-msmarco", "arguana-rebuilt"), show_default=True
)
@click.option("--limit", type=int, default=200, show_default=True, help="Queries of a set, drawn by a fixed seed.")
@click.option("--model", help="As for every command.")
@click.option("--precision", default="auto", show_default=True)
def main(data: Path, url: str, sets: tuple[str, ...], limit: int, model: str | None, precision: str) -> None:
    """Load, rank, measure."""
    figures: dict[tuple[str, str], dict[str, float]] = {}
    header = ["ranking", "meaning : words"]
    with Encoder(model, precision=precision) as encoder, closing(connect(EngineSettings(url=url))) as engine:
        for name in sets:
            collection = read_beir_folder(data / "retrieval" / name, limit=limit)
            header.append(f"{name} ({len(collection.queries):,} queries)")
            for kind, weights, ndcg in rows_of(engine, encoder, collection):
                figures.setdefault((kind, weights), {})[name] = ndcg
                click.echo(f"{name} {kind} {weights} {ndcg:.2f}", err=True)
        rows = [
            [kind, weights, *(f"{own[name]:.2f}" for name in sets), f"{sum(own.values()) / len(own):.2f}"]
            for (kind, weights), own in figures.items()
        ]
        click.echo(f"{engine.info.label}; {encoder.info.model} {encoder.info.variant}; {json.dumps(machine())}\n")
        click.echo(table([*header, "mean"], rows))


if __name__ == "__main__":
    main()
