"""Native kNN clauses and sections from a semantic query and its vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import IndexGroup, ResolvedField
from es_sbert.gateway.search.semantic_query import SemanticQuery
from es_sbert.index.document_vectors import QueryVector, to_float_list
from es_sbert.index.mapping import chunk_inner_hits, vector_path
from es_sbert.index.text_template import TextTemplate
from es_sbert.search.search_scope import choose_method, choose_oversample
from es_sbert.search.vector_query import MAX_K, VectorQuery, vector_clause


def semantic_clause(
    engine_type: EngineType,
    semantic: SemanticQuery,
    vector: QueryVector,
    filters: Sequence[Json],
    inner_hits: str | None,
    depths: CandidateCounts,
) -> Json:
    """A query that keeps the k nearest documents and scores them.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: What the request asks of hits beside; applied during the search, so that k documents remain.
        inner_hits: Name for the nearest passage of each hit; None asks for none.
        depths: Of the request that it stands in.
    """
    found = knn_clause(
        engine_type, semantic.target, vector_query(semantic, vector, combine_filters(filters), inner_hits), depths
    )
    if semantic.name is not None:
        found["bool"]["_name"] = semantic.name
    return found


def highlight_clause(semantic: SemanticQuery) -> Json:
    """A query for the words of a text in the fields that were embedded, to mark them there.

    Raises:
        BadRequest: nothing says which fields were embedded.
    """
    text = semantic.target.meta.text
    if text is None:
        raise BadRequest(
            f"no words can be marked: the mapping does not say what {semantic.target.name} is made of",
            'Write a highlight_query of your own, e.g. {"match": {"FIELD": "…"}}.',
        )
    # Lenient, since a number may be part of what is embedded.
    fields = list(TextTemplate.parse(text).fields)
    return {"multi_match": {"query": semantic.text, "fields": fields, "lenient": True}}


def knn_clause(engine_type: EngineType, target: ResolvedField, query: VectorQuery, depths: CandidateCounts) -> Json:
    """A search in all indices of a field, in each as its index type and its alias ask for; a bool."""
    found = [_knn_clause_of_part(engine_type, part, query, number, depths) for number, part in enumerate(target.parts)]
    return found[0] if len(found) == 1 else {"bool": {"should": found, "minimum_should_match": 1}}


def _knn_clause_of_part(
    engine_type: EngineType, part: IndexGroup, query: VectorQuery, number: int, depths: CandidateCounts
) -> Json:
    # Engines want a name of its own for each clause's inner hits.
    told = f"{query.inner_hits}.{number}" if query.inner_hits and number else query.inner_hits
    filters = [one for one in (query.filter, part.filter) if one is not None]
    own = replace(query, oversample=choose_oversample(part.meta), filter=combine_filters(filters), inner_hits=told)
    own = depths.apart(own) if engine_type is EngineType.OPENSEARCH else own
    found = vector_clause(engine_type, choose_method(engine_type, part.meta, exact=False), own)
    return {"bool": {"must": [found], "filter": [index_filter(part.indices)]}}


def vector_query(
    semantic: SemanticQuery, vector: QueryVector, filter: Json | None, inner_hits: str | None
) -> VectorQuery:
    """The search of the query helper that a query by meaning stands for.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filter: Beside the query's own.
    """
    meta = semantic.target.meta
    return VectorQuery(
        field=semantic.target.name,
        vector=vector,
        k=semantic.k,
        filter=combine_filters([one for one in (semantic.filter, filter) if one is not None]),
        num_candidates=None if semantic.num_candidates is None else max(semantic.k, semantic.num_candidates),
        min_cosine=semantic.min_cosine,
        boost=semantic.boost,
        passages=meta.passages is not None,
        inner_hits=inner_hits,
    )


def index_filter(indices: Sequence[str]) -> Json:
    """Keeps vectors of one model from being compared with another's.

    An alias may go over to an index of another model between our look at it and the search; shards of such an index
    then match nothing. Each shard answers this from its own name, without looking at a document.
    """
    return {"terms": {"_index": list(indices)}}


def knn_section(semantic: SemanticQuery, said: Json, vector: QueryVector, inner_hits: str | None) -> Json:
    """Elasticsearch's `knn` section of a search as the caller wrote it, with the vector in place of the text.

    Args:
        vector: *Shape:* ``(dimensions,)``.
    """
    meta = semantic.target.meta
    section = {name: value for name, value in said.items() if name != "query_vector_builder"}
    indices = [index for part in semantic.target.parts for index in part.indices]
    section |= {"field": vector_path(semantic.target.name, meta), "query_vector": to_float_list(vector)}
    section["filter"] = combine_filters(
        [*([] if semantic.filter is None else [semantic.filter]), index_filter(indices)]
    )
    oversample = choose_oversample(meta)
    if oversample is not None:
        section.setdefault("rescore_vector", {"oversample": oversample})
    if inner_hits is not None and meta.passages is not None:
        section.setdefault("inner_hits", chunk_inner_hits(semantic.target.name, inner_hits))
    return section


def combine_filters(filters: Sequence[Json]) -> Json | None:
    """One query that matches what all of them match; None for none."""
    if not filters:
        return None
    return filters[0] if len(filters) == 1 else {"bool": {"filter": list(filters)}}


class CandidateCounts:
    """How many vectors each search of a request looks at; searches for different k never as many.

    To OpenSearch two kNN queries of a bool are one where field, vector, filter and `ef_search` are the same, whatever
    their k (seen on 3.6.0, engine lucene): of two in `should` both give the k of the first, and a `must` loses a
    `filter` that is narrower. Elasticsearch tells them apart.
    """

    def __init__(self) -> None:
        self._k: dict[int, int] = {}  # of the searches that look at so many

    def apart(self, query: VectorQuery) -> VectorQuery:
        """The same search, which looks at a few vectors more where those for another k look at as many."""
        depth = max(query.candidates, query.oversampled_k)
        depths = chain(range(depth, MAX_K + 1), range(depth - 1, query.oversampled_k - 1, -1))
        free = next((one for one in depths if self._k.setdefault(one, query.k) == query.k), depth)
        return replace(query, num_candidates=free)
