"""nDCG@10 of kNN in a real index, of the same vectors ranked in memory, and of BM25 in the same index.

    python -m benchmarks.retrieval --data DATA --url http://localhost:9200 [--set cisi --set arguana-rebuilt]

DATA holds `retrieval/SET/` in the BEIR layout (corpus.jsonl.gz, queries.jsonl.gz, qrels/test.tsv.gz). Titles
are prepended to texts. Queries that are documents of the corpus leave themselves out. The index type is
flat, so kNN must give the ranking of brute force; ir-measures computes the figures.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import ir_measures
import numpy as np
from ir_measures import AP, RR, R, nDCG
from numpy.typing import NDArray

from benchmarks.common import delete, ingest, machine, table
from es_sbert.config import DEFAULT_VECTOR_FIELD, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.evaluation.beir_files import RetrievalCollection, read_beir_folder
from es_sbert.index.document_vectors import read_vector
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.vectors import Vectors
from tests.engine.sources import read_sources

DEPTH = 100
TIES = 1e-6  # documents whose cosines differ by less may be in either order
MEASURES = [nDCG @ 10, RR @ 10, AP @ 100, R @ 100]
Run = dict[str, dict[str, float]]  # query id → document id → score


def evaluate(run: Run, qrels: dict[str, dict[str, int]]) -> list[float]:
    """The measures × 100."""
    values = ir_measures.calc_aggregate(MEASURES, qrels, run)
    return [100 * values[measure] for measure in MEASURES]


def load_collection(
    url: str, index: str, collection: RetrievalCollection, precision: str, model: str | None = None
) -> None:
    """Into a flat index of that name, which is made anew."""
    with closing(connect(EngineSettings(url=url))) as engine:
        if engine.get_index(index):
            delete(url, index)
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "corpus.jsonl"
        documents = ({"id": id, "text": text} for id, text in collection.documents.items())
        file.write_text("".join(json.dumps(document) + "\n" for document in documents))
        named = () if model is None else ("--model", model)
        ingest(url, index, "--id-field", "id", "--index-type", "flat", "--precision", precision, *named, str(file))


def vectors_of(engine: Engine, index: str, ids: list[str]) -> Vectors:
    """Vectors as the engine holds them, (documents, dimensions), in the order of the ids."""
    rows = []
    for start in range(0, len(ids), 1000):
        part = ids[start : start + 1000]
        found = read_sources(engine, index, part, source_includes=[DEFAULT_VECTOR_FIELD])
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


def rank(data: Path, name: str, url: str, encoder: Encoder) -> list[list[Any]]:
    """Table rows of one test collection: kNN, in memory, BM25."""
    index_name = f"retrieval-{name}"
    collection = read_beir_folder(data / "retrieval" / name)
    queries, qrels = collection.queries, collection.judgements
    load_collection(url, index_name, collection, str(encoder.info.precision))
    engine = connect(EngineSettings(url=url))
    ids = list(collection.documents)
    vectors = vectors_of(engine, index_name, ids)  # (documents, dimensions)
    questions = encoder.encode(list(queries.values()), "query")  # (queries, dimensions)
    knn, memory, bm25 = {}, {}, {}
    equal = 0
    with SemanticIndex(index_name, EngineSettings(url=url), encoder=encoder) as index:
        for (query, text), question in zip(queries.items(), questions, strict=True):
            exact = vectors @ question  # (documents,)
            hits = index.search_vector(question, k=DEPTH + 1).hits
            equal += same_ranking([hit.id for hit in hits], exact, ids)
            own = collection.own(query)
            knn[query] = {hit.id: hit.cosine for hit in hits if hit.id != own}
            order = np.argsort(-exact, kind="stable")[: DEPTH + 1]
            memory[query] = {ids[place]: float(exact[place]) for place in order if ids[place] != own}
            found = engine.search(index_name, {"size": DEPTH + 1, "_source": False, "query": {"match": {"text": text}}})
            bm25[query] = {hit["_id"]: hit["_score"] for hit in found["hits"]["hits"] if hit["_id"] != own}
    label = engine.info.label
    delete(url, index_name)
    engine.close()
    if equal != len(queries):
        raise click.ClickException(f"{name}: kNN ranks {equal} of {len(queries)} queries as brute force does")
    size = f"{name} ({len(ids):,} documents, {len(queries):,} queries)"
    return [
        [size, method, *(f"{value:.2f}" for value in evaluate(run, qrels))]
        for method, run in ((f"kNN, {label}", knn), ("in memory", memory), (f"BM25, {label}", bm25))
    ]


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True)
@click.option("--set", "sets", multiple=True, default=("cisi", "arguana-rebuilt"), show_default=True)
@click.option("--model", help="As for every command.")
@click.option("--precision", default="auto", show_default=True)
def main(data: Path, url: str, sets: tuple[str, ...], model: str | None, precision: str) -> None:
    """Load, rank, measure."""
    with Encoder(model, precision=precision) as encoder:
        rows = [row for name in sets for row in rank(data, name, url, encoder)]
        click.echo(f"{encoder.info.model} {encoder.info.variant}; {json.dumps(machine())}\n")
        click.echo(table(["collection", "ranking", *map(str, MEASURES)], rows))


if __name__ == "__main__":
    main()
