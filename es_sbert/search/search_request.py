"""`SearchRequest`: search options become request bodies and a function that reads the responses.

Pure functions, except that `read_document_vector` reads the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np

from es_sbert.arguments import wrong_argument
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json, quote_index_names
from es_sbert.errors import NotFoundError, UsageError
from es_sbert.index.document_vectors import hit_vectors, stored_value, vector_request
from es_sbert.index.mapping import CHUNK_END, CHUNK_START, VectorFieldMeta
from es_sbert.index.text_template import TextFieldError, TextTemplate
from es_sbert.index.vector_field import VectorField
from es_sbert.search.search_result import Hit, Passage, RankedHits, SearchResult
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import (
    VectorQuery,
    check_k,
    check_query,
    cosine_from_score,
    search_body,
)
from es_sbert.settings import SearchOptions
from es_sbert.vectors import Vectors

# Characters of a text that are searched for words to highlight. Without this limit, a document longer than the
# engine's own limit fails the whole search.
HIGHLIGHT_LIMITS: dict[EngineType, Json] = {
    EngineType.ELASTICSEARCH: {"max_analyzed_offset": 1_000_000},
    EngineType.OPENSEARCH: {"max_analyzer_offset": 1_000_000},
}


# Far more than any model reads, and few enough to be tokenized quickly.
MAX_QUERY_CHARACTERS = 100_000


def check_search(k: int, options: SearchOptions, text: str | None = None) -> None:
    """Check what can be checked of a search before its text is embedded.

    Raises:
        UsageError: the text is empty, or is longer than `MAX_QUERY_CHARACTERS`; or k or the filter is invalid.
    """
    check_k(k)
    as_one_query(options.get("filter"))
    if text is not None and not text.strip():
        raise UsageError("the query text is empty", "Pass the words to search for.").about("text", text)
    if text is not None and len(text) > MAX_QUERY_CHARACTERS:
        raise UsageError(
            f"the query text is too long: {len(text):,} characters",
            f"Pass at most {MAX_QUERY_CHARACTERS:,}; a model reads only the beginning anyway.",
        ).about("text", text)


def page_body(engine_type: EngineType, vector_field: str, size: int, options: SearchOptions, text: str | None) -> Json:
    """Return the part of a request body that says how to return the hits.

    Args:
        text: The query text, whose words are highlighted; None for a search without a text.

    Raises:
        UsageError: `highlight` lists fields and there is no text.
    """
    source, highlight = options.get("source"), options.get("highlight")
    body: Json = {"size": size, "_source": {"excludes": [vector_field]}}
    if source is not None and not source:
        body["_source"] = False  # to the engines an empty list of fields means all of them
    elif source is not None and source is not True:
        body["_source"] = {"includes": list(source), **body["_source"]}
    if isinstance(highlight, Mapping):
        body["highlight"] = dict(highlight)
    elif highlight is not None:
        if text is None:
            raise UsageError(
                "a search without a text has no words to highlight",
                "Leave highlight out, or pass the engine's own highlight object with a highlight_query.",
            ).about("highlight")
        # The text is passed as `highlight_query`, because a kNN query has no words to highlight.
        highlighted = {field: {"highlight_query": {"match": {field: text}}} for field in highlight}
        body["highlight"] = HIGHLIGHT_LIMITS[engine_type] | {"fields": highlighted}
    return body


Result = TypeVar("Result", bound=RankedHits[Any], covariant=True)


@dataclass(frozen=True)
class SearchRequest(Generic[Result]):
    """A search ready to be sent.

    Attributes:
        indices: The indices to search.
        bodies: One for `_search`, several for `_msearch`.
        read: Converts the responses, in the order of the bodies, to the result.
    """

    indices: tuple[str, ...]
    bodies: tuple[Json, ...]
    read: Callable[[Sequence[Json]], Result]


def search_request(
    engine_type: EngineType,
    scope: SearchScope,
    vector: Vectors,
    k: int,
    options: SearchOptions,
    text: str | None = None,
) -> SearchRequest[SearchResult]:
    """Build the request for a search for the nearest vectors.

    Args:
        vector: The query vector, *shape:* ``(dimensions,)``.
        text: The query text; None for a search by vectors.

    Raises:
        UsageError: an option is invalid (see `VectorQuery`, `page_body`).
    """
    method = scope.method(engine_type, options.get("exact", False))
    query = build_vector_query(scope, vector, k, options)
    body = search_body(engine_type, method, query) | page_body(engine_type, scope.name, k, options, text)

    def read(answers: Sequence[Json]) -> SearchResult:
        [answer] = answers
        hits = tuple(
            Hit(cosine=cosine_from_score(hit["_score"], engine_type, method), **hit_members(hit, scope))
            for hit in answer["hits"]["hits"]
        )
        return SearchResult(hits, answer["took"], method, total_hits(answer))

    return SearchRequest(scope.indices, (body,), read)


def hit_members(hit: Json, scope: SearchScope) -> dict[str, Any]:
    """Read what hits of all searches have, see `FoundDocument`."""
    return {
        "id": hit["_id"],
        "score": hit["_score"],
        "source": hit.get("_source", {}),
        "index": hit["_index"],
        "passage": _read_passage(hit, scope.name, scope.meta_in(hit["_index"])),
        "highlight": hit.get("highlight", {}),
    }


def _read_passage(hit: Json, name: str, meta: VectorFieldMeta) -> Passage | None:
    """Read the nearest passage; None without passages, or if vectors did not find the hit."""
    if meta.passages is None or name not in hit.get("inner_hits", {}):
        return None
    [best] = hit["inner_hits"][name]["hits"]["hits"]
    chunk = best["_source"]
    if name in chunk:
        chunk = chunk[name]  # engines differ in whether the nested object's name is part of the path
    start, end = int(chunk[CHUNK_START]), int(chunk[CHUNK_END])
    try:
        text = None if meta.text is None else TextTemplate.parse(meta.text).render(hit.get("_source", {}))
    except TextFieldError:
        text = None  # the hit's `_source` lacks fields of the text
    return Passage(start, end, None if text is None else text[start:end])


def total_hits(answer: Json) -> int | None:
    """The number of matches; None if the engine did not count all: it stops at 10,000 unless told to continue."""
    total = answer["hits"].get("total")
    return int(total["value"]) if isinstance(total, dict) and total["relation"] == "eq" else None


def build_vector_query(scope: SearchScope, vector: Vectors, k: int, options: SearchOptions) -> VectorQuery:
    """Build the query for the nearest vectors, with the filters of the aliases.

    Raises:
        UsageError: the vector has the wrong length, or a value is out of range.
    """
    vector, meta = _to_float32(vector), scope.meta
    if vector.shape != (meta.dimensions,):
        raise UsageError(
            f"the query vector has the shape {vector.shape}, but the field's vectors have ({meta.dimensions},)",
            f"Compute it with the model {meta.model}.",
        ).about("vector")
    return VectorQuery(
        scope.name,
        vector,
        k,
        scope.combine_filter(as_one_query(options.get("filter"))),
        options.get("num_candidates"),
        scope.oversample(options.get("oversample")),
        passages=meta.passages is not None,
        min_cosine=options.get("min_cosine"),
        inner_hits=scope.name,
    )


def _to_float32(vector: Any) -> Vectors:
    try:
        numbers = np.asarray(vector)
        if numbers.dtype.kind == "O":
            numbers = np.asarray(numbers.tolist())
    except ValueError:  # lists of different lengths
        numbers = np.array("")
    if numbers.dtype.kind not in "fiu":
        raise wrong_argument("vector", vector, "an array or a list of numbers")
    with np.errstate(over="ignore"):  # values that become infinite as float32 are refused later
        return numbers.astype(np.float32)


def read_document_vector(
    engine: Engine, scope: SearchScope, id: str, index: str | None = None, *, allow_partial: bool = False
) -> tuple[str, Vectors]:
    """Read the vector of a document from the index.

    Args:
        index: The index of the document, if several have a document with that id.
        allow_partial: Whether shards that do not hold the document may be missing.

    Returns:
        The document's index, and its vector, *shape:* ``(dimensions,)``; for several chunks, their mean direction.

    Raises:
        NotFoundError: no document has the id.
        UsageError: the id is not a str or is empty, several documents have it, or the document has no vector.
        IndexMismatch: the vectors of an index cannot be read.
        EngineError: the engine failed.
    """
    if not isinstance(id, str) or not id:
        raise UsageError(f"{id!r} is not a document id", "Pass the engine's id, a str: hit.id.").about("id", id)
    names = [index] if index is not None else list(scope.indices)
    if index is not None and index not in scope.indices:
        remedy = f"Use one of {', '.join(scope.indices)}."
        raise UsageError(f"{index} is not one of the searched indices", remedy).about("index", index)
    # Read it with a search: a lookup by id alone misses documents with a routing value.
    query = {"query": {"ids": {"values": [id]}}, **vector_request(engine.info, scope.fields)}
    answer = engine.search(names, query, allow_partial=allow_partial, routing=scope.routing)
    if allow_partial and not answer["hits"]["hits"]:
        answer = engine.search(names, query, routing=scope.routing)  # raises an error if a missing shard may hold it
    hit = only_hit(answer, id, names)
    found_in, name = hit["_index"], scope.name
    if not stored_value(hit, name):
        raise UsageError(
            f"document {id!r} of {found_in} has no vector in {name}",
            f"Embed it first: `es-sbert ingest --index {found_in}`.",
        ).about("id", id)
    stored = hit_vectors(hit, VectorField(found_in, name, scope.meta_in(found_in)))
    return found_in, mean_direction([vector for _, _, vector in stored])


def only_hit(answer: Json, id: str, names: Sequence[str]) -> Json:
    """Return the hit of a search for an id.

    Args:
        names: The indices that were searched.

    Raises:
        NotFoundError: no document has the id.
        UsageError: several indices have a document with the id, or an index has several with different routings.
    """
    found: list[Json] = answer["hits"]["hits"]
    if not found:
        error = NotFoundError(f"there is no document {id!r} in {', '.join(names)}", "Check the id.").about("id", id)
        error.type, error.body = "document_missing_exception", answer  # the engines' name for it
        error.request = f"POST /{quote_index_names(names)}/_search"
        raise error
    if len(found) > 1:
        raise UsageError(
            f"several documents have the id {id!r}, in {', '.join(sorted(hit['_index'] for hit in found))}",
            "Set the index as well (index=…), or search a single index.",
        ).about("id", id)
    return found[0]


def as_one_query(filter: Json | Sequence[Json] | None) -> Json | None:
    """Return a filter as one query.

    Raises:
        UsageError: it is neither a query nor several.
    """
    if isinstance(filter, list | tuple):
        for each in filter:
            check_query(each)
        return {"bool": {"filter": list(filter)}}
    if filter is not None:
        check_query(filter)
    return cast("Json | None", filter)


def exclude_document(filter: Json | None, index: str, id: str) -> Json:
    """Return a filter that excludes one document, combined with `filter`."""
    itself = {"bool": {"filter": [{"ids": {"values": [id]}}, {"term": {"_index": index}}]}}
    clause: Json = {"must_not": [itself]}
    return {"bool": clause if filter is None else clause | {"filter": [filter]}}


def mean_direction(vectors: list[Vectors]) -> Vectors:
    """Mean of vectors ``(dimensions,)``, each scaled to unit length."""
    stacked = np.stack(vectors).astype(np.float64)  # (vectors, dimensions)
    mean = (stacked / np.linalg.norm(stacked, axis=1, keepdims=True)).mean(axis=0)
    result: Vectors = mean.astype(np.float32)
    return result
