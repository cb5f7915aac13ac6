"""Vector queries as JSON: a checked `VectorQuery` becomes the engine's kNN or script_score query.

Pure functions from typed arguments to clauses and request bodies. Engines do not allow negative scores, so each shifts
the cosine:

| query | `_score` |
|---|---|
| kNN on both engines, rescored with float32 vectors or not | (1 + cos) / 2 |
| exact on Elasticsearch: `cosineSimilarity(…) + 1.0` | 1 + cos |
| exact on OpenSearch: `knn_score` with `cosinesimil` | (1 + cos) / 2 |

What a clause matches, observed on Elasticsearch 8.19.8 and 9.5.0 and OpenSearch 2.19.1 and 3.6.0 (`tests/engine`):

- A kNN clause finds k documents per shard (on OpenSearch with `oversample`: k times that), so up to k × shards
  match. Elasticsearch's `knn` section, which `search_body` uses, finds k documents of the whole index.
- On OpenSearch 2 a kNN clause matches all its candidates, `num_candidates` per shard. Only `size` limits the hits to k.
- On Elasticsearch 9 a kNN clause on a `flat` field matches every document that has a vector and passes the filter,
  for any k. The scores are correct. Only `size` or `min_cosine` limit the hits. 8.19 returns k.
- An exact clause matches every document that has a vector and passes the filter, on both engines.
- In an index without the field, a clause matches nothing.
- A filter that matches fewer than k documents returns all of them.
- On Elasticsearch 9.4.3 (not on 9.5.0) a filter on a `flat`, `int8_flat` or `int4_flat` field also matches documents
  that pass it and have no vector, with score 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import orjson

from es_sbert.arguments import check_range
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.index.document_vectors import QueryVector, to_float_list
from es_sbert.index.mapping import CHUNK_VECTOR, chunk_inner_hits
from es_sbert.vectors import Vectors


class SearchMethod(StrEnum):
    """Method by which a query finds its hits: the index's own kNN search, or a script over all vectors.

    Usage:
        ```python
        result = index.search("heavy rain")
        print(result.method is SearchMethod.KNN)
        ```
    """

    KNN = "knn"
    EXACT = "exact"


def cosine_from_score(score: float, engine_type: EngineType, method: SearchMethod) -> float:
    """Convert an engine's score to the cosine, within [-1, 1]."""
    cosine = score - 1.0 if _is_cosine_plus_one(engine_type, method) else 2.0 * score - 1.0
    # Scores are float32: the cosine of a vector with itself may come back as 1.0000001.
    return min(1.0, max(-1.0, cosine))


def score_from_cosine(cosine: float, engine_type: EngineType, method: SearchMethod) -> float:
    """Convert a cosine to the engine's score, for `min_score` and the like."""
    return cosine + 1.0 if _is_cosine_plus_one(engine_type, method) else (1.0 + cosine) / 2.0


def _is_cosine_plus_one(engine_type: EngineType, method: SearchMethod) -> bool:
    return engine_type is EngineType.ELASTICSEARCH and method is SearchMethod.EXACT


_FILTER_EXAMPLE = (
    """Write one query, e.g. '{"term": {"language": "en"}}'; several go into '{"bool": {"filter": […]}}'."""
)


def parse_filter(text: str) -> Json:
    """Parse a filter in JSON.

    Raises:
        UsageError: the text is not JSON, or the filter is not an object or empty.
    """
    try:
        query: Json = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the filter is not JSON: {error}", _FILTER_EXAMPLE).about("filter") from None
    check_query(query)
    return query


def check_query(value: object) -> None:
    """Refuse values that cannot be a query. Whether the query exists is left to the engine.

    Raises:
        UsageError: the value is not an object, or is empty.
    """
    if not isinstance(value, dict) or not value:
        message = f"the filter must be a JSON object with one query, got {str(value)[:80]!r}"
        raise UsageError(message, _FILTER_EXAMPLE).about("filter")


