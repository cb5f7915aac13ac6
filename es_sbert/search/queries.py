"""Vector searches as JSON: pure functions from typed arguments to clauses and request bodies.

What a clause does on each engine, seen on Elasticsearch 8.19.8 and 9.5.0 and OpenSearch 3.6.0 (`tests/engine`):

- A kNN clause looks for k documents in every shard (on OpenSearch with `oversample`: that many times k), so that up to
  k × shards match. Elasticsearch's `knn` section, which `search_body` uses, finds k documents of the whole index.
- On Elasticsearch 9 a kNN clause over a `flat` field matches all documents that have a vector and pass the filter,
  whatever k is; their scores are right. Only `size` or `min_cosine` make them fewer. 8.19 keeps to k.
- An exact clause matches all documents that have a vector and pass the filter on either engine.
- Where an index lacks the field, a clause matches nothing there.
- A filter that matches fewer than k documents gives all of these.
- On Elasticsearch 9.4.3 (not on 9.5.0) a filter over a `flat`, `int8_flat` or `int4_flat` field also matches documents
  that pass it and have no vector, with the score 0.
"""

from __future__ import annotations

from dataclasses import replace

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import UsageError
from es_sbert.index.layout import passage_inner_hits
from es_sbert.index.vectors import vector_list
from es_sbert.search.scores import Method, score_of
from es_sbert.search.vector_query import VectorQuery


def search_body(flavour: Flavour, method: Method, query: VectorQuery) -> Json:
    """Body of `POST /index/_search` for the k nearest documents.

    The filter applies during the search, not after it: k hits come back wherever k documents match. The
    vector is left out of the hits' `_source`.
    """
    if method is Method.KNN and flavour is Flavour.ELASTICSEARCH:
        section = _knn_alone(query)
    else:
        section = {"query": vector_clause(flavour, method, query)}
    return section | {"size": query.k, "_source": {"excludes": [query.field]}}


def vector_clause(flavour: Flavour, method: Method, query: VectorQuery) -> Json:
    """The search as a clause that may stand anywhere inside `query`: alone, in a bool, in a filter, in an aggregation.

    Its scores are those of `scores.cosine_of` times the boost. How many documents it matches, see the module.

    Raises:
        UsageError: passages on Elasticsearch with a filter that holds a `nested` query.
    """
    if method is Method.EXACT:
        return _exact(flavour, query)
    return _elasticsearch_clause(query) if flavour is Flavour.ELASTICSEARCH else _opensearch_clause(query)


def _knn_alone(query: VectorQuery) -> Json:
    """A body's section `knn`, which finds k documents of the whole index, with no `query` beside it."""
    if not query.passages:
        return {"knn": _elasticsearch_knn(query) | _boost(query)}
    knn = _elasticsearch_knn(replace(query, min_cosine=None)) | _boost(query)
    if query.inner_hits is not None:
        knn["inner_hits"] = passage_inner_hits(query.field, query.inner_hits)
    if query.min_cosine is None:
        return {"knn": knn}
    # Not by `similarity`, which inner hits are compared with anew by quantised vectors: a hit might have no passage.
    return {"knn": knn, "min_score": query.boost * score_of(query.min_cosine, Flavour.ELASTICSEARCH, Method.KNN)}


def _elasticsearch_knn(query: VectorQuery) -> Json:
    knn: Json = {
        "field": query.path,
        "query_vector": vector_list(query.vector),
        "k": query.k,
        "num_candidates": query.candidates,
    }
    if query.oversample is not None:
        knn["rescore_vector"] = {"oversample": query.oversample}
    if query.min_cosine is not None:
        # Compared with the cosine itself, after rescoring and before boosts.
        knn["similarity"] = query.min_cosine
    return knn if query.filter is None else knn | {"filter": query.filter}


def _elasticsearch_clause(query: VectorQuery) -> Json:
    knn = _elasticsearch_knn(query)
    if not query.passages:
        return _counted(query, {"knn": knn | _boost(query)})
    if query.filter is not None and _holds_nested(query.filter):
        # Elasticsearch looks for the nested objects inside the passages, finds none, and answers with no hits.
        raise UsageError(
            "a search over passages inside a larger query cannot be filtered by a nested query on Elasticsearch",
            "Filter by fields of the document itself, or make the search the body's own `knn` section.",
        )
    return _nested(query, _counted(query, {"knn": knn}))


