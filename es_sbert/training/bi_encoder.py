"""The bi-encoder's training task: sentence vectors of every text column, an objective over the joint batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from es_sbert.evaluation.models import Embedder
from es_sbert.networks.folder import save_siamese
from es_sbert.networks.siamese import SiameseEncoder
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.tokens import TokenColumn
from es_sbert.training.distributed import gather
from es_sbert.training.objectives.objective import Objective
from es_sbert.training.task import Batch, TrainingTask

# One pass over all columns has less overhead than one a column, unless it makes short texts as long as long ones.
_MERGE_BELOW = 1.25


class BiEncoderTask(TrainingTask):
    """A siamese encoder with its objectives.

    Args:
        encoder: The encoder.
        objectives: Data set → objective; several data sets may share one.
        prompts: Data set → the prompt of each text column, where there are any.
        mini_batch: Texts whose activations are held at a time; None: those of the whole batch.
    """

    def __init__(
        self,
        encoder: SiameseEncoder,
        objectives: Mapping[str, Objective],
        *,
        prompts: Mapping[str, Sequence[str]] | None = None,
        mini_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        different = list(dict.fromkeys(objectives.values()))
        self.objectives = nn.ModuleList(different)
        self._objective_of = {dataset: different.index(objective) for dataset, objective in objectives.items()}
        self._prompts = prompts or {}
        self._mini_batch = mini_batch
        self._columns: dict[str, list[TokenColumn]] = {}

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        columns = self._tokenized(examples)
        return np.max([column.lengths for column in columns], axis=0)  # type: ignore[no-any-return]

    def _tokenized(self, examples: Examples) -> list[TokenColumn]:
        if examples.name not in self._columns:
            prompts = self._prompts.get(examples.name) or [""] * len(examples.texts)
            self._columns[examples.name] = [
                TokenColumn(texts, lambda part, prompt=prompt: self.encoder.tokenize(part, prompt))  # type: ignore[misc]
                for texts, prompt in zip(examples.texts, prompts, strict=True)
            ]
        return self._columns[examples.name]

    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """A batch: `passes`, of all columns together or one a column, each with `ids` and `mask` ``(texts, tokens)``;
        `columns`, how many there are; `labels`, where the objective wants some.
        """
        columns = [[column[row] for row in rows] for column in self._tokenized(examples)]
        longest = [max(map(len, column)) for column in columns]
        merged = max(longest) * len(columns) <= _MERGE_BELOW * sum(longest)
        passes = [[row for column in columns for row in column]] if merged else columns
        padded = [self.encoder.pad(texts) for texts in passes]
        batch: dict[str, object] = {
            "passes": [{"ids": ids, "mask": mask} for ids, mask in padded],
            "columns": len(columns),
        }
        if examples.labels is not None:
            batch["labels"] = torch.from_numpy(np.ascontiguousarray(examples.labels[np.asarray(rows)]))
        return batch

    def forward(self, dataset: str, batch: Batch) -> Tensor:
        objective = self.objectives[self._objective_of[dataset]]
        parts = [self._encode(part["ids"], part["mask"]) for part in batch["passes"]]  # each (texts, dimensions)
        if len(parts) == 1:
            parts = list(parts[0].chunk(batch["columns"]))  # each (examples, dimensions)
        labels = gather(batch["labels"]) if "labels" in batch else None
        loss: Tensor = objective([gather(part) for part in parts], labels)
        return loss

    def _encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Vectors of one pass, ``(texts, dimensions)``; in mini-batches, each is computed again for the gradients."""
        size = self._mini_batch
        if size is None or len(ids) <= size or not torch.is_grad_enabled():
            vectors: Tensor = self.encoder(ids, mask)
            return vectors
        parts = []
        for part_ids, part_mask in zip(ids.split(size), mask.split(size), strict=True):
            longest = int(part_mask.sum(dim=1).max())
            inputs = part_ids[:, :longest], part_mask[:, :longest]
            parts.append(checkpoint(self.encoder, *inputs, use_reentrant=False))
        return torch.cat(parts)

    def measured(self) -> Embedder:
        return self.encoder

    def save(self, folder: Path, *, name: str) -> None:
        self.encoder.model = self.encoder.model.model_copy(update={"name": name})
        save_siamese(self.encoder, folder)