# The default of index.max_result_window, and Elasticsearch's own limit of k and num_candidates.
MAX_K = 10_000
MIN_CANDIDATES = 100
MAX_OVERSAMPLE = 10.0  # Elasticsearch's own limit
_MIN_NORM, _MAX_NORM = 1e-18, 1e18


def check_k(k: int) -> None:
    """Refuse a number of hits that engines do not return.

    Raises:
        UsageError: k is not a whole number from 1 to `MAX_K`.
    """
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:
        raise UsageError(
            f"k is {k!r}",
            f"Set it to a whole number (int) from 1 to {MAX_K:,}; to read a whole index, page through it in a point in "
            "time.",
        ).about("k", k)


def check_query_vector(vector: Vectors) -> None:
    """Refuse a vector that has no cosine with others.

    Args:
        vector: *Shape:* ``(dimensions,)``.

    Raises:
        UsageError: the vector is empty, all zeros, not finite, too short or long for float32, or not one vector.
    """
    # Engines compute the norm in float32: the squares must not underflow or overflow.
    length = float(np.linalg.norm(vector.astype(np.float64))) if vector.ndim == 1 else 0.0
    if not _MIN_NORM < length < _MAX_NORM:
        raise UsageError(
            "the query vector has no direction: it is empty, all zeros, not finite, too short or long for float32, or "
            "not one vector",
            "Pass one vector of shape (dimensions,), as the model returns it.",
        ).about("vector")


@dataclass(frozen=True)
class VectorQuery:
    """A search for the nearest vectors.

    Attributes:
        field: The vector field.
        vector: *Shape:* ``(dimensions,)`` float32. A list is inserted unchanged and not checked.
        k: Number of hits.
        filter: Query in the engine's language that every hit must match, or None.
        num_candidates: Candidates per shard; more are slower and miss fewer hits. None: twice k, at least 100.
        oversample: Set for a quantized index: the nearest `oversample * k` by quantized numbers are compared
            again by their float32 vectors, which makes the scores exact and the order better.
        passages: Whether the field holds one vector per chunk; a document is then as near as its nearest chunk.
        min_cosine: Drop hits whose cosine is below it. Exact if the scores are: on a quantized index, with
            `oversample`.
        boost: Factor of the score.
        inner_hits: With chunks: the name of the inner hits that hold the nearest chunk; None for no inner hits, as
            aggregations need it. Each clause of a request needs a different name.
    """

    field: str
    vector: QueryVector
    k: int = 10
    filter: Json | None = None
    num_candidates: int | None = None
    oversample: float | None = None
    passages: bool = False
    min_cosine: float | None = None
    boost: float = 1.0
    inner_hits: str | None = None

    def __post_init__(self) -> None:
        check_k(self.k)
        if self.filter is not None:
            check_query(self.filter)
        if self.num_candidates is not None and not self.k <= self.num_candidates <= MAX_K:
            raise UsageError(
                f"num_candidates is {self.num_candidates}",
                f"Set it to {self.k:,} to {MAX_K:,}: at least k, the depth of a hybrid search and the window of a "
                "reranker.",
            ).about("num_candidates", self.num_candidates)
        if self.oversample is not None:
            check_range("oversample", self.oversample, {"ge": 1, "le": MAX_OVERSAMPLE})
        if self.min_cosine is not None:
            check_range("min_cosine", self.min_cosine, {"ge": -1, "le": 1})
        check_range("boost", self.boost, {"gt": 0, "lt": math.inf})
        if not isinstance(self.vector, list):
            check_query_vector(self.vector)

    @property
    def path(self) -> str:
        """Full name of the field that holds the numbers."""
        return f"{self.field}.{CHUNK_VECTOR}" if self.passages else self.field

    @property
    def numbers(self) -> list[float]:
        """The vector as the engine takes it."""
        return to_float_list(self.vector)

    @property
    def candidates(self) -> int:
        return self.num_candidates or min(MAX_K, max(MIN_CANDIDATES, 2 * self.k))

    @property
    def oversampled_k(self) -> int:
        """k times `oversample`, within the engines' limit."""
        return min(MAX_K, math.ceil(self.k * (self.oversample or 1.0)))


