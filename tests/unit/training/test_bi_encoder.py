"""The bi-encoder's batches and gradients."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from es_sbert.runtime.siamese_encoder import open_siamese_encoder
from es_sbert.training import bi_encoder_task
from es_sbert.training.bi_encoder_task import BiEncoderTask
from es_sbert.training.losses import Objective, build_objective
from es_sbert.training.recipe import InBatchSpec, RegressionSpec
from es_sbert.training.training_examples import Examples
from tests.unit.training.support import STILL, write_model

LONG = "a very long sentence that goes on and on about nothing in particular at all"


def examples(name: str = "pairs", second: str = "a cat sleeps", labels: np.ndarray | None = None) -> Examples:
    """Twelve pairs."""
    first = [f"a man plays guitar {number}" for number in range(12)]
    return Examples(name, Path("pairs.tsv"), (first, [f"{second} {n}" for n in range(12)]), labels, np.arange(2, 14))


def scored(name: str = "pairs", second: str = "a cat sleeps") -> Examples:
    return examples(name, second, np.linspace(0, 1, 12, dtype=np.float32))


def regression() -> Objective:
    return build_objective(RegressionSpec(kind="regression"), 32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", config=STILL)


def gradients(task: BiEncoderTask, data: Examples, rows: list[int]) -> dict[str, torch.Tensor]:
    task.zero_grad()
    task(data.name, task.collate(data, rows)).backward()
    return {name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None}


def test_mini_batches_give_the_same_gradients(model: Path) -> None:
    data, rows = examples(), list(range(12))
    found = []
    for mini_batch in (None, 12, 5, 1):
        torch.manual_seed(0)
        objective = build_objective(InBatchSpec(kind="in-batch"), 32)
        task = BiEncoderTask(open_siamese_encoder(model), {"pairs": objective}, mini_batch=mini_batch)
        task.train()
        found.append(gradients(task, data, rows))
    assert len(found[0]) > 20
    for other in found[1:]:
        for name, gradient in found[0].items():
            torch.testing.assert_close(other[name], gradient, atol=1e-6, rtol=1e-4)


def test_mini_batches_repeat_their_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, what is computed again for the gradients must be what the loss saw."""
    task = BiEncoderTask(open_siamese_encoder(write_model(tmp_path / "model")), {"pairs": regression()}, mini_batch=4)
    task.train()

    def found() -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        return gradients(task, scored(), list(range(12)))

    again = found()
    # The same parts of the batch, their activations held and not computed again.
    monkeypatch.setattr(bi_encoder_task, "checkpoint", lambda encode, *inputs, use_reentrant: encode(*inputs))
    for name, gradient in found().items():
        torch.testing.assert_close(again[name], gradient, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("second", ["a cat sleeps", LONG])
def test_loss_is_the_objective_of_the_column_vectors(model: Path, second: str) -> None:
    task = BiEncoderTask(open_siamese_encoder(model), {"pairs": regression()}).eval()
    data = scored(second=second)
    u, v = (torch.from_numpy(task.encoder.embed(column)) for column in data.texts)
    expected = ((torch.cosine_similarity(u, v) - torch.from_numpy(data.labels)) ** 2).mean()
    with torch.no_grad():
        loss = task("pairs", task.collate(data, list(range(12))))
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-5)


def test_prompts_are_prepended_to_their_column(model: Path) -> None:
    prompted = BiEncoderTask(open_siamese_encoder(model), {"pairs": regression()}, prompts={"pairs": ["query: ", ""]})
    plain = BiEncoderTask(open_siamese_encoder(model), {"pairs": regression()})
    data = examples(second=LONG)
    by_hand = replace(data, texts=([f"query: {text}" for text in data.texts[0]], data.texts[1]))
    passes, expected = (task.collate(texts, [0, 1])["passes"] for task, texts in ((prompted, data), (plain, by_hand)))
    for (part,), (other,) in zip(passes, expected, strict=True):
        assert torch.equal(part["ids"], other["ids"])
