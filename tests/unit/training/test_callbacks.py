"""Schedule, course of a run, checkpoints, dev scores: the pure parts around the trainer."""

from dataclasses import replace

import numpy as np
import pytest

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


def test_dev_texts_get_the_prompts_of_their_roles() -> None:
    prompted = Fixed({"query: x": [1, 0], "query: y": [0, 1], "document: a": [1, 0.1], "document: b": [0, 1]})
    data = DevData("pairs", (["x", "y"], ["a", "b"]), None, ("query", "document"))
    assert dev_score(prompted, data) == 100
    one_role = Fixed({"query: x": [1, 0], "query: y": [0, 1], "a": [0, 1], "b": [1, 0]})
    assert dev_score(one_role, replace(data, kinds=("query", None))) == 50
