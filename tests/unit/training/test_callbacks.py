"""Schedule, course of a run, checkpoints, dev scores: the pure parts around the trainer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.evaluation.pair_metrics import Similarity
from es_sbert.training.trainer import checkpoint_steps, dev_score
from es_sbert.training.training_examples import DevData


def test_checkpoints_are_evenly_spaced_and_end_the_epoch() -> None:
    assert checkpoint_steps(30, 2) == {15, 30}
    assert checkpoint_steps(10, 3) == {4, 7, 10}
    assert checkpoint_steps(2, 5) == {1, 2}


class Fixed:
    """An embedder that looks its vectors up."""

    name = "fixed"

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self._vectors = vectors

    def embed(self, texts: list[str], kind: str | None = None) -> np.ndarray:
        return np.array([self._vectors[f"{kind}: {text}" if kind else text] for text in texts], dtype=np.float32)


MODEL = Fixed({"x": [1, 0], "near": [1, 0.1], "far": [0, 1], "long": [9, 0]})


def test_dev_scores_by_hand() -> None:
    sts = DevData("sts", (["x", "x", "x"], ["near", "far", "x"]), np.array([0.5, 0.1, 0.9], dtype=np.float32))
    assert dev_score(MODEL, sts) == pytest.approx(100)
    twins = DevData("duplicates", (["x", "x", "x"], ["near", "far", "x"]), np.array([1, 0, 0]))
    assert dev_score(MODEL, twins) == pytest.approx(50)  # its duplicate stands second
    triplets = DevData("triplet", (["x", "x"], ["near", "far"], ["far", "near"]), None)
    assert dev_score(MODEL, triplets) == 50
    # By cosine x is nearer to "long", by distance to "near".
    stretched = DevData("triplet", (["x"], ["long"], ["near"]), None)
    assert dev_score(MODEL, stretched) == 100
    assert dev_score(MODEL, stretched, Similarity.EUCLIDEAN) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1), st.integers(0, 99))
def test_score_of_pairs_is_the_reciprocal_rank_of_the_first_positive_among_distinct_texts(
    rows: list[tuple[int, int]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    vectors = {name: random.normal(size=3).tolist() for name in [*"abcdef", *"uvwxyz"]}
    pairs = [("abcdef"[anchor], "uvwxyz"[positive]) for anchor, positive in rows]
    relevant: dict[str, set[str]] = {}
    for anchor, positive in pairs:
        relevant.setdefault(anchor, set()).add(positive)

    def reciprocal_rank(anchor: str) -> float:
        unit = {text: np.array(vector) / np.linalg.norm(vector) for text, vector in vectors.items()}
        ranking = sorted({positive for _, positive in pairs}, key=lambda text: -(unit[anchor] @ unit[text]))
        return 1 / min(rank for rank, text in enumerate(ranking, 1) if text in relevant[anchor])

    data = DevData("pairs", ([anchor for anchor, _ in pairs], [positive for _, positive in pairs]), None)
    assert dev_score(Fixed(vectors), data) == pytest.approx(100 * np.mean([*map(reciprocal_rank, relevant)]))


def test_a_model_that_cannot_tell_texts_apart_has_the_lowest_score_of_pairs() -> None:
    model = Fixed({text: [1, 0] for text in ["x", "y", "a", "b", "c"]})
    data = DevData("pairs", (["x", "x", "y"], ["a", "b", "c"]), None)
    assert dev_score(model, data) == pytest.approx(100 * (1 / 2 + 1 / 3) / 2)


def test_dev_texts_get_the_prompts_of_their_roles() -> None:
    prompted = Fixed({"query: x": [1, 0], "query: y": [0, 1], "document: a": [1, 0.1], "document: b": [0, 1]})
    data = DevData("pairs", (["x", "y"], ["a", "b"]), None, ("query", "document"))
    assert dev_score(prompted, data) == 100
    one_role = Fixed({"query: x": [1, 0], "query: y": [0, 1], "a": [0, 1], "b": [1, 0]})
    assert dev_score(one_role, replace(data, kinds=("query", None))) == 50
