"""Hard negatives: texts that a ranking places near a query although they are not relevant to it.

Most texts that rank high for a query and are not labeled are in fact relevant (Qu et al. 2021, RocketQA, arXiv
2010.08191). A candidate is therefore dropped unless its cosine with the query is lower than that of the positive by a
margin (de Souza P. Moreira et al. 2024, NV-Retriever, arXiv 2407.15831), and, if there is a reranker, unless its score
is lower than the positive's as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.errors import SourceError
from es_sbert.evaluation.evaluated_models import PairScorer
from es_sbert.evaluation.retrieval import search_exact, unit_vectors
from es_sbert.messages import pluralize
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from es_sbert.training.recipe import HardNegativesSpec
from es_sbert.training.teacher_labels import TorchPairScorer, save_array
from es_sbert.training.training_examples import Examples

# Candidates that the reranker scores for each negative that is needed.
_RERANKED_PER_NEGATIVE = 4

Rows = NDArray[np.int64]


def merge_rankings(rankings: Sequence[Rows], first_rank: int, last_rank: int) -> list[list[int]]:
    """Merge the parts of several rankings between two ranks: take documents in turn, each once per query.

    Args:
        rankings: Rows of documents, best first; −1 where a ranking ends. *Shape:* ``(queries, ranks)`` each.
        first_rank, last_rank: From 1, both inclusive.
    """
    merged = []
    for rows in zip(*(ranking[:, first_rank - 1 : last_rank].tolist() for ranking in rankings), strict=True):
        turns = (row for turn in zip_longest(*rows, fillvalue=-1) for row in turn)
        merged.append([row for row in dict.fromkeys(turns) if row >= 0])
    return merged


def keep_below_margin(
    candidates: Sequence[Sequence[int]],
    positives: Sequence[Sequence[int]],
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    margin: float,
) -> list[list[int]]:
    """Keep the candidates that the model itself places clearly below the positive, in their order.

    Args:
        candidates: Rows of documents for each query.
        positives: Rows of the documents that are relevant to each query, the pair's own first.
        queries, documents: Vectors of unit length. *Shape:* ``(queries, dimensions)``, ``(documents, dimensions)``.
        margin: Minimum difference between the cosine of the pair's own positive and that of a candidate.
    """
    kept = []
    for query, rows, relevant in zip(queries, candidates, positives, strict=True):
        highest = float(query @ documents[relevant[0]]) - margin
        cosines = documents[list(rows)] @ query  # (candidates,)
        right = set(relevant)
        kept.append(
            [row for row, cosine in zip(rows, cosines.tolist(), strict=True) if cosine <= highest and row not in right]
        )
    return kept


def keep_below_reranker(
    candidates: Sequence[Sequence[int]],
    positives: Sequence[Sequence[int]],
    queries: Sequence[str],
    documents: Sequence[str],
    reranker: PairScorer,
) -> list[list[int]]:
    """Keep the candidates that a reranker scores lower than the pair's own positive, in their order.

    Args:
        candidates, positives: As for `keep_below_margin`.
        queries, documents: The texts.
        reranker: Scores a query and a document.
    """
    numbered = [(number, row) for number, rows in enumerate(candidates) for row in rows]
    first_positives = [relevant[0] for relevant in positives]
    limits = reranker.score(queries, [documents[row] for row in first_positives])  # (queries,)
    scores = reranker.score([queries[number] for number, _ in numbered], [documents[row] for _, row in numbered])
    kept: list[list[int]] = [[] for _ in candidates]
    for (number, row), score in zip(numbered, scores.tolist(), strict=True):
        if score < limits[number]:
            kept[number].append(row)
    return kept


def fill_up(
    candidates: Sequence[Sequence[int]], positives: Sequence[Sequence[int]], documents: int, count: int, seed: int
) -> Rows:
    """Take the first candidates of each query, and add random documents if there are too few.

    Args:
        candidates, positives: As for `keep_below_margin`.
        documents: Number of documents: at least the number of positives of any query plus `count`.
        count: Negatives per query.
        seed: Seed of the random documents.

    Returns:
        *Shape:* ``(queries, count)``, the rows of one query all different.
    """
    random = np.random.default_rng(seed)
    chosen = np.empty((len(candidates), count), dtype=np.int64)
    for number, (rows, relevant) in enumerate(zip(candidates, positives, strict=True)):
        filled = list(rows[:count])
        excluded = {*filled, *relevant}
        while len(filled) < count:
            row = int(random.integers(documents))
            if row not in excluded:
                filled.append(row)
                excluded.add(row)
        chosen[number] = filled
    return chosen


def choose_negatives(
    rankings: Sequence[Rows],
    positives: Sequence[Sequence[int]],
    texts: tuple[Sequence[str], Sequence[str]],
    vectors: tuple[NDArray[np.float32], NDArray[np.float32]],
    spec: HardNegativesSpec,
    reranker: PairScorer | None = None,
) -> Rows:
    """Choose the hard negatives of each query.

    Args:
        rankings: Rows of documents, best first, −1 where a ranking ends. *Shape:* ``(queries, ranks)`` each.
        positives: Rows of the documents that are relevant to each query, the pair's own first; also those of equal
            text.
        texts: The queries and the documents.
        vectors: Their vectors, of any length. *Shape:* ``(queries, dimensions)``, ``(documents, dimensions)``.
        spec: Ranks, margin and count.
        reranker: Checks the candidates too.

    Returns:
        *Shape:* ``(queries, spec.count)``.

    Raises:
        SourceError: there are too few documents.
    """
    queries, documents = (unit_vectors(side) for side in vectors)
    most = max(map(len, positives), default=0)
    if len(documents) < most + spec.count:
        raise SourceError(
            f"{len(documents):,} different texts are too few for {spec.count} negatives per query",
            "Use more documents, or lower hard_negatives.count.",
        )
    candidates = merge_rankings(rankings, *spec.ranks)
    margin = -math.inf if spec.margin is None else spec.margin
    candidates = keep_below_margin(candidates, positives, queries, documents, margin)
    if reranker is not None:
        candidates = [rows[: spec.count * _RERANKED_PER_NEGATIVE] for rows in candidates]
        candidates = keep_below_reranker(candidates, positives, *texts, reranker)
    return fill_up(candidates, positives, len(documents), spec.count, spec.seed)


def normalized_text(text: str) -> str:
    """Normalize the case and white space of a text: most tokenizers ignore such differences."""
    return " ".join(text.split()).casefold()


def relevant_rows(queries: Sequence[str], positives: Sequence[int], documents: Sequence[str]) -> list[list[int]]:
    """Find all documents that must not be negatives of a query: its positives in any pair, and the query itself.

    Args:
        queries: The query of each pair.
        positives: Row of each pair's positive.
        documents: The documents, whose texts are all different.

    Returns:
        Rows of documents for each pair, its own positive first.
    """
    rows_of: dict[str, dict[int, None]] = {}
    by_text = {normalized_text(text): row for row, text in enumerate(documents)}
    keys = [normalized_text(query) for query in queries]
    for key, row in zip(keys, positives, strict=True):
        rows_of.setdefault(key, {})[row] = None
    for key, rows in rows_of.items():
        if key in by_text:
            rows[by_text[key]] = None
    return [[row, *(other for other in rows_of[key] if other != row)] for key, row in zip(keys, positives, strict=True)]


def add_hard_negatives(
    examples: Examples,
    spec: HardNegativesSpec | None,
    cache: Path,
    device: str,
    report: Callable[[str], None],
    *,
    one_each: bool = False,
) -> Examples:
    """Mine negatives for each pair among the positives of all pairs; return the examples unchanged if `spec` is None.

    Args:
        examples: Pairs of anchor and positive.
        spec: The models, ranks and margin.
        cache: File (.npy) that stores the negatives, so that a resumed run uses the same ones.
        device: Device of the models, as torch names it.
        report: Called with progress messages.
        one_each: Whether an example of the objective has a single negative.

    Returns:
        The examples with `spec.count` more columns; with `one_each`, `spec.count` rows of each with one more column.

    Raises:
        ModelError: a model cannot be opened.
        SourceError: there are too few positives.
        OutputError: the cache cannot be written.
    """
    if spec is None:
        return examples
    anchors, positives = examples.texts
    rows: dict[str, int] = {}
    documents: list[str] = []
    for text in positives:
        if rows.setdefault(normalized_text(text), len(documents)) == len(documents):
            documents.append(text)
    if not cache.exists():
        report(f"Mining negatives of the {pluralize(len(examples), 'pair')} of {examples.name} with {spec.model}")
        encoder = open_siamese_encoder(resolve_model(spec.model), name=spec.model).to(device)
        vectors = encoder.embed(anchors, "query"), encoder.embed(documents, "document")
        relevant = relevant_rows(anchors, [rows[normalized_text(text)] for text in positives], documents)
        nearest, _ = search_exact(*vectors, spec.ranks[1])
        reranker = None if spec.reranker is None else TorchPairScorer(spec.reranker, device)
        save_array(cache, choose_negatives([nearest], relevant, (anchors, documents), vectors, spec, reranker))
    chosen = np.load(cache)  # (pairs, count)
    if one_each:
        repeated = [[text for text in column for _ in range(spec.count)] for column in examples.texts]
        negatives = [documents[row] for row in chosen.flatten().tolist()]
        return replace(examples, texts=(*repeated, negatives), lines=np.repeat(examples.lines, spec.count))
    columns = [[documents[row] for row in column] for column in chosen.T.tolist()]
    return replace(examples, texts=(*examples.texts, *columns))
