"""Schedule, course of a run, checkpoints, dev scores: the pure parts around the trainer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.cli.train import train_summary
from es_sbert.evaluation.pair_metrics import Similarity
from es_sbert.training.bi_encoder_task import TokenColumn
from es_sbert.training.recipe import RegressionSpec, TripletDistance, TripletSpec
from es_sbert.training.run_folder import last_complete_checkpoint, mark_checkpoint_complete, remove_checkpoints
from es_sbert.training.trainer import (
    checkpoint_steps,
    dev_score,
    metrics_csv,
    metrics_history,
    reciprocal_rank,
    triplet_distance,
)
from es_sbert.training.training_examples import DevData
from es_sbert.training.training_run import TrainingResult
from es_sbert.training.training_stage import StageResult, log_interval


def test_checkpoints_are_evenly_spaced_and_end_the_epoch() -> None:
    assert checkpoint_steps(30, 2) == {15, 30}
    assert checkpoint_steps(10, 3) == {4, 7, 10}
    assert checkpoint_steps(2, 5) == {1, 2}


@given(st.integers(1, 500), st.integers(1, 20))
def test_every_epoch_ends_with_a_checkpoint(steps: int, per_epoch: int) -> None:
    found = checkpoint_steps(steps, per_epoch)
    assert max(found) == steps
    assert len(found) == min(steps, per_epoch)
    assert min(found) >= 1


def test_log_interval_is_longer_on_cuda() -> None:
    """Each row of the log makes the host wait for the card."""
    assert [log_interval(steps, "cpu") for steps in (20, 90, 2000, 40_000)] == [1, 1, 10, 200]
    assert [log_interval(steps, "cuda") for steps in (20, 90, 2000, 40_000)] == [10, 10, 10, 200]


LOG = [
    {"eval_dev": 50.0, "step": 0, "epoch": 0},
    {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-5, "step": 10, "epoch": 0.5},
    {"loss": 0.4, "grad_norm": 0.9, "learning_rate": 2e-5, "step": 20, "epoch": 1.0},
    {"eval_dev": 60.0, "step": 20, "epoch": 1.0},
    {"train_runtime": 3.0, "train_loss": 0.45, "step": 20, "epoch": 1.0},
]


def test_metrics_history_has_one_row_per_step() -> None:
    rows = metrics_history(LOG)
    assert [row["step"] for row in rows] == [0, 10, 20]
    assert rows[0] == {"step": 0, "epoch": 0, "dev": 50.0}
    assert rows[2] == {"step": 20, "epoch": 1.0, "loss": 0.4, "grad_norm": 0.9, "learning_rate": 2e-5, "dev": 60.0}
    assert metrics_csv(rows).splitlines() == [
        "step,epoch,loss,learning_rate,grad_norm,dev",
        "0,0,,,,50.0",
        "10,0.5,0.5,1e-05,1.0,",
        "20,1.0,0.4,2e-05,0.9,60.0",
    ]


def checkpoint(folder: Path, step: int, *, complete: bool) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    if complete:
        mark_checkpoint_complete(path)
    return path


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    assert last_complete_checkpoint(tmp_path) is None
    older = checkpoint(tmp_path, 9, complete=True)
    newer = checkpoint(tmp_path, 100, complete=True)
    broken = checkpoint(tmp_path, 101, complete=False)
    (tmp_path / "checkpoint-notes").mkdir()
    assert last_complete_checkpoint(tmp_path) == newer
    remove_checkpoints(tmp_path, keep_complete=True)
    assert not broken.exists()
    assert older.exists()
    remove_checkpoints(tmp_path, keep_complete=False)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-notes"]


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


def test_reciprocal_rank_by_hand() -> None:
    anchors = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32)
    positives = np.array([[1, 0], [1, 0.1], [0, 1]], dtype=np.float32)
    # Ranks: first (cosine 1 beats 0.995 and 0); third (0.0995, behind 1 and above 0: second); last: 0.707, tied with
    # the first positive at 0.707 and behind 0.774: third.
    assert reciprocal_rank(anchors, positives) == pytest.approx(100 * (1 + 1 / 2 + 1 / 3) / 3)
    same = np.ones((4, 2), dtype=np.float32)
    assert reciprocal_rank(same, same) == pytest.approx(25)  # one vector for all ranks nothing


def test_triplets_are_measured_by_the_trained_distance() -> None:
    euclidean, manhattan = TripletSpec(kind="triplet"), TripletSpec(kind="triplet", distance=TripletDistance.MANHATTAN)
    scored = RegressionSpec(kind="regression")
    assert triplet_distance([euclidean, euclidean]) is Similarity.EUCLIDEAN
    assert triplet_distance([scored, manhattan]) is Similarity.MANHATTAN
    assert triplet_distance([euclidean, manhattan]) is Similarity.COSINE
    assert triplet_distance([scored]) is Similarity.COSINE


def test_token_column_returns_the_ids_of_each_text() -> None:
    texts = ["ab", "", "cde"]
    column = TokenColumn(texts, lambda part: [np.array([ord(c) for c in text], dtype=np.int64) for text in part])
    assert column.lengths.tolist() == [2, 0, 3]
    assert [column[n].tolist() for n in range(3)] == [[97, 98], [], [99, 100, 101]]
    assert column[0].dtype == np.int64
    assert len(TokenColumn([], lambda part: [])) == 0


def test_summary_says_whether_the_result_improved() -> None:
    stage = StageResult("fine-tune", 10, 1200, "dev accuracy × 100", 81.2, 86.1, 400, 2.0, 310.4, [])
    worse = replace(stage, name="again", start_dev=97.724, best_dev=97.722)
    unmeasured = replace(stage, name="bare", dev_name=None, start_dev=None, best_dev=None, best_step=None)
    lines = train_summary(TrainingResult(Path("tuned"), (stage, worse, unmeasured), "f" * 32), 12).splitlines()
    assert lines == [
        "fine-tune: 1,200 steps, 310 examples/s, dev accuracy × 100: 81.20 → 86.10 (+4.90) at step 400",
        "again: 1,200 steps, 310 examples/s, dev accuracy × 100: 97.72 → 97.72 (no better than the model it started "
        "from) at step 400",
        "bare: 1,200 steps, 310 examples/s",
        f"→ tuned (fingerprint {'f' * 32}), 12 s",
    ]
