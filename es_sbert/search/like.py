"""More like a document: its own vectors, and a filter that leaves it out."""

from __future__ import annotations

import numpy as np

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import UsageError
from es_sbert.index.layout import vector_path
from es_sbert.index.vectors import stored_vectors
from es_sbert.search.searched import Searched


def document_vectors(engine: Engine, searched: Searched, id: str, index: str | None = None
                     ) -> tuple[str, dict[str, Vectors]]:  # fmt: skip
    """The vectors of a document, read from the index.

    Args:
        index: Which of the indices, where several have a document of that id.

    Returns:
        Its index, and by vector field a vector *shape* ``(dimensions,)``; of several passages their mean direction.

    Raises:
        UsageError: no id, no such document, several of them, or one without a vector.
        EngineError: the engine failed.
    """
    if not isinstance(id, str) or not id:
        raise UsageError(f"{id!r} is no id of a document", "Give it as the engine tells it, a str: hit.id.")
    names = [index] if index is not None else list(searched.indices)
    if index is not None and index not in searched.indices:
        raise UsageError(f"{index} is not searched here", f"Name one of {', '.join(searched.indices)}.")
    wanted = [path for name in searched.names for path in (name, vector_path(name, searched.meta(name)))]
    source = engine.info.source_with_vectors(list(dict.fromkeys(wanted)))
    # By a search, since a look-up by id alone misses documents with a routing of their own.
    query = {"query": {"ids": {"values": [id]}}, "_source": source}
    found = [(hit["_index"], hit.get("_source", {})) for hit in engine.search(names, query)["hits"]["hits"]]
    if not found:
        raise UsageError(
            f"there is no document {id!r} in {', '.join(names)}", "Give the id of a document that is there."
        )
    if len(found) > 1:
        raise UsageError(f"{id!r} is the id of documents in {', '.join(sorted(place for place, _ in found))}",
                         "Name the index as well (index=…), or search one of them.")  # fmt: skip
    [(place, document)] = found
    vectors = {}
    for name in searched.names:
        if not document.get(name):
            raise UsageError(
                f"document {id!r} of {place} has no vector in {name}",
                f"Embed it first: `es-sbert ingest --index {place}`.",
            )
        vectors[name] = mean_direction([vector for _, _, vector in stored_vectors(document[name], 0)])
    return place, vectors


def without(filter: Json | None, index: str, id: str) -> Json:
    """A filter that leaves one document out."""
    itself = {"bool": {"filter": [{"ids": {"values": [id]}}, {"term": {"_index": index}}]}}
    clause: Json = {"must_not": [itself]}
    return {"bool": clause if filter is None else clause | {"filter": [filter]}}


def mean_direction(vectors: list[Vectors]) -> Vectors:
    """Mean of vectors ``(dimensions,)``, each scaled to unit length."""
    stacked = np.stack(vectors).astype(np.float64)  # (vectors, dimensions)
    mean = (stacked / np.linalg.norm(stacked, axis=1, keepdims=True)).mean(axis=0)
    result: Vectors = mean.astype(np.float32)
    return result
