"""Search results: hits, passages, reranking and missing shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from reprlib import Repr
from typing import Any, Generic, Self, TypeVar, overload

from es_sbert.engines.error_mapping import root_cause
from es_sbert.engines.rest import Json
from es_sbert.messages import pluralize
from es_sbert.search.vector_query import SearchMethod

_COSINE_DIGITS = 6
_REPR_HITS = 10
_SHORT_REPR = Repr()
_SHORT_REPR.maxdict, _SHORT_REPR.maxlist, _SHORT_REPR.maxstring, _SHORT_REPR.maxlevel = 6, 3, 60, 2


@dataclass(frozen=True)
class Passage:
    """The part of a document that is nearest to the query.

    Usage:
        ```python
        for hit in index.search("heavy rain"):
            if hit.passage is not None:
                print(hit.passage.text)
        ```

    On a quantized index type, it is chosen by quantized vectors, so another passage may be slightly nearer.

    Attributes:
        start, end: Position of the first character in the document's text (see `VectorFieldMeta.text`), and one past
            the last.
        text: The passage itself; None if the hit's source lacks the fields of the text.
    """

    start: int
    end: int
    text: str | None


# The engine's names of the members of a document.
_ENGINE_NAMES = {"_id": "id", "_index": "index", "_score": "score", "_source": "source"}


@dataclass(frozen=True, kw_only=True)
class StoredDocument:
    """A document of an index. `document["_source"]` reads a member by the engine's name.

    Usage:
        ```python
        [best] = index.search("heavy rain", k=1)
        document = index.get(best.id)
        print(document.index, document["_source"]["title"])
        ```

    Attributes:
        id: The document's id.
        source: The document, without its vector.
        index: The concrete index it came from.
    """

    id: str
    source: Json
    index: str

    def __getitem__(self, name: str) -> Any:
        return getattr(self, _ENGINE_NAMES[name])


@dataclass(frozen=True, repr=False, kw_only=True)
class FoundDocument(StoredDocument):
    """What hits of all searches have.

    Attributes:
        score: The engine's `_score`; of a hybrid search the fused score, see `HybridHit`.
        passage: The nearest passage, if the index holds passages.
        highlight: Field → its parts with the words of the query marked, if requested.
        rerank_score: The cross-encoder's score for the query and the hit, in the model's own range, if it was reranked.
    """

    score: float
    passage: Passage | None = None
    highlight: dict[str, list[str]] = field(default_factory=dict)
    rerank_score: float | None = None

    def _scores(self) -> Json:
        """The members of `as_json` between index and source."""
        raise NotImplementedError

    def as_json(self) -> Json:
        """Return the hit as a dictionary, with its cosine to six digits: float32 is not more precise."""
        passage = None if self.passage is None else asdict(self.passage)
        optional = {"passage": passage, "highlight": self.highlight or None, "rerank_score": self.rerank_score}
        present = {name: value for name, value in optional.items() if value is not None}
        return {"id": self.id, "index": self.index, **self._scores(), "source": self.source, **present}

    def __repr__(self) -> str:
        """Show rounded scores and the beginning of the source."""
        scores = {"rerank_score": self.rerank_score} if self.rerank_score is not None else {}
        scores |= {name: score for name, score in self._scores().items() if name in ("score", "cosine", "lexical")}
        rounded = [f"{name}={'None' if score is None else f'{score:.4f}'}" for name, score in scores.items()]
        passage = [] if self.passage is None else [f"passage={_SHORT_REPR.repr(self.passage.text)}"]
        # The metadata of vectors is left out: it would hide the document's own fields.
        content = {
            name: value
            for name, value in self.source.items()
            if not (isinstance(value, dict) and "fingerprint" in value)
        }
        shown = [f"id={self.id!r}", *rounded, f"index={self.index!r}", *passage, f"source={_SHORT_REPR.repr(content)}"]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False, kw_only=True)
class Hit(FoundDocument):
    """A document that was found.

    Usage:
        ```python
        for hit in index.search("heavy rain", k=3):
            print(hit.cosine, hit.id, hit.source["title"])
        ```

    Attributes:
        cosine: Cosine between query and document vector, -1 to 1, computed from float32 vectors.
    """

    cosine: float

    def _scores(self) -> Json:
        return {"cosine": round(self.cosine, _COSINE_DIGITS), "score": self.score}


@dataclass(frozen=True, repr=False, kw_only=True)
class HybridHit(FoundDocument):
    """A document found by keyword search, semantic search or both.

    Usage:
        ```python
        hit = index.hybrid("heavy rain")[0]
        print(hit.score, hit.match, hit.ranks)
        ```

    The score is the fused one, by which hits are ordered: at most 1, and more for an exact match.

    Attributes:
        cosine: As in `Hit`; None if the document is not among the nearest that the fusion read.
        lexical: Keyword score (BM25), before any weight; None if the document is not among the first that the fusion
            read.
        ranks: Ranking → rank of the document, from 1. The rankings are `lexical` and the name of the vector field.
        match: `phrase`, `all_words`, `literal` or `prefix` if the document is an exact match, else None.
    """

    cosine: float | None
    lexical: float | None
    ranks: dict[str, int] = field(default_factory=dict)
    match: str | None = None

    def _scores(self) -> Json:
        cosine = None if self.cosine is None else round(self.cosine, _COSINE_DIGITS)
        optional = {"ranks": self.ranks or None, "match": self.match}
        present = {name: value for name, value in optional.items() if value is not None}
        return {"score": self.score, "cosine": cosine, "lexical": self.lexical, **present}


AnyHit = TypeVar("AnyHit", Hit, HybridHit)


@dataclass(frozen=True)
class Reranking:
    """The reranking of the hits of a search by a cross-encoder.

    Usage:
        ```python
        result = index.search("heavy rain", rerank=reranker)
        print(result.reranking)  # reranked 50 hits in 120 ms by …
        ```

    Attributes:
        reranker: Model and variant.
        scored: Number of hits that were scored.
        truncated: Number of scored hits that were truncated: with the query, they are longer than the model reads.
        without_text: Number of hits of the window whose source lacks the text.
        took_ms: Milliseconds spent on reranking.
    """

    reranker: str
    scored: int
    truncated: int
    without_text: int
    took_ms: int

    def __str__(self) -> str:
        line = f"reranked {pluralize(self.scored, 'hit')} in {self.took_ms} ms by {self.reranker}"
        line += f", {self.truncated} of them truncated" if self.truncated else ""
        if not self.without_text:
            return line
        follow = "has no text and follows" if self.without_text == 1 else "have no text and follow"
        return f"{line}; {pluralize(self.without_text, 'hit')} {follow}"


@dataclass(frozen=True)
class PartialResult:
    """The missing shards of a search result (`allow_partial`).

    Usage:
        ```python
        result = index.search("heavy rain", allow_partial=True)
        if result.partial is not None:
            print(result.partial.failed, "of", result.partial.total, result.partial.failures)
        ```

    Attributes:
        failed, total: Number of missing shards, and of all shards of the search.
        timed_out: Whether the engine stopped at its own time limit, before all documents were compared.
        failures: What failed, as `shard 2 of docs: REASON`; the engine may give equal reasons only once.
    """

    failed: int
    total: int
    timed_out: bool
    failures: tuple[str, ...] = ()

    def __str__(self) -> str:
        reasons = list(self.failures[:3])
        if len(self.failures) > 3:
            reasons.append(f"{len(self.failures) - 3} more")
        if self.timed_out:
            reasons.append("timed out")
        reasons = reasons or ["no active copy"]
        return f"{self.failed} of {pluralize(self.total, 'shard')} failed ({'; '.join(reasons)})"


def read_partial(answers: Iterable[Json]) -> PartialResult | None:
    """Return the missing shards of the responses to one request; None if the responses are complete."""
    failed, total, timed_out = 0, 0, False
    failures: dict[tuple[str, int], str] = {}
    for answer in answers:
        shards = answer.get("_shards", {})
        # OpenSearch does not count a shard without an active copy as failed.
        missing = shards.get("total", 0) - shards.get("successful", 0)
        failed, total = max(failed, missing), max(total, shards.get("total", 0))
        timed_out = timed_out or bool(answer.get("timed_out"))
        for each in shards.get("failures", ()):
            _, reason = root_cause(each.get("reason") or {})
            index, number = each.get("index") or "", each.get("shard", -1)
            where = f"{'a shard' if number < 0 else f'shard {number}'}{f' of {index}' if index else ''}"
            failures.setdefault((index, number), f"{where}: {reason or 'no active copy'}")
    if not failed and not timed_out:
        return None
    return PartialResult(failed, total, timed_out, tuple(failures.values()))


@dataclass(frozen=True, repr=False)
class RankedHits(Generic[AnyHit]):
    """Hits, best first. `result[0]` is the best one, `result[:3]` a result with the first three.

    Usage:
        ```python
        result = index.search("heavy rain", k=10)
        print(len(result), result[0].id, [hit.id for hit in result[:3]])
        ```

    Attributes:
        hits: At most k.
        took_ms: Milliseconds inside the engine.
        method: The search method.
        total: Number of documents that the search matched, see docs/search.md; None if the engine did not
            count all of them.
        reranking: The reranking by a cross-encoder, if there was one. Hits without a rerank score follow in the order
            of the search: first those of the window that have no text, then those beyond the window.
        partial: The missing shards, if some failed and `allow_partial` was given; None if the result is complete.
        indices_without_field: Indices of the search that lack its vector field. A vector search has no hits
            from them; a hybrid search finds their documents by keywords only.
    """

    hits: tuple[AnyHit, ...]
    took_ms: int
    method: SearchMethod
    total: int | None = None
    reranking: Reranking | None = None
    partial: PartialResult | None = None
    indices_without_field: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[AnyHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @overload
    def __getitem__(self, index: int) -> AnyHit: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> AnyHit | Self:
        if isinstance(index, str):
            raise TypeError(f"a result has no member {index!r}: iterate over it, or read `hits`")
        return replace(self, hits=self.hits[index]) if isinstance(index, slice) else self.hits[index]

    def __repr__(self) -> str:
        total = "" if self.total is None else f" of {self.total:,}"
        facts = [f"{pluralize(len(self.hits), 'hit')}{total}", self.method]
        partial = None if self.partial is None else f"partial: {self.partial}"
        facts += filter(None, [f"{self.took_ms} ms", "reranked" if self.reranking else None, partial])
        lines = [f"<{type(self).__name__}: {', '.join(facts)}"]
        lines += [f"  {hit!r}" for hit in self.hits[:_REPR_HITS]]
        lines += [f"  … {len(self.hits) - _REPR_HITS:,} more"] if len(self.hits) > _REPR_HITS else []
        return "\n".join(lines) + ">"


@dataclass(frozen=True, repr=False)
class SearchResult(RankedHits[Hit]):
    """The result of a semantic search.

    Usage:
        ```python
        result = index.search("heavy rain")
        print(result.total, result.took_ms, result.method)
        ```
    """


@dataclass(frozen=True, repr=False)
class HybridResult(RankedHits[HybridHit]):
    """The result of a hybrid search.

    Usage:
        ```python
        for hit in index.hybrid("heavy rain", k=3, weights=[2, 1]):
            print(hit.score, hit.lexical, hit.cosine)
        ```
    """
