"""Answers of the engine as typed values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.index.layout import PASSAGE_END, PASSAGE_START
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.index.text import NoText, TextTemplate
from es_sbert.search.scores import Method, cosine_of


@dataclass(frozen=True)
class Passage:
    """The part of a document that is nearest to the query.

    On a quantised index type it is chosen by quantised vectors: of two passages that are nearly as near it may be
    the other.

    Attributes:
        start, end: First character in the document's text (see `VectorFieldMeta.text`), and the one behind its last.
        text: The passage itself; None where the hit's source lacks the fields that it is made of.
    """

    start: int
    end: int
    text: str | None


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Attributes:
        id: The document's id.
        cosine: Cosine of query and document vector, -1 to 1, from float32 vectors.
        score: The engine's `_score`.
        source: The document, without its vector.
        index: The concrete index it came from.
        passage: The nearest passage, where the index holds passages.
    """

    id: str
    cosine: float
    score: float
    source: Json
    index: str
    passage: Passage | None = None

    def as_json(self) -> Json:
        plain = {"id": self.id, "cosine": self.cosine, "score": self.score, "source": self.source}
        return plain if self.passage is None else plain | {"passage": asdict(self.passage)}


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


def read_answer(answer: Json, flavour: Flavour, method: Method, field: str, meta: VectorFieldMeta) -> SearchResult:
    """The engine's answer to a body of `search_body`.

    Args:
        field: The vector field that was searched.
        meta: What the mapping says about it.
    """
    template = None if meta.passages is None or meta.text is None else TextTemplate.parse(meta.text)
    hits = tuple(
        Hit(
            id=hit["_id"],
            cosine=cosine_of(hit["_score"], flavour, method),
            score=hit["_score"],
            source=hit.get("_source", {}),
            index=hit["_index"],
            passage=None if meta.passages is None else _passage(hit, field, template),
        )
        for hit in answer["hits"]["hits"]
    )
    return SearchResult(hits=hits, took_ms=answer["took"], method=method)


def _passage(hit: Json, field: str, template: TextTemplate | None) -> Passage:
    [best] = hit["inner_hits"][field]["hits"]["hits"]
    place = best["_source"]
    if field in place:
        place = place[field]  # engines differ in whether the nested object's own name stands around it
    start, end = int(place[PASSAGE_START]), int(place[PASSAGE_END])
    try:
        text = None if template is None else template.render(hit.get("_source", {}))
    except NoText:
        text = None  # a `_source` that leaves its fields out
    return Passage(start, end, None if text is None else text[start:end])
