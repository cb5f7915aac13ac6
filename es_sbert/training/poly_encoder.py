"""Training of a poly-encoder (Humeau et al. 2020, arXiv 1905.01969)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from es_sbert.bundle.resolve import resolve_model
from es_sbert.errors import RecipeInvalid
from es_sbert.evaluation.models import PairScorer
from es_sbert.networks.pair_folder import is_poly_encoder, read_codes, save_poly_encoder
from es_sbert.networks.poly_encoder import PolyEncoder
from es_sbert.networks.siamese import SiameseEncoder
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.tokens import TokenColumn
from es_sbert.training.distributed import gather, joint_mean, rows_before
from es_sbert.training.objectives.settings import InBatch, ObjectiveSpec, Regression
from es_sbert.training.pair_labels import gold_scores
from es_sbert.training.recipe import ModelSpec
from es_sbert.training.start import open_start
from es_sbert.training.task import Batch, TrainingTask


class PolyEncoderTask(TrainingTask):
    """A poly-encoder and what it is trained for.

    `regression`: mean squared error between the score, a cosine, and the gold score. `in-batch`: cross-entropy of each
    context over all candidates of the joint batch, its own the right one (the paper's objective), on scores times the
    recipe's scale; hard negatives are candidates too.

    Args:
        network: The network.
        objectives: Data set → objective. The first text column of each holds the contexts.

    Raises:
        RecipeInvalid: an objective that is none of the two.
    """

    def __init__(self, network: PolyEncoder, objectives: Mapping[str, ObjectiveSpec]) -> None:
        super().__init__()
        for dataset, objective in objectives.items():
            _check(dataset, objective)
        self.network = network
        self.objectives = dict(objectives)
        self._columns: dict[str, list[TokenColumn]] = {}

    @classmethod
    def open(cls, spec: ModelSpec, objectives: Mapping[str, ObjectiveSpec]) -> PolyEncoderTask:
        """Start from the base of a recipe: with its codes where it is a poly-encoder, else with new random ones.

        New codes are small (standard deviation 1/√width, against token vectors of length about √width), so that they
        first attend to all tokens alike: training starts from the base's averaged token vectors.

        Raises:
            RecipeInvalid: settings or objectives that a poly-encoder does not have.
            ModelNotFound: there is no such base.
            BundleInvalid: a file of the base is missing or broken, or its weights are pickled.
            UnsupportedArchitecture: a module that es-sbert does not honour.
        """
        base = resolve_model(spec.base)
        encoder = open_start(base, spec)
        if encoder.model.dense or len(encoder.model.pooling) != 1:
            raise RecipeInvalid(
                f"a poly-encoder compares sentence vectors with token vectors, and {spec.base} as the recipe wants it "
                "has Dense layers or several pooling modes between them",
                "Take a base without Dense layers, leave `dense` out and name one pooling mode.",
            )
        if is_poly_encoder(base):
            codes = read_codes(base, encoder)
            if len(codes) != spec.codes:
                raise RecipeInvalid(
                    f"{spec.base} is a poly-encoder of {len(codes)} codes, the recipe wants {spec.codes}",
                    f"Set model.codes to {len(codes)}, or start from a model that is no poly-encoder.",
                )
        else:
            codes = torch.randn(spec.codes, encoder.dimensions) * encoder.dimensions**-0.5
        return cls(PolyEncoder(encoder, codes), objectives)

    @property
    def encoder(self) -> SiameseEncoder:
        """The siamese encoder within, as the other tasks name it."""
        return self.network.encoder

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        longest: NDArray[np.int64] = np.max([column.lengths for column in self._tokenized(examples)], axis=0)
        return longest

    def _tokenized(self, examples: Examples) -> list[TokenColumn]:
        if examples.name not in self._columns:
            self._columns[examples.name] = [TokenColumn(texts, self.encoder.tokenize) for texts in examples.texts]
        return self._columns[examples.name]

    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """`columns`, each as `SiameseEncoder.inputs` gives it; `labels` ``(batch,)`` float32 for `regression`.

        Raises:
            RecipeInvalid: a gold score lies outside the objective's range.
        """
        columns = self._tokenized(examples)
        batch: dict[str, object] = {
            "columns": [self.encoder.inputs([column[row] for row in rows]) for column in columns]
        }
        objective = self.objectives[examples.name]
        if isinstance(objective, Regression):
            batch["labels"] = gold_scores(examples, rows, objective.range)
        return batch

    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """The mean loss of the joint batch.

        Each process compares its own contexts with the candidates of all processes: what other processes' losses say
        of one's own candidates comes back through `gather`.
        """
        objective, sizes = self.objectives[dataset], batch.get("sizes", ())
        first, *others = batch["columns"]
        contexts = self.network.contexts(**first)  # (batch, m, width)
        columns = [self.network.candidates(**column) for column in others]  # each (batch, width)
        if isinstance(objective, InBatch):
            candidates = torch.cat([gather(column, sizes) for column in columns])  # (joint batch · columns, width)
            logits = objective.scale * self.network.compare(contexts, candidates.unsqueeze(0))
            before = rows_before(sizes)
            # Context i's own candidate: the positives are the first column.
            own = torch.arange(before, before + len(contexts), device=contexts.device)  # (batch,)
            return joint_mean(nn.functional.cross_entropy(logits, own, reduction="none"), sizes)
        scores = self.network.compare(contexts, columns[0].unsqueeze(1))[:, 0]  # (batch,)
        return joint_mean(nn.functional.mse_loss(scores, batch["labels"], reduction="none"), sizes)

    def measured(self) -> PairScorer:
        return self.network

    def save(self, folder: Path, *, name: str) -> None:
        self.encoder.model = self.encoder.model.model_copy(update={"name": name})
        save_poly_encoder(self.network, folder)


def _check(dataset: str, objective: ObjectiveSpec) -> None:
    if not isinstance(objective, Regression | InBatch):
        raise RecipeInvalid(
            f"{dataset}: a poly-encoder cannot be trained with the objective {objective.kind}",
            "Use regression (pairs with a score) or in-batch (pairs that belong together).",
        )
    if objective.matryoshka is not None:
        raise RecipeInvalid(
            f"{dataset}: matryoshka cuts sentence vectors, of which a poly-encoder has none for the first text",
            "Leave matryoshka out, or set the model's kind to bi-encoder.",
        )
    if isinstance(objective, InBatch) and objective.symmetric:
        raise RecipeInvalid(
            f"{dataset}: a poly-encoder reads contexts and candidates differently, so in-batch cannot be symmetric",
            "Set symmetric to false, or set the model's kind to bi-encoder.",
        )
