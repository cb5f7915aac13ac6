"""The poly-encoder: losses against loops, what it starts from and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from es_sbert.errors import RecipeInvalid, UsageError
from es_sbert.evaluation.evaluated_models import PairScorer
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from es_sbert.training.objective_settings import (
    InBatchSpec,
    MatryoshkaSpec,
    ObjectiveSpec,
    RegressionSpec,
    SoftmaxSpec,
)
from es_sbert.training.open_task import open_poly_encoder_task
from es_sbert.training.pair_tasks import PolyEncoderTask
from es_sbert.training.recipe import DenseSpec, ModelKind, ModelSpec
from tests.unit.checkpoints import write_checkpoint
from tests.unit.training.pairs.support import FIRST, SCORES, SECOND, examples, losses

REGRESSION = RegressionSpec(kind="regression")
IN_BATCH = InBatchSpec(kind="in-batch", scale=10.0)
NEGATIVES = SECOND[::-1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("poly") / "bert", hidden=24)


def open_task(base: Path, objective: ObjectiveSpec = REGRESSION, codes: int = 5) -> PolyEncoderTask:
    torch.manual_seed(0)
    spec = ModelSpec(base=str(base), kind=ModelKind.POLY_ENCODER, codes=codes)
    task = open_poly_encoder_task(spec, {"toy": objective})
    # Codes as training might leave them: told apart.
    nn.init.normal_(task.network.codes)
    task.eval()
    return task


def test_regression_loss_is_the_squared_score_error(base: Path) -> None:
    task = open_task(base)
    scores = task.network.score(FIRST, SECOND)
    loss = task("toy", task.collate(examples(), range(6)))
    assert loss.item() == pytest.approx(np.mean((scores - np.array(SCORES)) ** 2), abs=1e-6)


@pytest.mark.parametrize("negatives", [(), (NEGATIVES,)])
def test_in_batch_loss_is_cross_entropy_over_all_candidates(base: Path, negatives: tuple[list[str], ...]) -> None:
    task = open_task(base, IN_BATCH)
    rows = [0, 1, 2, 3]
    candidates = [column[row] for column in (SECOND, *negatives) for row in rows]
    by_hand = 0.0
    for place, row in enumerate(rows):
        logits = 10 * task.network.score([FIRST[row]] * len(candidates), candidates).astype(np.float64)
        by_hand += np.log(np.exp(logits).sum()) - logits[place]
    loss = task("toy", task.collate(examples(None, FIRST, SECOND, *negatives), rows))
    assert loss.item() == pytest.approx(by_hand / len(rows), abs=1e-5)


@pytest.mark.parametrize(("objective", "labels"), [(REGRESSION, SCORES), (IN_BATCH, None)])
def test_training_lowers_the_loss(base: Path, objective: ObjectiveSpec, labels: list[float] | None) -> None:
    task = open_task(base, objective)
    # "a man plays a guitar" stands twice as a context: only the first four pairs can all be told apart.
    data = examples(labels[:4] if labels else None, FIRST[:4], SECOND[:4])
    codes = task.network.codes.detach().clone()
    seen = losses(task, data, 40)
    assert seen[-1] < 0.6 * seen[0]
    assert not torch.equal(task.network.codes, codes)  # the codes are trained too


def test_new_poly_encoder_scores_close_to_its_base(base: Path) -> None:
    task = open_poly_encoder_task(ModelSpec(base=str(base), kind=ModelKind.POLY_ENCODER), {"toy": REGRESSION})
    assert task.network.codes.shape == (64, 24)
    encoder = open_siamese_encoder(base)
    cosines = (encoder.embed(FIRST) * encoder.embed(SECOND)).sum(axis=1)  # of unit length
    np.testing.assert_allclose(task.network.score(FIRST, SECOND), cosines, atol=0.15)


def test_score_is_independent_of_padding_and_batch(base: Path) -> None:
    network = open_task(base).network
    together = network.score(FIRST, SECOND)
    alone = [network.score([first], [second])[0] for first, second in zip(FIRST, SECOND, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert np.ptp(together) > 1e-2


def test_pair_order_matters(base: Path) -> None:
    network = open_task(base).network
    assert not np.allclose(network.score(FIRST, SECOND), network.score(SECOND, FIRST), atol=1e-3)


def test_equal_texts_are_encoded_once_per_side(base: Path) -> None:
    network = open_task(base).network
    firsts, seconds = [FIRST[0]] * 300 + [FIRST[1]] * 300, (SECOND[:3] * 200)
    seen: list[int] = []
    network.encoder.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    scores = network.score(firsts, seconds)
    assert sum(seen) == 3 + 2
    kinds = dict(zip(zip(firsts, seconds, strict=True), scores, strict=True))
    expected = network.score(*zip(*kinds, strict=True))
    np.testing.assert_allclose(list(kinds.values()), expected, atol=1e-6)
    np.testing.assert_allclose(
        scores, [kinds[pair] for pair in zip(firsts, seconds, strict=True)], atol=1e-6
    )  # every place is filled


def test_scoring_ignores_dropout_and_keeps_training_mode(base: Path) -> None:
    task = open_task(base).train()
    scorer = task.evaluated_model()
    assert isinstance(scorer, PairScorer)
    np.testing.assert_array_equal(scorer.score(FIRST, SECOND), scorer.score(FIRST, SECOND))
    assert task.network.training
    assert scorer.score([], []).shape == (0,)


def test_lengths_are_those_of_the_longer_text(base: Path) -> None:
    task = open_task(base)
    data = examples()
    columns = task.collate(data, [3])["columns"]
    assert task.lengths(data)[3] == max(column["ids"].shape[1] for column in columns)


def test_stage_continues_with_the_codes_of_the_previous_one(base: Path, tmp_path: Path) -> None:
    task = open_task(base)
    task.save(tmp_path / "first", name="first")
    spec = ModelSpec(base=str(tmp_path / "first"), kind=ModelKind.POLY_ENCODER, codes=5)
    second = open_poly_encoder_task(spec, {"toy": IN_BATCH})
    assert torch.equal(second.network.codes, task.network.codes)
    np.testing.assert_allclose(second.network.score(FIRST, SECOND), task.network.score(FIRST, SECOND), atol=1e-6)
    with pytest.raises(RecipeInvalid, match="with 5 codes, but the recipe has 64"):
        open_poly_encoder_task(ModelSpec(base=spec.base, kind=ModelKind.POLY_ENCODER), {"toy": IN_BATCH})


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (SoftmaxSpec(kind="softmax", classes=("a", "b")), "softmax"),
        (InBatchSpec(kind="in-batch", symmetric=True), "symmetric"),
        (RegressionSpec(kind="regression", matryoshka=MatryoshkaSpec(dimensions=(8,))), "matryoshka"),
    ],
)
def test_incompatible_objectives_are_rejected(base: Path, objective: ObjectiveSpec, message: str) -> None:
    with pytest.raises(RecipeInvalid, match=message):
        open_task(base, objective)


def test_dense_or_several_pooling_modes_are_rejected(base: Path) -> None:
    spec = ModelSpec(base=str(base), kind=ModelKind.POLY_ENCODER, dense=DenseSpec(out_features=24))
    with pytest.raises(RecipeInvalid, match="Dense layers or several pooling modes"):
        open_poly_encoder_task(spec, {"toy": REGRESSION})


def test_score_out_of_range_names_its_line(base: Path) -> None:
    task = open_task(base)
    with pytest.raises(RecipeInvalid, match=r"toy.tsv, line 2: the score -0.5 is not between 0 and 1"):
        task.collate(examples([-0.5, 0.2, 0.3, 0.1, 0.1, 0.1]), [0, 1])


def test_bad_texts_are_refused(base: Path) -> None:
    network = open_task(base).network
    with pytest.raises(UsageError, match="cannot be tokenized"):
        network.score(["fine"], ["\ud800"])
    with pytest.raises(UsageError, match="2 first texts and 1 second"):
        network.score(["one", "two"], ["one"])
