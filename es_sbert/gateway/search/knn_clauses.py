"""Native kNN queries for semantic queries: their placeholders, and the queries that replace them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.semantic_query import NATIVE_SYNTAXES, SemanticQuery
from es_sbert.index.document_vectors import QueryVector, to_float_list
from es_sbert.index.mapping import and_query, chunk_inner_hits, vector_path
from es_sbert.index.text_template import TextTemplate
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import (
    MAX_K,
    SearchMethod,
    VectorQuery,
    check_chunk_filter,
    vector_clause,
)


@dataclass(frozen=True, eq=False)
class QueryPlaceholder:
    """The place of a semantic query in a search body, until the vector of its text is known.

    Attributes:
        semantic: The semantic query.
        filters: Further queries that hits must match.
        query: The search for its nearest vectors, without the vector.
        has_cutoff: Whether only the k nearest documents of all shards may match. In `must_not`, all documents above the
            minimum cosine are excluded.
    """

    semantic: SemanticQuery
    filters: Sequence[Json]
    query: VectorQuery
    has_cutoff: bool = True

    def native_query(
        self, engine_type: EngineType, vector: QueryVector, cutoff: float | None, counts: CandidateCounts
    ) -> Json:
        """Create the native query, which keeps the k nearest documents and scores them.

        Args:
            vector: *Shape:* ``(dimensions,)``.
            cutoff: Cosine of the k-th nearest document; None if it is not needed, or if there are fewer documents.
            counts: The candidate counts of the request.
        """
        semantic, query = self.semantic, replace(self.query, vector=vector)
        if cutoff is not None and cutoff > (semantic.min_cosine or -1.0):
            query = replace(query, min_cosine=cutoff)
        calibrated = semantic.calibrated
        clause = knn_clause(engine_type, semantic.target, query, counts, semantic.oversample, calibrated=calibrated)
        name = semantic.name if semantic.nested is None else semantic.nested.get("_name")
        if name is not None:
            clause["bool"]["_name"] = name
        return clause

    @property
    def inner_parts(self) -> list[tuple[str, Any]]:
        """Objects and lists of the client that the native query contains, each with the name of its member."""
        parts = (("filter", self.query.filter), ("nested", self.semantic.nested))
        return [(name, part) for name, part in parts if part]


@dataclass(frozen=True, eq=False)
class SectionPlaceholder:
    """The place of a section `knn` of Elasticsearch, or of such a retriever, until the vector of its text is known.

    Attributes:
        semantic: The semantic query.
        section: The section that the client wrote.
        inner_hits: Name for the nearest chunk of each hit; None for none.
    """

    semantic: SemanticQuery
    section: Json
    inner_hits: str | None

    def native_query(
        self, engine_type: EngineType, vector: QueryVector, cutoff: float | None, counts: CandidateCounts
    ) -> Json:
        """Create the section with the vector instead of the text; see `QueryPlaceholder.native_query`.

        The engine itself keeps the k nearest documents of all shards.
        """
        semantic, target = self.semantic, self.semantic.target
        section = {name: value for name, value in self.section.items() if name != "query_vector_builder"}
        indices = [index for part in target.groups for index in part.indices]
        section["field"] = vector_path(target.name, target.meta)
        section["query_vector"] = to_float_list(vector)
        section["filter"] = combine_filters(semantic.filter, index_filter(indices))
        oversample = target.groups[0].oversample(target.name)
        if oversample is not None:
            section.setdefault("rescore_vector", {"oversample": oversample})
        if self.inner_hits is not None:
            section.setdefault("inner_hits", chunk_inner_hits(target.name, self.inner_hits))
        return section

    @property
    def inner_parts(self) -> list[tuple[str, Any]]:
        """See `QueryPlaceholder.inner_parts`."""
        members = (item for item in self.section.items() if item[0] != "query_vector_builder")
        return [(name, part) for name, part in members if isinstance(part, (dict, list))]


@dataclass(frozen=True, eq=False)
class HybridPlaceholder:
    """The place of a full-text query that becomes hybrid, until its hits are ranked (`hybrid_queries.py`).

    Attributes:
        nearest: The semantic query for its text.
        words: The query as the client wrote it.
        exact: Finds exact matches (`es_sbert.search.exact_matches`); None if there can be none.
    """

    nearest: QueryPlaceholder
    words: Json
    exact: Json | None

    @property
    def semantic(self) -> SemanticQuery:
        """The semantic query."""
        return self.nearest.semantic

    @property
    def inner_parts(self) -> list[tuple[str, Any]]:
        """See `QueryPlaceholder.inner_parts`."""
        return [*self.nearest.inner_parts, ("query", self.words)]


Placeholder = QueryPlaceholder | SectionPlaceholder | HybridPlaceholder


def substitute(body: Json, native_queries: Mapping[Placeholder, Json]) -> None:
    """Replace the placeholders in a body by native queries.

    Args:
        body: As `find_queries` returns it. The objects and lists that hold placeholders are copies, not the client's.
    """
    remaining = len(native_queries)
    # Search breadth-first, so that long lists inside filters are hardly ever read.
    containers: deque[Any] = deque([body])
    while remaining:
        container = containers.popleft()
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(value, (dict, list)):
                containers.append(value)
            elif isinstance(value, (QueryPlaceholder, SectionPlaceholder, HybridPlaceholder)):
                container[key] = native_queries[value]
                remaining -= 1


def query_without_vector(
    engine_type: EngineType,
    semantic: SemanticQuery,
    filters: Sequence[Json],
    inner_hits: str | None,
    *,
    matches_candidates: bool,
) -> VectorQuery:
    """Create the search for the nearest vectors of a semantic query, without the vector.

    Args:
        filters: Further queries that hits must match; applied during the search, so that k documents remain.
        inner_hits: Name for the nearest chunk of each hit; None for none.
        matches_candidates: See `EngineInfo.knn_matches_candidates`.

    Raises:
        BadRequest: the engine or the field does not support a parameter.
        UsageError: a value is invalid, or chunks cannot be filtered by one of the filters.
    """
    candidates = semantic.num_candidates
    if matches_candidates and not exceeds_k_by_candidates(semantic):
        candidates = semantic.k
    nested = semantic.nested or {}
    query = VectorQuery(
        field=semantic.target.name,
        vector=[],  # see `native_query`
        k=semantic.k,
        filter=combine_filters(semantic.filter, combine_filters(*filters)),
        num_candidates=None if candidates is None else max(semantic.k, candidates),
        min_cosine=semantic.min_cosine,
        boost=semantic.boost,
        passages=semantic.target.meta.passages is not None,
        inner_hits=inner_hits,
        knn_parameters=_native_parameters(engine_type, semantic),
        nested_parameters={member: value for member, value in nested.items() if member != "_name"},
        # In a client's `nested` query, the name of the inner query applies to chunks.
        chunk_query_name=None if semantic.nested is None else semantic.name,
    )
    if query.passages and engine_type is EngineType.ELASTICSEARCH:
        methods = {part.method(engine_type, exact=False) for part in semantic.target.groups}
        if SearchMethod.KNN in methods:
            check_chunk_filter(query)
    return query


# Parameters that only one engine has, in its own syntax. On OpenSearch, a search may or may not return all chunks of a
# hit as inner hits; Elasticsearch always does.
_NATIVE_PARAMETERS = {
    EngineType.ELASTICSEARCH: frozenset({"visit_percentage"}),
    EngineType.OPENSEARCH: frozenset({"expand_nested_docs"}),
}
_IMPLIED_PARAMETERS = {EngineType.ELASTICSEARCH: frozenset({"expand_nested_docs"}), EngineType.OPENSEARCH: frozenset()}


def _native_parameters(engine_type: EngineType, semantic: SemanticQuery) -> Json:
    """Return the parameters that the engine's own kNN query gets.

    Raises:
        BadRequest: the engine or the field does not support a parameter.
    """
    if "expand_nested_docs" in semantic.native and semantic.target.meta.passages is None:
        raise BadRequest(
            f"expand_nested_docs requires a field of passages, but {semantic.target.name} has one vector per document",
            "Remove expand_nested_docs.",
        )
    for name in semantic.native:
        if name not in _NATIVE_PARAMETERS[engine_type] | _IMPLIED_PARAMETERS[engine_type]:
            raise BadRequest(
                f"{name} of a query on {semantic.target.name} has no equivalent in this engine", f"Remove {name}."
            )
    return {name: value for name, value in semantic.native.items() if name in _NATIVE_PARAMETERS[engine_type]}


def exceeds_k_by_candidates(semantic: SemanticQuery) -> bool:
    """Whether a query has more than k candidates, on an engine that matches all of them.

    Native queries use k candidates unless the client asks for more. They also use k where a minimum cosine would do
    more than limit the number of hits: it drops chunks of a document, and compares unquantized cosines.
    """
    if semantic.syntax not in NATIVE_SYNTAXES:
        return True
    is_altered_by_minimum = "expand_nested_docs" in semantic.native or semantic.oversample == 0
    return semantic.num_candidates is not None and not is_altered_by_minimum


def highlight_clause(semantic: SemanticQuery) -> Json:
    """Create a full-text query for the words of a query text in the embedded fields, to highlight them there.

    Raises:
        BadRequest: the mapping does not say which fields are embedded.
    """
    text = semantic.target.meta.text
    if text is None:
        raise BadRequest(
            f"cannot highlight words: the mapping does not say which fields {semantic.target.name} is made of",
            'Add a highlight_query, e.g. {"match": {"FIELD": "…"}}.',
        )
    # The query is lenient, since a number may be part of the embedded text.
    fields = list(TextTemplate.parse(text).fields)
    return {"multi_match": {"query": semantic.text, "fields": fields, "lenient": True}}


def knn_clause(
    engine_type: EngineType,
    target: SearchScope,
    query: VectorQuery,
    counts: CandidateCounts,
    oversample: float | None = None,
    *,
    calibrated: bool = False,
) -> Json:
    """Create a `bool` that searches a field in all its indices, each by its index type and the filter of its alias.

    Args:
        oversample: Replaces the oversampling of quantized indices; 0 for no rescoring.
        calibrated: Whether the minimum cosine in the mapping of each index applies as well.
    """
    clauses: list[Json] = []
    for number, part in enumerate(target.groups):
        usual = part.oversample(target.name)
        part_query = replace(
            query,
            # Vectors that are not quantized need no rescoring.
            oversample=usual if usual is None or oversample is None else oversample or None,
            filter=combine_filters(query.filter, part.filters.get(part.indices[0])),
            min_cosine=_larger(query.min_cosine, part.meta.min_cosine if calibrated else None),
        )
        if usual is not None and oversample == 0 and engine_type is EngineType.ELASTICSEARCH:
            part_query = replace(part_query, knn_parameters=query.knn_parameters | {"rescore_vector": _NO_RESCORING})
        if number:
            part_query = _with_numbered_inner_hits(part_query, number)
        if engine_type is EngineType.OPENSEARCH:
            part_query = counts.distinct(part_query)
        clause = vector_clause(engine_type, part.method(engine_type, exact=False), part_query)
        clauses.append({"bool": {"must": [clause], "filter": [index_filter(part.indices)]}})
    return clauses[0] if len(clauses) == 1 else {"bool": {"should": clauses, "minimum_should_match": 1}}


# Without this parameter, bbq types are rescored by default.
_NO_RESCORING = {"oversample": 0}


def _with_numbered_inner_hits(query: VectorQuery, number: int) -> VectorQuery:
    """Add a number to the name of a query's inner hits: engines require a different name for each clause."""
    inner_hits = query.nested_parameters.get("inner_hits")
    if inner_hits is not None:
        inner_hits = inner_hits | {"name": f"{inner_hits.get('name', query.field)}.{number}"}
        return replace(query, nested_parameters=query.nested_parameters | {"inner_hits": inner_hits})
    return query if query.inner_hits is None else replace(query, inner_hits=f"{query.inner_hits}.{number}")


