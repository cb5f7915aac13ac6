"""Divide the pairs of a corpus into those to train on, those that choose the checkpoint, and held-out queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from es_sbert.adaptation.pair_corpus import PairDocument
from es_sbert.diagnostics.index_calibration import LabelledQuery
from es_sbert.errors import SourceError
from es_sbert.evaluation.exact_search import search_exact
from es_sbert.training.hard_negatives import normalized_text

# Fewer are refused: a model would hardly change, and an interval would say nothing.
MIN_TRAINED, MIN_HELD_OUT = 50, 20
# As for `es-sbert duplicates`.
NEAR_DUPLICATE_COSINE = 0.95
# Of the pairs at most this share is held out, and of the others this share chooses the checkpoint.
_MOST_HELD_OUT, _DEV_SHARE, _MOST_DEV = 0.2, 0.1, 500


@dataclass(frozen=True)
class QueryPair:
    """A query and a document that is relevant to it.

    Attributes:
        query: The query.
        row: Of the document in the corpus.
    """

    query: str
    row: int


@dataclass(frozen=True)
class HeldOutQuery:
    """A query for the evaluation.

    Attributes:
        text: The query.
        rows: Of all documents that are relevant to it.
    """

    text: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class QuerySplit:
    """The parts; no query and no text of one part is in another.

    Attributes:
        train, dev: Pairs.
        held_out: Queries to evaluate models with.
        dropped: Pairs that were dropped because their query or their text occurs in another part.
    """

    train: tuple[QueryPair, ...]
    dev: tuple[QueryPair, ...]
    held_out: tuple[HeldOutQuery, ...]
    dropped: int

    @property
    def held_out_rows(self) -> frozenset[int]:
        """Rows of the documents that are relevant to the held-out queries."""
        return frozenset(row for query in self.held_out for row in query.rows)

    def without(self, rows: Set[int]) -> QuerySplit:
        """The split without pairs of these documents.

        Raises:
            SourceError: too few pairs are left.
        """
        train, dev = (tuple(pair for pair in pairs if pair.row not in rows) for pairs in (self.train, self.dev))
        split = replace(self, train=train, dev=dev)
        _check_enough(split)
        return split


def split_queries(
    documents: Sequence[PairDocument],
    *,
    held_out: int,
    most_trained: int,
    labelled: Sequence[LabelledQuery] | None = None,
    extra: Iterable[QueryPair] = (),
) -> QuerySplit:
    """Divide the pairs by document.

    Args:
        documents: The corpus, in random order.
        held_out: Number of held-out queries; fewer if there are not five times as many pairs.
        most_trained: Largest number of pairs to train on.
        labelled: Queries to evaluate with instead of those of held-out documents: documents whose `_id` is in `ids` are
            relevant.
        extra: Further pairs to train on, such as those of a search log.

    Raises:
        SourceError: there are too few pairs or queries.
    """
    pairs = [QueryPair(document.query, row) for row, document in enumerate(documents) if document.query is not None]
    if labelled is None:
        count = min(held_out, int(len(pairs) * _MOST_HELD_OUT))
        chosen, pairs = pairs[:count], pairs[count:]
        evaluated = _with_equal_documents(chosen, documents)
        texts = [documents[row].text for query in evaluated for row in query.rows]
    else:
        evaluated, texts = _labelled_queries(labelled, documents), []
    extra = list(extra)
    asked = {pair.row for pair in extra}  # their documents are trained on
    dev = [pair for pair in pairs if pair.row not in asked][: min(_MOST_DEV, int(len(pairs) * _DEV_SHARE))]
    chosen_dev = set(dev)
    train = [*extra, *(pair for pair in pairs if pair not in chosen_dev)]
    taken = {normalized_text(text) for text in [*texts, *(query.text for query in evaluated)]}
    kept_dev = _without(dev, taken, documents)
    taken |= {normalized_text(text) for pair in kept_dev for text in (pair.query, documents[pair.row].text)}
    kept_train = _without(train, taken, documents)
    dropped = len(dev) - len(kept_dev) + len(train) - len(kept_train)
    split = QuerySplit(tuple(kept_train[:most_trained]), tuple(kept_dev), evaluated, dropped)
    _check_enough(split)
    return split


def _without(pairs: Iterable[QueryPair], taken: set[str], documents: Sequence[PairDocument]) -> list[QueryPair]:
    """The pairs with neither a query nor a text that is taken."""
    return [
        pair
        for pair in pairs
        if normalized_text(pair.query) not in taken and normalized_text(documents[pair.row].text) not in taken
    ]


def _with_equal_documents(pairs: Sequence[QueryPair], documents: Sequence[PairDocument]) -> tuple[HeldOutQuery, ...]:
    """A query of each different text, with all documents that have this query, or a text of one that has it."""
    by_query: dict[str, list[int]] = {}
    by_text: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        by_text.setdefault(normalized_text(document.text), []).append(row)
        if document.query is not None:
            by_query.setdefault(normalized_text(document.query), []).append(row)
    queries: dict[str, HeldOutQuery] = {}
    for pair in pairs:
        key = normalized_text(pair.query)
        rows = {equal for row in by_query[key] for equal in by_text[normalized_text(documents[row].text)]}
        queries.setdefault(key, HeldOutQuery(pair.query, tuple(sorted(rows))))
    return tuple(queries.values())


def _labelled_queries(labelled: Sequence[LabelledQuery], documents: Sequence[PairDocument]) -> tuple[HeldOutQuery, ...]:
    """The queries that have a relevant document in the corpus."""
    rows: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        rows.setdefault(document.id, []).append(row)
    found = (HeldOutQuery(query.text, tuple(row for id in query.ids for row in rows.get(id, ()))) for query in labelled)
    return tuple(query for query in found if query.rows)


def labelled_pairs(labelled: Sequence[LabelledQuery], documents: Sequence[PairDocument]) -> list[QueryPair]:
    """The pairs of labelled queries, one for each relevant document that is in the corpus."""
    return [QueryPair(query.text, row) for query in _labelled_queries(labelled, documents) for row in query.rows]


def near_duplicates(vectors: NDArray[np.float32], held_out: Sequence[int]) -> frozenset[int]:
    """Rows of the documents whose text is nearly that of a held-out document: an earlier version of it, for example.

    Args:
        vectors: Of all documents. *Shape:* ``(documents, dimensions)``.
        held_out: Rows of the held-out documents; they are not among the result.
    """
    others = np.setdiff1d(np.arange(len(vectors)), held_out)
    if not len(held_out) or not len(others):
        return frozenset()
    _, cosines = search_exact(vectors[others], vectors[list(held_out)], 1)
    return frozenset(others[cosines[:, 0] >= NEAR_DUPLICATE_COSINE].tolist())


def _check_enough(split: QuerySplit) -> None:
    for part, count, least in (
        ("pairs to train on", len(split.train), MIN_TRAINED),
        ("held-out queries", len(split.held_out), MIN_HELD_OUT),
        ("pairs to choose the checkpoint", len(split.dev), 2),
    ):
        if count < least:
            raise SourceError(
                f"there are {count:,} {part}, and at least {least} are needed",
                "Adapt to an index with more documents, choose other fields (--title-field, --body-field, --pairs), or "
                "raise --documents.",
            )
