"""Answers of the engine as typed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.index.layout import PASSAGE_END, PASSAGE_START
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.text import NoText, TextTemplate
from es_sbert.search.fusion import reciprocal_rank_fusion
from es_sbert.search.results import Hit, HybridHit, HybridResult, Passage, SearchResult
from es_sbert.search.scores import Method, cosine_of
from es_sbert.search.searched import Searched
from es_sbert.search.vector_query import VectorQuery

LEXICAL = "lexical"  # name of the clause of words; those of vector fields are `semantic_name`


def semantic_name(field: str) -> str:
    """What the clause of a vector field is called in a request."""
    return f"semantic.{field}"


class Reader:
    """Reads the hits of one request.

    Args:
        flavour, method: Of the engine and the search, which decide what a score means.
        searched: What was searched.
        queries: By vector field.
    """

    def __init__(self, flavour: Flavour, method: Method, searched: Searched,
                 queries: Sequence[VectorQuery]) -> None:  # fmt: skip
        self._flavour = flavour
        self._method = method
        self._searched = searched
        self._queries = {query.field: query for query in queries}

    def found(self, answer: Json, *, named: bool) -> SearchResult:
        """The answer to a vector search.

        Args:
            named: Whether clauses bear names; a body of one clause has its score for that of the hit.
        """
        hits = []
        for hit in answer["hits"]["hits"]:
            cosines = self._named(hit) if named else {name: self._cosine(name, hit["_score"]) for name in self._queries}
            nearest = max(cosines, key=lambda name: cosines[name])
            hits.append(
                Hit(hit["_id"], cosines[nearest], hit["_score"], hit.get("_source", {}), hit["_index"],
                    self._passage(hit, nearest), hit.get("highlight", {}))
            )  # fmt: skip
        return SearchResult(tuple(hits), answer["took"], self._method, _total(answer), answer.get("aggregations", {}))

    def hybrid(self, answer: Json, lexical_weight: float) -> HybridResult:
        """The answer to a search whose clauses bear names, the words among them."""
        hits = []
        for hit in answer["hits"]["hits"]:
            cosines = self._named(hit)
            words = hit.get("matched_queries", {}).get(LEXICAL)
            hits.append(
                self._hybrid_hit(hit, hit["_score"], cosines, None if words is None else words / lexical_weight)
            )
        return HybridResult(tuple(hits), answer["took"], self._method, _total(answer), answer.get("aggregations", {}))

    def fused(self, answers: Mapping[str, Json], *, weights: Mapping[str, float], constant: int, offset: int,
              size: int) -> HybridResult:  # fmt: skip
        """Answers to one search by words and one for each vector field, fused by their ranks.

        Args:
            answers: By `LEXICAL` and by vector field.
            weights, constant: See `reciprocal_rank_fusion`.
            offset, size: Which of the fused hits are wanted.
        """
        found = {name: {(hit["_index"], hit["_id"]): hit for hit in answer["hits"]["hits"]}
                 for name, answer in answers.items()}  # fmt: skip
        fused = reciprocal_rank_fusion(
            {name: list(hits) for name, hits in found.items()}, weights=weights, constant=constant
        )
        hits = []
        for document in fused[offset : offset + size]:
            raw = {name: found[name][document.key] for name in document.ranks}
            cosines = {name: self._cosine(name, raw[name]["_score"]) for name in raw if name != LEXICAL}
            words = raw[LEXICAL]["_score"] if LEXICAL in raw else None
            merged: Json = {}
            for hit in raw.values():  # each may have what the others lack: inner hits of its own field, highlights
                merged |= hit | {"inner_hits": merged.get("inner_hits", {}) | hit.get("inner_hits", {})}
            hits.append(self._hybrid_hit(merged, document.score, cosines, words, document.ranks))
        return HybridResult(tuple(hits), max(answer["took"] for answer in answers.values()), self._method, len(fused))

    def _hybrid_hit(self, hit: Json, score: float, cosines: Mapping[str, float], lexical: float | None,
                    ranks: dict[str, int] | None = None) -> HybridHit:  # fmt: skip
        nearest = max(cosines, key=lambda name: cosines[name]) if cosines else None
        return HybridHit(
            id=hit["_id"], score=score, cosine=None if nearest is None else cosines[nearest], lexical=lexical,
            source=hit.get("_source", {}), index=hit["_index"], ranks=ranks or {},
            passage=None if nearest is None else self._passage(hit, nearest), highlight=hit.get("highlight", {}),
        )  # fmt: skip

    def _named(self, hit: Json) -> dict[str, float]:
        """Cosines by vector field, of the fields by which a hit was found."""
        scores = hit.get("matched_queries", {})
        return {
            name: self._cosine(name, scores[semantic_name(name)])
            for name in self._queries
            if semantic_name(name) in scores
        }

    def _cosine(self, name: str, score: float) -> float:
        return cosine_of(score / self._queries[name].boost, self._flavour, self._method)

    def _passage(self, hit: Json, name: str) -> Passage | None:
        meta = self._searched.meta(name, hit["_index"])
        return None if meta.passages is None else _passage(hit, name, meta)


def _passage(hit: Json, name: str, meta: VectorFieldMeta) -> Passage:
    [best] = hit["inner_hits"][name]["hits"]["hits"]
    place = best["_source"]
    if name in place:
        place = place[name]  # engines differ in whether the nested object's own name stands around it
    start, end = int(place[PASSAGE_START]), int(place[PASSAGE_END])
    try:
        text = None if meta.text is None else TextTemplate.parse(meta.text).render(hit.get("_source", {}))
    except NoText:
        text = None  # a `_source` that leaves its fields out
    return Passage(start, end, None if text is None else text[start:end])


def _total(answer: Json) -> int | None:
    total = answer["hits"].get("total")
    # Elasticsearch and OpenSearch stop counting at 10,000 unless asked to go on.
    return int(total["value"]) if isinstance(total, dict) and total["relation"] == "eq" else None