def _counted(query: VectorQuery, clause: Json) -> Json:
    """A clause whose matches are counted one by one.

    Where Elasticsearch 9 only counts (totals, aggregations, must_not), it counts the k of a clause and forgets the
    minimum. A function_score that changes nothing has no such short cut.
    """
    return clause if query.min_cosine is None else {"function_score": {"query": clause, "min_score": 0}}


def _opensearch_clause(query: VectorQuery) -> Json:
    knn: Json = {
        "vector": vector_list(query.vector),
        "k": query.oversampled_k,
        "method_parameters": {"ef_search": max(query.candidates, query.oversampled_k)},
        "ignore_unmapped": True,
    }
    if query.filter is not None:
        knn["filter"] = query.filter
    if query.oversample is None and query.min_cosine is None:
        found: Json = {"knn": {query.path: knn}}
        return _nested(query, found) if query.passages else {"knn": {query.path: knn | _boost(query)}}
    # OpenSearch's own rescoring needs its native library, and its own minimum excludes k: a script over what the graph
    # found does both.
    return _scored(
        Flavour.OPENSEARCH, query, {"bool": {"must": [{"knn": {query.path: knn}}], "filter": [_exists(query)]}}
    )


def _exact(flavour: Flavour, query: VectorQuery) -> Json:
    """All documents that have a vector and pass the filter."""
    filters = [_exists(query)]
    if query.passages:
        passages = _scored(flavour, query, filters[0])
        # Passages know nothing of the fields of their document, so the filter stands outside; it costs no hits, since
        # every passage is scored.
        return passages if query.filter is None else {"bool": {"must": [passages], "filter": [query.filter]}}
    if query.filter is not None:
        filters.append(query.filter)
    return _scored(flavour, query, {"bool": {"filter": filters}})


def _exists(query: VectorQuery) -> Json:
    """Scripts fail in an index that lacks the field, unless something else matches nothing there first."""
    return {"exists": {"field": query.path}}


def _scored(flavour: Flavour, query: VectorQuery, documents: Json) -> Json:
    """Documents, or those of passages, scored by the cosine of their float32 vectors, from the minimum up."""
    script = _script(flavour, query)
    if query.min_cosine is not None:
        # `min_score` is compared after all boosts, also those of outer queries, unless constant_score stands between.
        least = score_of(query.min_cosine, flavour, Method.EXACT)
        near = {"script_score": {"query": documents, "script": script, "min_score": least}}
        documents = {"constant_score": {"filter": near}}
    scored: Json = {"query": documents, "script": script}
    if query.passages:
        return _nested(query, {"script_score": scored})
    return {"script_score": scored | _boost(query)}


def _nested(query: VectorQuery, inner: Json) -> Json:
    """A query over passages as one over documents."""
    nested: Json = {"path": query.field, "score_mode": "max", "query": inner, "ignore_unmapped": True}
    if query.inner_hits is not None:
        nested["inner_hits"] = passage_inner_hits(query.field, query.inner_hits)
    return {"nested": nested | _boost(query)}


def _boost(query: VectorQuery) -> Json:
    return {} if query.boost == 1.0 else {"boost": query.boost}


def _script(flavour: Flavour, query: VectorQuery) -> Json:
    vector = vector_list(query.vector)
    if flavour is Flavour.ELASTICSEARCH:
        source = f"cosineSimilarity(params.q, '{_quoted(query.path)}') + 1.0"
        return {"source": source, "params": {"q": vector}}
    params = {"field": query.path, "query_value": vector, "space_type": "cosinesimil"}
    return {"lang": "knn", "source": "knn_score", "params": params}


def _holds_nested(query: object) -> bool:
    if isinstance(query, dict):
        nested = query.get("nested")  # a query, unless a field is called so
        return (isinstance(nested, dict) and "path" in nested) or any(map(_holds_nested, query.values()))
    return isinstance(query, list) and any(map(_holds_nested, query))


def _quoted(field: str) -> str:
    """A field's name inside a string of a script: nothing in it may end the string."""
    return field.replace("\\", "\\\\").replace("'", "\\'")