def search_body(engine_type: EngineType, method: SearchMethod, query: VectorQuery) -> Json:
    """Build the body of `POST /index/_search` for the k nearest documents.

    The filter applies during the search, not after it: the search returns k hits if k documents match the filter. The
    vector is left out of the hits' `_source`.
    """
    if method is SearchMethod.KNN and engine_type is EngineType.ELASTICSEARCH:
        section = _knn_section(query)
    else:
        section = {"query": vector_clause(engine_type, method, query)}
    return section | {"size": query.k, "_source": {"excludes": [query.field]}}


def vector_clause(engine_type: EngineType, method: SearchMethod, query: VectorQuery) -> Json:
    """Build the search as a clause for use anywhere inside `query`: alone, in a bool, in a filter or in an aggregation.

    Its scores are those of `cosine_from_score` times the boost. The module's documentation says how many documents it
    matches.

    Raises:
        UsageError: see `check_chunk_filter`.
    """
    if method is SearchMethod.EXACT:
        return _exact_clause(engine_type, query)
    return _elasticsearch_clause(query) if engine_type is EngineType.ELASTICSEARCH else _opensearch_clause(query)


def _knn_section(query: VectorQuery) -> Json:
    """Build the section `knn` of a body without `query`; it finds k documents of the whole index."""
    if not query.passages:
        return {"knn": _elasticsearch_knn(query) | _boost(query)}
    knn = _elasticsearch_knn(replace(query, min_cosine=None)) | _boost(query)
    if query.inner_hits is not None:
        knn["inner_hits"] = chunk_inner_hits(query.field, query.inner_hits)
    if query.min_cosine is None:
        return {"knn": knn}
    # `similarity` is not used: the engine also applies it to inner hits, with quantized vectors, and a hit might then
    # have no chunk.
    minimum = score_from_cosine(query.min_cosine, EngineType.ELASTICSEARCH, SearchMethod.KNN)
    return {"knn": knn, "min_score": query.boost * minimum}


def _elasticsearch_knn(query: VectorQuery) -> Json:
    knn: Json = {
        "field": query.path,
        "query_vector": query.numbers,
        "k": query.k,
        "num_candidates": query.candidates,
    }
    if query.oversample is not None:
        knn["rescore_vector"] = {"oversample": query.oversample}
    if query.min_cosine is not None:
        # Elasticsearch compares `similarity` with the cosine itself, after rescoring and before boosts.
        knn["similarity"] = query.min_cosine
    return knn if query.filter is None else knn | {"filter": query.filter}


def _elasticsearch_clause(query: VectorQuery) -> Json:
    knn = _elasticsearch_knn(query)
    if not query.passages:
        return _exact_count(query, {"knn": knn | _boost(query)})
    check_chunk_filter(query)
    return _nested_query(query, _exact_count(query, {"knn": knn}))


def check_chunk_filter(query: VectorQuery) -> None:
    """Refuse a filter that Elasticsearch does not apply to a clause over chunks.

    Raises:
        UsageError: the filter contains a `nested` query.
    """
    if query.filter is not None and _contains_nested(query.filter):
        # Elasticsearch looks for the nested objects inside the chunks, finds none, and returns no hits.
        raise UsageError(
            "a search over passages inside a larger query cannot be filtered by a nested query on Elasticsearch",
            "Filter by fields of the document itself, or make the search the body's own `knn` section.",
        ).about("filter", query.filter)


def _exact_count(query: VectorQuery, clause: Json) -> Json:
    """Wrap a clause so that its matches are counted one by one.

    Where Elasticsearch 9 only counts (totals, aggregations, must_not), it counts k for a clause and ignores the
    minimum. A function_score that changes nothing prevents this shortcut.
    """
    return clause if query.min_cosine is None else {"function_score": {"query": clause, "min_score": 0}}