def _larger(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def index_filter(indices: Sequence[str]) -> Json:
    """Create a filter that restricts a clause to indices of one model.

    The target of an alias may change to an index of another model between the lookup and the search; its shards then
    match nothing. Each shard evaluates this by its name, without reading a document.
    """
    return {"terms": {"_index": list(indices)}}


def combine_filters(*filters: Json | None) -> Json | None:
    """Combine filters into one query that matches what all of them match; None if there are no filters."""
    queries = [query for query in filters if query is not None]
    return and_query(*queries) if queries else None


class CandidateCounts:
    """Candidate counts of the kNN queries of one request: different for each k.

    OpenSearch treats two kNN queries of a bool as one if field, vector, filter and `ef_search` are equal, even if
    their k differs (seen on 3.6.0, engine lucene): two in `should` both return the k of the first, and a `must` loses a
    narrower `filter`. Elasticsearch distinguishes them.
    """

    def __init__(self) -> None:
        self._k: dict[int, int] = {}  # candidate count → k

    def distinct(self, query: VectorQuery) -> VectorQuery:
        """Return the query, with more (or fewer) candidates if a query with a different k has the same number."""
        count = max(query.candidates, query.oversampled_k)
        counts = chain(range(count, MAX_K + 1), range(count - 1, query.oversampled_k - 1, -1))
        free = next((number for number in counts if self._k.setdefault(number, query.k) == query.k), count)
        return replace(query, num_candidates=free)
