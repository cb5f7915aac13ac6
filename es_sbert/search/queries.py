"""Request bodies of vector searches: pure functions from typed arguments to JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import orjson

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import UsageError
from es_sbert.index.layout import PASSAGE_VECTOR, passage_inner_hits
from es_sbert.index.vectors import vector_list
from es_sbert.search.scores import Method

# index.max_result_window, and Elasticsearch's own limit of k and num_candidates.
MAX_K = 10_000
MIN_CANDIDATES = 100
MAX_OVERSAMPLE = 10.0  # Elasticsearch's own


@dataclass(frozen=True)
class VectorQuery:
    """A search for the nearest vectors.

    Attributes:
        field: The vector field.
        passages: Whether it holds one vector a passage; a document is then as near as its nearest passage.
        vector: *Shape:* ``(dimensions,)`` float32.
        k: How many hits.
        filter: Query in the engine's language that every hit must match, or None.
        num_candidates: Vectors that each shard looks at more closely; more is slower and misses less.
            None: twice k, at least 100.
        oversample: Set for a quantised index: the nearest `oversample * k` by quantised numbers are compared
            again by their float32 vectors, which makes the scores exact and the order better.
    """

    field: str
    vector: Vectors
    k: int = 10
    filter: Json | None = None
    num_candidates: int | None = None
    oversample: float | None = None
    passages: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_K:
            raise UsageError(f"k is {self.k}", f"Ask for 1 to {MAX_K:,} hits; page through an index with its scan.")
        if self.num_candidates is not None and not self.k <= self.num_candidates <= MAX_K:
            raise UsageError(
                f"num_candidates is {self.num_candidates}", f"Give at least k ({self.k}) and at most {MAX_K:,}."
            )
        if self.oversample is not None and not 1.0 <= self.oversample <= MAX_OVERSAMPLE:
            raise UsageError(f"oversample is {self.oversample:g}", f"Give a factor between 1 and {MAX_OVERSAMPLE:g}.")
        if self.vector.ndim != 1 or not np.isfinite(self.vector).all() or not self.vector.any():
            raise UsageError(
                "the query vector has no direction: it is empty, all zeros, not finite, or not one vector",
                "Give one vector of shape (dimensions,) as the model makes it.",
            )

    @property
    def path(self) -> str:
        """Full name of the field that holds the numbers."""
        return f"{self.field}.{PASSAGE_VECTOR}" if self.passages else self.field

    @property
    def candidates(self) -> int:
        return self.num_candidates or min(MAX_K, max(MIN_CANDIDATES, 2 * self.k))

    @property
    def oversampled_k(self) -> int:
        """k times `oversample`, within the engines' limit."""
        return min(MAX_K, math.ceil(self.k * (self.oversample or 1.0)))


def parse_filter(text: str) -> Json:
    """A filter given as JSON text.

    Raises:
        UsageError: not JSON, or not an object.
    """
    example = """Write a query, e.g. '{"term": {"language": "en"}}'."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the filter is not JSON: {error}", example) from None
    if not isinstance(value, dict) or not value:
        raise UsageError("the filter is JSON, but not a query", example)
    return value


def search_body(flavour: Flavour, method: Method, query: VectorQuery) -> Json:
    """Body of `POST /index/_search`.

    The filter applies during the search, not after it: k hits come back wherever k documents match. The
    vector is left out of the hits' `_source`.
    """
    if method is Method.EXACT:
        section = {"query": _exact(flavour, query)}
    elif flavour is Flavour.ELASTICSEARCH:
        section = {"knn": _elasticsearch_knn(query)}
    else:
        section = {"query": _opensearch_knn(query)}
    return section | {"size": query.k, "_source": {"excludes": [query.field]}}


def _elasticsearch_knn(query: VectorQuery) -> Json:
    knn: Json = {
        "field": query.path,
        "query_vector": vector_list(query.vector),
        "k": query.k,
        "num_candidates": query.candidates,
    }
    if query.oversample is not None:
        knn["rescore_vector"] = {"oversample": query.oversample}
    if query.passages:
        knn["inner_hits"] = passage_inner_hits(query.field)
    return knn if query.filter is None else knn | {"filter": query.filter}


def _opensearch_knn(query: VectorQuery) -> Json:
    knn: Json = {
        "vector": vector_list(query.vector),
        "k": query.oversampled_k,
        "method_parameters": {"ef_search": max(query.candidates, query.oversampled_k)},
    }
    if query.filter is not None:
        knn["filter"] = query.filter
    section: Json = {"knn": {query.path: knn}}
    if query.oversample is not None:
        # OpenSearch's own rescoring needs its native library; a script over what the graph found does the same.
        section = _script_score(Flavour.OPENSEARCH, query, section)
    return _nested(query, section) if query.passages else section


def _exact(flavour: Flavour, query: VectorQuery) -> Json:
    """All documents that have a vector (the script fails, or scores 0, on others) and pass the filter."""
    filters: list[Json] = [{"exists": {"field": query.path}}]
    if query.passages:
        passages = _nested(query, _script_score(flavour, query, filters[0]))
        # Passages know nothing of the fields of their document, so the filter stands outside; it costs no hits, since
        # every passage is scored.
        return passages if query.filter is None else {"bool": {"must": [passages], "filter": [query.filter]}}
    if query.filter is not None:
        filters.append(query.filter)
    return _script_score(flavour, query, {"bool": {"filter": filters}})


def _nested(query: VectorQuery, inner: Json) -> Json:
    """A query over passages as one over documents."""
    nested = {"path": query.field, "score_mode": "max", "query": inner, "inner_hits": passage_inner_hits(query.field)}
    return {"nested": nested}


def _script_score(flavour: Flavour, query: VectorQuery, documents: Json) -> Json:
    """The documents of a query, scored by the cosine of their float32 vectors."""
    vector = vector_list(query.vector)
    if flavour is Flavour.ELASTICSEARCH:
        source = f"cosineSimilarity(params.q, '{_quoted(query.path)}') + 1.0"
        script: Json = {"source": source, "params": {"q": vector}}
    else:
        params = {"field": query.path, "query_value": vector, "space_type": "cosinesimil"}
        script = {"lang": "knn", "source": "knn_score", "params": params}
    return {"script_score": {"query": documents, "script": script}}


def _quoted(field: str) -> str:
    """A field's name inside a string of a script: nothing in it may end the string."""
    return field.replace("\\", "\\\\").replace("'", "\\'")
