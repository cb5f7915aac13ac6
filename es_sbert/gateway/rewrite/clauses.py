"""From a query by meaning and its vector to the engine's own query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.rewrite.depths import Depths
from es_sbert.gateway.rewrite.semantic import Semantic
from es_sbert.gateway.targets import FieldTarget, Part
from es_sbert.index.layout import passage_inner_hits, vector_path
from es_sbert.index.text import TextTemplate
from es_sbert.index.vectors import QueryVector, vector_list
from es_sbert.search.choices import method_for, oversample_for
from es_sbert.search.queries import vector_clause
from es_sbert.search.vector_query import VectorQuery


def clause(flavour: Flavour, semantic: Semantic, vector: QueryVector, filters: Sequence[Json], inner_hits: str | None,
           depths: Depths) -> Json:  # fmt: skip
    """A query that keeps the k nearest documents and scores them.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: What the request asks of hits beside; applied during the search, so that k documents remain.
        inner_hits: Name for the nearest passage of each hit; None asks for none.
        depths: Of the request that it stands in.
    """
    found = nearest(flavour, semantic.target, vector_query(semantic, vector, all_of(filters), inner_hits), depths)
    if semantic.name is not None:
        found["bool"]["_name"] = semantic.name
    return found


def in_words(semantic: Semantic) -> Json:
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


def nearest(flavour: Flavour, target: FieldTarget, query: VectorQuery, depths: Depths) -> Json:
    """A search in all indices of a field, in each as its index type and its alias ask for; a bool."""
    found = [_in_part(flavour, part, query, number, depths) for number, part in enumerate(target.parts)]
    return found[0] if len(found) == 1 else {"bool": {"should": found, "minimum_should_match": 1}}


def _in_part(flavour: Flavour, part: Part, query: VectorQuery, number: int, depths: Depths) -> Json:
    # Engines want a name of its own for each clause's inner hits.
    told = f"{query.inner_hits}.{number}" if query.inner_hits and number else query.inner_hits
    filters = [one for one in (query.filter, part.filter) if one is not None]
    own = replace(query, oversample=oversample_for(part.meta), filter=all_of(filters), inner_hits=told)
    own = depths.apart(own) if flavour is Flavour.OPENSEARCH else own
    found = vector_clause(flavour, method_for(flavour, part.meta, exact=False), own)
    return {"bool": {"must": [found], "filter": [in_indices(part.indices)]}}


def vector_query(semantic: Semantic, vector: QueryVector, filter: Json | None, inner_hits: str | None) -> VectorQuery:
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
        filter=all_of([one for one in (semantic.filter, filter) if one is not None]),
        num_candidates=None if semantic.num_candidates is None else max(semantic.k, semantic.num_candidates),
        min_cosine=semantic.min_cosine,
        boost=semantic.boost,
        passages=meta.passages is not None,
        inner_hits=inner_hits,
    )


def in_indices(indices: Sequence[str]) -> Json:
    """Keeps vectors of one model from being compared with another's.

    An alias may go over to an index of another model between our look at it and the search; shards of such an index
    then match nothing. Each shard answers this from its own name, without looking at a document.
    """
    return {"terms": {"_index": list(indices)}}


def knn_section(semantic: Semantic, said: Json, vector: QueryVector, inner_hits: str | None) -> Json:
    """Elasticsearch's `knn` section of a search as the caller wrote it, with the vector in place of the text.

    Args:
        vector: *Shape:* ``(dimensions,)``.
    """
    meta = semantic.target.meta
    section = {name: value for name, value in said.items() if name != "query_vector_builder"}
    indices = [index for part in semantic.target.parts for index in part.indices]
    section |= {"field": vector_path(semantic.target.name, meta), "query_vector": vector_list(vector)}
    section["filter"] = all_of([*([] if semantic.filter is None else [semantic.filter]), in_indices(indices)])
    oversample = oversample_for(meta)
    if oversample is not None:
        section.setdefault("rescore_vector", {"oversample": oversample})
    if inner_hits is not None and meta.passages is not None:
        section.setdefault("inner_hits", passage_inner_hits(semantic.target.name, inner_hits))
    return section


def all_of(filters: Sequence[Json]) -> Json | None:
    """One query that matches what all of them match; None for none."""
    if not filters:
        return None
    return filters[0] if len(filters) == 1 else {"bool": {"filter": list(filters)}}