def _opensearch_clause(query: VectorQuery) -> Json:
    knn: Json = {
        "vector": query.numbers,
        "k": query.oversampled_k,
        "method_parameters": {"ef_search": max(query.candidates, query.oversampled_k)},
        "ignore_unmapped": True,
    }
    if query.filter is not None:
        knn["filter"] = query.filter
    found: Json = {"knn": {query.path: knn}}
    if query.oversample is None and query.min_cosine is None:
        return _nested_query(query, found) if query.passages else {"knn": {query.path: knn | _boost(query)}}
    # A script over the documents that the graph found rescores them and applies the minimum: OpenSearch's own rescoring
    # needs its native library, and its own minimum cannot be combined with k.
    documents = {"bool": {"must": [found], "filter": [_has_vector(query)]}}
    return _script_score(EngineType.OPENSEARCH, query, documents)


def _exact_clause(engine_type: EngineType, query: VectorQuery) -> Json:
    """Build a clause that scores all documents that have a vector and pass the filter."""
    filters = [] if query.filter is None else [query.filter]
    if not query.passages:
        return _script_score(engine_type, query, {"bool": {"filter": [_has_vector(query), *filters]}})
    # Chunks do not have the fields of their document, so the filter is outside `nested`. No hits are lost, since every
    # chunk is scored.
    chunk_query = _script_score(engine_type, query, _has_vector(query))
    return {"bool": {"must": [chunk_query], "filter": filters}} if filters else chunk_query


def _has_vector(query: VectorQuery) -> Json:
    """Match documents with a vector. In an index that lacks the field, the script would otherwise fail."""
    return {"exists": {"field": query.path}}


def _script_score(engine_type: EngineType, query: VectorQuery, documents: Json) -> Json:
    """Score documents, or their chunks, by the cosine of their stored vectors, and drop those below the minimum."""
    script = _script(engine_type, query)
    if query.min_cosine is not None:
        # `min_score` is compared after all boosts, also those of outer queries, unless constant_score is between them.
        least = score_from_cosine(query.min_cosine, engine_type, SearchMethod.EXACT)
        near = {"script_score": {"query": documents, "script": script, "min_score": least}}
        documents = {"constant_score": {"filter": near}}
    scored: Json = {"query": documents, "script": script}
    if query.passages:
        return _nested_query(query, {"script_score": scored})
    return {"script_score": scored | _boost(query)}


def _nested_query(query: VectorQuery, inner: Json) -> Json:
    """Turn a query over chunks into one over documents."""
    nested: Json = {"path": query.field, "score_mode": "max", "query": inner, "ignore_unmapped": True}
    if query.inner_hits is not None:
        nested["inner_hits"] = chunk_inner_hits(query.field, query.inner_hits)
    return {"nested": nested | _boost(query)}


def _boost(query: VectorQuery) -> Json:
    return {} if query.boost == 1.0 else {"boost": query.boost}


def _script(engine_type: EngineType, query: VectorQuery) -> Json:
    vector = query.numbers
    if engine_type is EngineType.ELASTICSEARCH:
        # Escape the field's name, so that nothing in it ends the string.
        field = query.path.replace("\\", "\\\\").replace("'", "\\'")
        return {"source": f"cosineSimilarity(params.q, '{field}') + 1.0", "params": {"q": vector}}
    params = {"field": query.path, "query_value": vector, "space_type": "cosinesimil"}
    return {"lang": "knn", "source": "knn_score", "params": params}


def _contains_nested(query: object) -> bool:
    if isinstance(query, dict):
        nested = query.get("nested")  # a query, unless a field is named `nested`
        return (isinstance(nested, dict) and "path" in nested) or any(map(_contains_nested, query.values()))
    return isinstance(query, list) and any(map(_contains_nested, query))
