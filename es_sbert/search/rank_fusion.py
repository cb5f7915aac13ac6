"""The order of hybrid search: documents that hold the words of the query as they are, then the fusion of rankings.

A user may look for one document by an order number, a person's name, a quoted sentence or a rare word. Neither the
cosine nor BM25 shows that a document is the right one. So one search finds the documents that match the query in four
ways:

| match | a document holds |
|---|---|
| `phrase` | all words of the query, one after the other |
| `all_words` | all words of the query |
| `literal` | all literal parts of the query: quoted phrases, and words like `ORD-48213`, `0x80070057` or `E_FAIL` |
| `prefix` | all words of the query; the last one may be the beginning of a word |

The documents of a row count as exact matches only if they are few. Many documents hold the words of an ordinary query,
and there the words say little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from es_sbert.engines.rest import Json

# A row of more documents says nothing about which one is meant. Ten fill a page of results.
MAX_MATCHES = 10
# A longer query is a question or a text, which no document repeats.
MAX_WORDS = 16

RankedKey = TypeVar("RankedKey", bound=Hashable)


class MatchType(Enum):
    """How a document holds the words of a query. The value is the score of the clause, and a bit of the hit's score.

    The better match has the higher score, also if a document matches in several ways.
    """

    PHRASE = 8
    ALL_WORDS = 4
    LITERAL = 2
    PREFIX = 1

    @property
    def label(self) -> str:
        """The name in results: `all_words`."""
        return self.name.lower()

    @property
    def added_score(self) -> int:
        """What it adds to the score of a hybrid search, which is at most 1 without it: 4, 3, 2, 1."""
        return self.value.bit_length()


# Parameters of a `multi_match` by the type of match; literal parts are phrases.
_PARAMETERS: dict[MatchType, Json] = {
    MatchType.PHRASE: {"type": "phrase"},
    MatchType.ALL_WORDS: {"type": "cross_fields", "operator": "and"},
    MatchType.PREFIX: {"type": "bool_prefix", "operator": "and"},
}
_QUOTED = re.compile(r'"([^"]*\w[^"]*)"')
_PUNCTUATION = ".,;:!?()[]{}\"'“”„«»"
_YEAR = re.compile(r"(?:1[89]|20)\d\ds?")
_CODE = re.compile(r"[^\W_][_@][^\W_]|[a-z][A-Z].*[a-z][A-Z]")


def literal_parts(text: str) -> list[str]:
    """Find the parts of a query that users do not paraphrase: quoted phrases, numbers and codes.

    A word is literal if it has at least four letters and digits, and a digit among them (`ORD-48213`, `utf8`); if it is
    a number of three digits; or if it is written like an identifier (`E_FAIL`, `NullPointerException`,
    `someone@example.com`). Years are not.
    """
    words = (word.strip(_PUNCTUATION) for word in _QUOTED.sub(" ", text).split())
    return [*_QUOTED.findall(text), *(word for word in words if _is_literal(word))]


def _is_literal(word: str) -> bool:
    if any(map(str.isdigit, word)):
        length = sum(map(str.isalnum, word))
        return not _YEAR.fullmatch(word) and (length > 3 or (length == 3 and word.isdigit()))
    return _CODE.search(word) is not None


def exact_match_query(text: str, query_for: Callable[[Json], Json]) -> Json | None:
    """Build the query for exact matches of a text; None if the text is too long to be one.

    Args:
        text: The query text.
        query_for: Creates the query on the fields to search from the other parameters of a `multi_match`.

    Returns:
        A `bool` that gives each document the sum of the values of `MatchType` by which it matches.
    """
    if len(text.split()) > MAX_WORDS:
        return None

    def query(part: str, kind: MatchType) -> Json:
        return query_for({"query": part, "lenient": True, **_PARAMETERS[kind]})  # a field may hold numbers

    queries = {kind: query(text, kind) for kind in _PARAMETERS}
    if literal := literal_parts(text):
        phrases = [query(part, MatchType.PHRASE) for part in literal]
        queries[MatchType.LITERAL] = {"bool": {"must": phrases}}
    clauses = [{"constant_score": {"filter": each, "boost": kind.value}} for kind, each in queries.items()]
    return {"bool": {"should": clauses, "minimum_should_match": 1}}


# Hits to read: one more than count shows that there are more.
EXACT_HITS = MAX_MATCHES + 1


def read_exact_matches(hits: Sequence[tuple[RankedKey, float]]) -> dict[RankedKey, MatchType]:
    """Find the exact matches among the first hits of the query.

    Args:
        hits: Documents with their scores, best first: `EXACT_HITS`, or fewer if no more match.

    Returns:
        Document → its best match, for each type that at most `MAX_MATCHES` documents have.
    """
    scores = {key: round(score) for key, score in hits}
    lowest = min(scores.values()) if len(scores) == EXACT_HITS else 0
    matches: dict[RankedKey, MatchType] = {}
    for kind in MatchType:
        found = [key for key, score in scores.items() if score & kind.value]
        # Documents that were not read have at most the lowest score.
        if len(found) <= MAX_MATCHES and lowest < kind.value:
            matches |= {key: kind for key in found if key not in matches}
    return matches


_RANK_CONSTANT = 60  # from the paper on reciprocal rank fusion


@dataclass(frozen=True)
class FusedDocument(Generic[RankedKey]):
    """A document of at least one ranking, or an exact match.

    Attributes:
        key: The document.
        score: See `fuse_rankings`.
        ranks: Ranking → rank in it, from 1; only those that contain it.
        match: How it matches the query exactly; None if it does not.
    """

    key: RankedKey
    score: float
    ranks: dict[str, int]
    match: MatchType | None = None


def fuse_rankings(
    rankings: Mapping[str, Sequence[RankedKey]],
    *,
    depth: int,
    weights: Mapping[str, float],
    matches: Mapping[RankedKey, MatchType],
) -> list[FusedDocument[RankedKey]]:
    """Fuse rankings into one, best first. On equal scores, the rank in the earlier ranking decides.

    The score is the sum of weight / (60 + rank) over the rankings, divided by its highest possible value. A document
    that a ranking lacks has the rank depth + 1 there. Exact matches are first: a phrase adds 4 to the score, all words
    3, literal parts 2, a prefix 1.

    Args:
        rankings: Name → documents, best first, each once.
        depth: Number of documents that each ranking may have.
        weights: Ranking → weight, above 0.
        matches: The exact matches, which may be in no ranking.
    """
    ranks: dict[RankedKey, dict[str, int]] = {}
    for name, ranking in rankings.items():
        for rank, key in enumerate(ranking, start=1):
            ranks.setdefault(key, {})[name] = rank
    for key in matches:
        ranks.setdefault(key, {})
    highest = sum(weights[name] for name in rankings) / (_RANK_CONSTANT + 1)

    def score(key: RankedKey) -> float:
        places = ranks[key]
        sums = sum(weights[name] / (_RANK_CONSTANT + places.get(name, depth + 1)) for name in rankings)
        return sums / highest + (matches[key].added_score if key in matches else 0.0)

    fused = [FusedDocument(key, score(key), places, matches.get(key)) for key, places in ranks.items()]
    return sorted(fused, key=lambda document: -document.score)
