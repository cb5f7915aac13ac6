"""nDCG@10 of shorter vectors: cut to fewer dimensions, rotated by `es-sbert model rotate`, and stored as bytes.

    python -m benchmarks.short_vectors --data DATA [--set cisi --set arguana-rebuilt] [--model NAME]

DATA as in `benchmarks.retrieval`, whose documents, queries and measures are used; all rankings are exact, in memory.
The axes are found in the documents of the collection itself, and in those of the other collections; queries and
judgements have no part in it. `--other NAME` adds a model whose vectors are cut as they are. --cache keeps vectors.

The second table compares vectors of int8 with the same vectors as floats: by a scale for each vector, as es-sbert
stores them, and by one scale for all, which cuts off the largest components.

With --url, the vectors of the first collection are also loaded into an engine, as they are and rotated, and
`es-sbert index advise` measures their layouts with the collection's queries. --advise-only leaves the tables out, and
--element-type chooses the layouts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.acceptance import delete
from benchmarks.common import machine, table
from benchmarks.flat_then_graph import load
from benchmarks.retrieval import Collection, Run, evaluate, read_collection
from es_sbert.analysis.dimension_reduction import fit_rotation
from es_sbert.config import EngineSettings
from es_sbert.diagnostics.index_advice import AdviceRequest, K, advice_lines, advise, query_recalls
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.index.byte_vectors import quantize_vectors
from es_sbert.index.mapping import supported_index_types
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.vectors import Vectors

DEPTH = 100
INDEX = "short-vectors"
ADVISED_TYPES = ("hnsw", "int8_hnsw", "bbq_hnsw")


def embed(collection: Collection, name: str, model: str | None, cache: Path) -> tuple[Vectors, Vectors]:
    """Vectors of documents with text, and of queries, from the cache if they are there."""
    with Encoder(model, precision="fp32") as encoder:
        file = cache / f"short-vectors-{name}-{encoder.info.fingerprint[:12]}.npz"
        if not file.exists():
            texts = [document["text"] for document in collection.documents if document["text"].strip()]
            documents = encoder.encode(texts, "document")
            queries = encoder.encode(list(collection.queries.values()), "query")
            cache.mkdir(parents=True, exist_ok=True)
            np.savez(file, documents=documents, queries=queries)
    stored = np.load(file)
    return stored["documents"], stored["queries"]


def ndcg(collection: Collection, documents: Vectors, queries: Vectors) -> float:
    """nDCG@10 × 100 of the exact ranking by cosine."""
    ids = [document["id"] for document in collection.documents if document["text"].strip()]
    unit = documents / np.linalg.norm(documents, axis=1, keepdims=True)
    questions = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    run: Run = {}
    for query, question in zip(collection.queries, questions, strict=True):
        cosines = unit @ question  # (documents,)
        order = np.argsort(-cosines, kind="stable")[: DEPTH + 1]
        is_own = query in collection.own
        run[query] = {ids[row]: float(cosines[row]) for row in order if not is_own or ids[row] != query}
    return evaluate(run, collection.qrels)[0]


def measured_rows(
    collections: dict[str, Collection],
    embedded: dict[str, tuple[Vectors, Vectors]],
    axes: dict[str, NDArray[np.float32]],
    lengths: tuple[int, ...],
) -> Iterator[list[Any]]:
    """Rows of each collection: the cut model, and the model rotated by each set of axes."""
    for name, collection in collections.items():
        documents, queries = embedded[name]
        whole = ndcg(collection, documents, queries)
        rotations = {"not rotated": np.eye(documents.shape[1], dtype=np.float32)}
        rotations |= {f"axes of {'its own' if own == name else own} documents": axes[own] for own in axes}
        for label, rotation in rotations.items():
            cells = []
            for length in lengths:
                value = ndcg(collection, documents @ rotation[:length].T, queries @ rotation[:length].T)
                cells.append(f"{value:.2f} ({100 * value / whole:.1f} %)")
            yield [name, label, f"{ndcg(collection, documents @ rotation.T, queries @ rotation.T):.2f}", *cells]


ONE_SCALE = 0.9999  # quantile of the components that one scale for all vectors makes 127


def quantize_by_one_scale(documents: Vectors, queries: Vectors) -> tuple[Vectors, Vectors, float]:
    """Whole numbers by one scale, taken from the documents, and the share of their components that is cut off."""
    scale = 127 / np.quantile(np.abs(documents), ONE_SCALE)
    stored, asked = (
        np.clip(np.rint(scale * vectors), -127, 127).astype(np.float32) for vectors in (documents, queries)
    )
    return stored, asked, float((np.abs(scale * documents) > 127.5).mean())


def cosine_matrix(documents: Vectors, queries: Vectors) -> NDArray[np.float64]:
    """*Shape:* ``(queries, documents)``."""
    unit, asked = (
        vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (documents, queries)
    )
    cosines: NDArray[np.float64] = asked @ unit.T
    return cosines


def byte_rows(
    collections: dict[str, Collection],
    embedded: dict[str, tuple[Vectors, Vectors]],
    axes: dict[str, NDArray[np.float32]],
    lengths: tuple[int, ...],
) -> Iterator[list[Any]]:
    """Rows of each collection, whole and cut, not rotated and rotated by the axes of its own documents."""
    for name, collection in collections.items():
        documents, queries = embedded[name]
        whole = documents.shape[1]
        for label, rotation in (("", np.eye(whole, dtype=np.float32)), (", rotated", axes[name])):
            for length in (whole, *lengths):
                short = [vectors @ rotation[:length].T for vectors in (documents, queries)]
                unit, asked = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in short)
                exact = cosine_matrix(unit, asked)
                cells: list[str] = []
                *one_scale, cut_off = quantize_by_one_scale(unit, asked)
                for stored, query in ([quantize_vectors(vectors).astype(np.float32) for vectors in short], one_scale):
                    error = cosine_matrix(stored, query) - exact
                    found = np.argpartition(-(exact + error), K - 1, axis=1)[:, :K].tolist()
                    recall = float(np.mean(query_recalls(exact, found)))
                    root_mean_square = float(np.sqrt((error**2).mean()))
                    cells += [f"{ndcg(collection, stored, query):.2f}", f"{recall:.4f}", f"{root_mean_square:.4f}"]
                plain = f"{ndcg(collection, unit, asked):.2f}"
                yield [name, f"{length}{label}", plain, *cells, f"{100 * cut_off:.3f} %"]


def advised_lines(url: str, documents: Vectors, queries: Vectors, element_types: tuple[str, ...] = ()) -> list[str]:
    """What `es-sbert index advise` says of an index of these vectors, with these queries."""
    with closing(connect(EngineSettings(url=url, timeout=600))) as engine:
        if engine.get_index(INDEX) is not None:
            delete(url, INDEX)
        request = FieldRequest("embedding", "0" * 32, "benchmark", documents.shape[1])
        field = ensure_vector_field(engine, INDEX, request, shards=1, replicas=0)
        load(engine, INDEX, documents)
        types = [name for name in ADVISED_TYPES if name in supported_index_types(engine.info)]
        wanted = AdviceRequest(dimensions=(384, 256, 128), element_types=element_types, index_types=tuple(types))
        report = partial(click.echo, err=True)
        lines = advice_lines(advise(engine, INDEX, field, wanted, queries[:300], report=report))
    delete(url, INDEX)
    return lines


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--set", "sets", multiple=True, default=("cisi", "arguana-rebuilt"), show_default=True)
@click.option("--model", help="As for every command.")
@click.option("--other", help="A model to cut as it is.")
@click.option("--dimensions", "lengths", type=int, multiple=True, default=(256, 128, 64), show_default=True)
@click.option("--url", help="Engine for `es-sbert index advise`.")
@click.option("--advise-only", is_flag=True, help="With --url: leave the tables out.")
@click.option("--element-type", "element_types", multiple=True, help="With --url: measure these.  [default: all]")
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), default=".benchmarks", show_default=True)
def main(
    data: Path,
    sets: tuple[str, ...],
    model: str | None,
    other: str | None,
    lengths: tuple[int, ...],
    url: str | None,
    advise_only: bool,
    element_types: tuple[str, ...],
    cache: Path,
) -> None:
    """Embed, rotate, cut, rank."""
    collections = {name: read_collection(data / "retrieval" / name) for name in sets}
    embedded = {name: embed(collection, name, model, cache) for name, collection in collections.items()}
    axes = {name: fit_rotation(np.unique(documents, axis=0)).axes for name, (documents, _) in embedded.items()}
    dimensions = next(iter(embedded.values()))[0].shape[1]
    click.echo(f"{model or 'the default model'}, fp32; {json.dumps(machine())}\n")
    if not advise_only:
        rows = list(measured_rows(collections, embedded, axes, lengths))
        if other is not None:
            cut = {name: embed(collection, name, other, cache) for name, collection in collections.items()}
            rows += [[row[0], other, *row[2:]] for row in measured_rows(collections, cut, {}, lengths)]
        click.echo(table(["collection", "rotation", f"{dimensions} dimensions", *map(str, lengths)], rows))
        names = ["collection", "dimensions", "float nDCG@10", "byte nDCG@10", f"recall@{K}", "cosine error (RMS)"]
        names += ["one scale: nDCG@10", f"recall@{K}", "cosine error (RMS)", "cut off"]
        click.echo("\n" + table(names, list(byte_rows(collections, embedded, axes, lengths))))
    if url is not None:
        name, (documents, queries) = next(iter(embedded.items()))
        for rotation in (np.eye(dimensions, dtype=np.float32), axes[name]):
            rotated = documents @ rotation.T, queries @ rotation.T
            click.echo("\n" + "\n".join(advised_lines(url, *rotated, element_types)))


if __name__ == "__main__":
    main()
