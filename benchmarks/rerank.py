"""What reranking by a cross-encoder costs and changes: milliseconds a query, nDCG@10 before and after.

    python -m benchmarks.rerank --data DATA --url http://localhost:9200 --reranker FOLDER [--window 10 --window 50]

DATA as for benchmarks.retrieval; FOLDER is an exported cross-encoder. Searches are by vectors that are encoded
beforehand, so that the milliseconds of a row are the cross-encoder's alone: medians over the queries, of which one
that is not counted runs first.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.acceptance import delete
from benchmarks.common import machine, table
from benchmarks.retrieval import DEPTH, Collection, evaluate, load_collection, read_collection
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.reranker import Reranker
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.search.reranking import hit_text_reader, rerank
from es_sbert.search.search_result import SearchResult
from es_sbert.search.semantic_index import SemanticIndex


def search_all(index: SemanticIndex, encoder: Encoder, collection: Collection) -> dict[str, SearchResult]:
    """Query id → its nearest documents, a query itself left out."""
    questions = encoder.encode(list(collection.queries.values()), "query")  # (queries, dimensions)
    found = {}
    for query, question in zip(collection.queries, questions, strict=True):
        result = index.search_vector(question, k=DEPTH + 1)
        hits = tuple(hit for hit in result if query not in collection.own or hit.id != query)
        found[query] = replace(result, hits=hits)
    return found


def rerank_all(
    collection: Collection, found: dict[str, SearchResult], reranker: Reranker, meta: VectorFieldMeta, window: int
) -> dict[str, SearchResult]:
    """The same hits in the cross-encoder's order."""
    text_of = hit_text_reader(meta)
    first = next(iter(found))
    rerank(collection.queries[first], found[first], reranker, text_of, k=DEPTH, window=window)
    return {
        query: rerank(collection.queries[query], result, reranker, text_of, k=DEPTH, window=window)
        for query, result in found.items()
    }


def ndcg(collection: Collection, results: dict[str, Any]) -> str:
    """nDCG@10 × 100 of the hits in their order."""
    run = {query: {hit.id: float(-rank) for rank, hit in enumerate(result)} for query, result in results.items()}
    return f"{evaluate(run, collection.qrels)[0]:.2f}"


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True)
@click.option("--reranker", "reranker_name", required=True, help="Folder of an exported cross-encoder.")
@click.option("--set", "name", default="cisi", show_default=True)
@click.option("--window", "windows", type=int, multiple=True, default=(10, 50, 100), show_default=True)
@click.option("--precision", "precisions", multiple=True, default=("fp32", "int8"), show_default=True)
def main(
    data: Path, url: str, reranker_name: str, name: str, windows: tuple[int, ...], precisions: tuple[str, ...]
) -> None:
    """Load, search, rerank, measure."""
    collection, index_name = read_collection(data / "retrieval" / name), f"rerank-{name}"
    with Encoder() as encoder:
        load_collection(url, index_name, collection, str(encoder.info.precision))
        with SemanticIndex(index_name, EngineSettings(url=url), encoder=encoder) as index:
            found, meta, label = search_all(index, encoder, collection), index.field.meta, index.engine.info.label
    delete(url, index_name)
    rows: list[list[Any]] = [["none", "–", "–", "–", ndcg(collection, found)]]
    for precision in precisions:
        with Reranker(reranker_name, precision=precision) as reranker:
            for window in windows:
                results = rerank_all(collection, found, reranker, meta, window)
                done = [result.reranking for result in results.values() if result.reranking is not None]
                cut = sum(one.truncated for one in done) / sum(one.scored for one in done)
                median = statistics.median(one.took_ms for one in done)
                rows.append([reranker.name, window, f"{median:,.0f}", f"{cut:.0%}", ndcg(collection, results)])
    click.echo(f"{name}, {len(collection.queries)} queries, {label}; {json.dumps(machine())}\n")
    click.echo(table(["reranker", "window", "ms a query", "pairs cut", "nDCG@10"], rows))


if __name__ == "__main__":
    main()
