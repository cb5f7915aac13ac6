"""Answers of the engine as typed values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.search.scores import Method, cosine_of


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Attributes:
        id: The document's id.
        cosine: Cosine of query and document vector, -1 to 1, from float32 vectors.
        score: The engine's `_score`.
        source: The document, without its vector.
        index: The concrete index it came from.
    """

    id: str
    cosine: float
    score: float
    source: Json
    index: str

    def as_json(self) -> Json:
        return {"id": self.id, "cosine": self.cosine, "score": self.score, "source": self.source}


@dataclass(frozen=True)
class SearchResult:
    """Hits, best first.

    Attributes:
        hits: At most k.
        took_ms: Milliseconds inside the engine.
        method: How they were found.
    """

    hits: tuple[Hit, ...]
    took_ms: int
    method: Method

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


def read_answer(answer: Json, flavour: Flavour, method: Method) -> SearchResult:
    """The engine's answer to a body of `search_body`."""
    hits = tuple(
        Hit(
            id=hit["_id"],
            cosine=cosine_of(hit["_score"], flavour, method),
            score=hit["_score"],
            source=hit.get("_source", {}),
            index=hit["_index"],
        )
        for hit in answer["hits"]["hits"]
    )
    return SearchResult(hits=hits, took_ms=answer["took"], method=method)
