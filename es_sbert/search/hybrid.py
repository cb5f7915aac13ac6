"""Words and meaning in one search: pure builders.

| fusion | where | what is added up | engines |
|---|---|---|---|
| `rrf` | in the client, of two searches in one `_msearch` | weight / (60 + rank) | both |
| `weighted` | on the server: a bool with two boosted clauses | weight × (1 + cosine) / 2 + weight × BM25 | both |
| `normalized` | on the server: `hybrid` and a search pipeline | weight × score, scaled to 0…1 | OpenSearch |

BM25 has no upper end and depends on the collection and on the length of the query, and Elasticsearch's is 2.2 times
that of OpenSearch, so the weights of `weighted` fit one collection on one engine; ranks need no such fitting. None of
the three needs a paid licence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import UsageError
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.text import TextTemplate
from es_sbert.search.answers import LEXICAL, semantic_name
from es_sbert.search.queries import vector_clause
from es_sbert.search.scores import Method, score_of
from es_sbert.search.vector_query import VectorQuery


class Fusion(StrEnum):
    """How the two rankings become one."""

    RRF = "rrf"
    WEIGHTED = "weighted"
    NORMALIZED = "normalized"


@dataclass(frozen=True)
class Weights:
    """What each side counts; only their proportion decides the order.

    Attributes:
        semantic, lexical: Above 0.

    Raises:
        UsageError: one of them is not.
    """

    semantic: float
    lexical: float

    def __post_init__(self) -> None:
        for name in ("semantic", "lexical"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise UsageError(
                    f"the {name} weight is {getattr(self, name):g}",
                    "Give two numbers above 0, of meaning and of words; to leave one out, search by the other alone.",
                )


def lexical_fields(meta: VectorFieldMeta) -> list[str]:
    """The fields that the embedded text is made of.

    Raises:
        UsageError: the mapping does not tell.
    """
    template = None if meta.text is None else TextTemplate.parse(meta.text)
    if template is None:
        raise UsageError("the index does not tell which fields hold its text", "Name them: lexical_fields=['body'].")
    return [name for _, name in template.parts if name is not None]


def words_query(text: str, fields: Sequence[str]) -> Json:
    """The words of a text in one field or several (the best of them counts).

    Raises:
        UsageError: no field.
    """
    if not fields:
        raise UsageError("there is no field to look for words in", "Name at least one: lexical_fields=['body'].")
    if len(fields) == 1:
        return {"match": {fields[0]: text}}
    return {"multi_match": {"query": text, "fields": list(fields)}}


def lexical_clause(query: Json, filter: Json | None, weight: float = 1.0) -> Json:
    """A query for words as a named clause; its filter is the one of the vector search."""
    clause: Json = {"must": [query], "_name": LEXICAL}
    if filter is not None:
        clause["filter"] = [filter]
    return {"bool": clause if weight == 1.0 else clause | {"boost": weight}}


def nearest_clause(flavour: Flavour, method: Method, queries: Sequence[VectorQuery]) -> Json:
    """Named clauses of vector searches as one: of several fields, the one of the highest score counts."""
    named: list[Json] = [
        {"bool": {"must": [vector_clause(flavour, method, query)], "_name": semantic_name(query.field)}}
        for query in queries
    ]
    return named[0] if len(named) == 1 else {"dis_max": {"queries": named}}


def weighed(flavour: Flavour, method: Method, query: VectorQuery, weight: float) -> VectorQuery:
    """The query with such a boost that a cosine of 1 scores its boost times the weight."""
    return replace(query, boost=query.boost * weight / score_of(1.0, flavour, method))


def weighted_query(flavour: Flavour, method: Method, queries: Sequence[VectorQuery], words: Json,
                   weights: Weights) -> Json:  # fmt: skip
    """`query` of a body for the fusion `weighted`.

    Args:
        queries: One for each vector field, already `weighed`; all of one filter.
        words: Query for the words.
    """
    semantic = nearest_clause(flavour, method, queries)
    return {"bool": {"should": [semantic, lexical_clause(words, queries[0].filter, weights.lexical)]}}


def hybrid_query(method: Method, queries: Sequence[VectorQuery], words: Json, depth: int) -> Json:
    """`query` of a body for the fusion `normalized`: OpenSearch's own `hybrid`.

    Args:
        depth: Hits of each shard and side that are scaled and added up.
    """
    semantic = nearest_clause(Flavour.OPENSEARCH, method, queries)
    sides = [semantic, lexical_clause(words, queries[0].filter)]
    return {"hybrid": {"queries": sides, "pagination_depth": depth}}


def normalization_pipeline(weights: Weights, *, normalization: str = "min_max",
                           combination: str = "arithmetic_mean") -> Json:  # fmt: skip
    """A search pipeline for `hybrid_query`: `search_pipeline` of a body, or body of `PUT /_search/pipeline/NAME`.

    Args:
        weights: What each side counts; OpenSearch wants them to add up to 1, so they are scaled.
        normalization: `min_max`, `l2` or `z_score`.
        combination: `arithmetic_mean`, `geometric_mean` or `harmonic_mean`.
    """
    total = weights.semantic + weights.lexical
    semantic = round(weights.semantic / total, 6)
    shares = [semantic, round(1.0 - semantic, 6)]
    processor = {
        "normalization": {"technique": normalization},
        "combination": {"technique": combination, "parameters": {"weights": shares}},
    }
    return {"phase_results_processors": [{"normalization-processor": processor}]}
