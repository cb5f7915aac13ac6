"""Retrieval: exact search equals brute force in blocks of any size; figures equal sentence-transformers'."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from es_sbert.evaluation import ranking
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.ranking import mean_scores, measure_queries, rank_in_memory, search_exact
from tests.unit.evaluation.support import FixedEmbedder, ReferenceModel, random_embedder


def brute_force(queries: np.ndarray, documents: np.ndarray, k: int, own: np.ndarray | None) -> list[list[int]]:
    """Every cosine in float32, a stable sort of each row, the own document taken out."""
    unit = [each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-30) for each in (queries, documents)]
    cosines = unit[0] @ unit[1].T
    orders = np.argsort(-cosines, axis=1, kind="stable").tolist()
    left_out = own.tolist() if own is not None else [-1] * len(queries)
    return [[row for row in order if row != mine][:k] for order, mine in zip(orders, left_out, strict=True)]


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(1, 7),
    st.integers(1, 11),
    st.booleans(),
)
def test_exact_search_equals_brute_force_for_any_block_size(
    seed: int, queries: int, documents: int, k: int, query_block: int, document_block: int, excludes: bool
) -> None:
    random = np.random.default_rng(seed)
    # Few different directions along the axes: many ties, whose order must not depend on the blocks.
    corpus = np.eye(4, dtype=np.float32)[random.integers(0, 4, documents)]
    questions = random.integers(-2, 3, (queries, 4)).astype(np.float32)
    own = random.integers(-1, documents, queries) if excludes else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_QUERIES", query_block)
        patch.setattr(ranking, "_DOCUMENTS", document_block)
        rows, cosines = search_exact(questions, corpus, k, own)
    expected = brute_force(questions, corpus, k, own)
    assert [[row for row in found if row >= 0] for found in rows.tolist()] == expected
    assert (np.diff(cosines, axis=1)[np.isfinite(cosines[:, 1:])] <= 0).all()


def test_equals_sentence_transformers() -> None:
    queries, documents = [f"q{i}" for i in range(20)], [f"d{i:03}" for i in range(150)]
    random = np.random.default_rng(3)
    relevant = {query: set(random.choice(documents, size=random.integers(1, 8), replace=False)) for query in queries}
    embedder = random_embedder([*queries, *documents])
    evaluator = InformationRetrievalEvaluator(
        {query: query for query in queries},
        {document: document for document in documents},
        relevant,
        precision_recall_at_k=[100],
        write_csv=False,
    )
    expected = evaluator(ReferenceModel(embedder))  # type: ignore[arg-type]
    judgements = {query: dict.fromkeys(found, 1) for query, found in relevant.items()}
    data = RetrievalCollection(
        "random", {each: each for each in documents}, {each: each for each in queries}, judgements
    )
    result = mean_scores(measure_queries(rank_in_memory(embedder, data), judgements))
    assert result["ndcg@10"] / 100 == pytest.approx(expected["cosine_ndcg@10"], abs=1e-4)
    assert result["mrr@10"] / 100 == pytest.approx(expected["cosine_mrr@10"], abs=1e-4)
    assert result["map@100"] / 100 == pytest.approx(expected["cosine_map@100"], abs=1e-4)
    assert result["recall@100"] / 100 == pytest.approx(expected["cosine_recall@100"], abs=1e-4)


def test_equal_cosines_rank_by_document_id_from_the_end() -> None:
    embedder = FixedEmbedder({"x": [1, 0], "y": [0, 1], "z": [2, 0]})
    data = RetrievalCollection("ties", {"a": "x", "c": "z", "b": "y", "d": "x"}, {"q": "z"}, {"q": {"a": 1}})
    assert rank_in_memory(embedder, data) == {"q": ["d", "c", "a", "b"]}
