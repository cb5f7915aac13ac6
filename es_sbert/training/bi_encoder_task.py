"""A siamese encoder with its objectives, as the trainer uses it: batches of token ids, and their loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from es_sbert.networks.siamese_encoder import SiameseEncoder, save_siamese_encoder
from es_sbert.training.losses import Objective
from es_sbert.training.training_device import gather
from es_sbert.training.training_examples import Examples

# Token ids of a text, *shape* ``(tokens,)``.
Tokens = NDArray[np.int64]

# Texts tokenized at a time: the tokenizer's own objects are many times as large as their ids.
_SLICE = 16_384


class TokenColumn:
    """Token ids of many texts, in one flat array.

    Args:
        texts: The texts.
        tokenize: Texts → one int64 array of token ids each.

    Attributes:
        lengths: Tokens of each text, *shape* ``(texts,)``.
    """

    def __init__(self, texts: Sequence[str], tokenize: Callable[[Sequence[str]], list[Tokens]]) -> None:
        parts, lengths = [np.empty(0, dtype=np.int32)], []
        for start in range(0, len(texts), _SLICE):
            rows = tokenize(texts[start : start + _SLICE])
            parts.append(np.concatenate(rows).astype(np.int32))  # (tokens of the slice,)
            lengths += [len(row) for row in rows]
        self._flat = np.concatenate(parts)  # (tokens,)
        self.lengths = np.array(lengths, dtype=np.int64)
        self._ends = np.cumsum(self.lengths)  # (texts,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tokens:
        """Token ids of one text, *shape* ``(tokens,)``."""
        end = self._ends[row]
        return self._flat[end - self.lengths[row] : end].astype(np.int64)


# A collated batch: name → tensors, nested for the text columns. The trainer moves it to the device.
Batch = Mapping[str, Any]


# One pass over all columns has less overhead than one per column, unless it pads short texts to the length of long
# ones.
_MAX_PADDING_RATIO = 1.25


class BiEncoderTask(nn.Module):
    """A siamese encoder with its objectives, one for each data set.

    It holds every trained parameter: its `state_dict` is the whole checkpoint.

    Args:
        encoder: The encoder.
        objectives: Data set → objective; several data sets may share one.
        prompts: Data set → the prompt of each text column; data sets without prompts may be missing.
        mini_batch: Number of texts whose activations are in memory at once; None: all texts of the batch.
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
        self._token_cache: dict[str, list[TokenColumn]] = {}

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Count the tokens of each example's longest text, *shape* ``(examples,)``, for sorting batches by length."""
        longest: NDArray[np.int64] = np.max([column.lengths for column in self.tokenized(examples)], axis=0)
        return longest

    def tokenized(self, examples: Examples) -> list[TokenColumn]:
        """Tokenize the text columns of a data set, once: that is most of the host's work for a batch."""
        if examples.name not in self._token_cache:
            prompts = self._prompts.get(examples.name) or [""] * len(examples.texts)
            self._token_cache[examples.name] = [
                TokenColumn(texts, lambda part, prompt=prompt: self.encoder.tokenize(part, prompt))  # type: ignore[misc]
                for texts, prompt in zip(examples.texts, prompts, strict=True)
            ]
        return self._token_cache[examples.name]

    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """Make a batch of rows of a data set; its tensors stay on the CPU.

        It has `passes`, one for all columns or one per column, each a list of mini-batches as `SiameseEncoder.inputs`
        returns them; `columns`, their number; `labels`, if the objective needs them.
        """
        columns = [[column[row] for row in rows] for column in self.tokenized(examples)]
        longest = [max(map(len, column)) for column in columns]
        merged = max(longest) * len(columns) <= _MAX_PADDING_RATIO * sum(longest)
        passes = [[row for column in columns for row in column]] if merged else columns
        batch: dict[str, object] = {
            "passes": [[self.encoder.inputs(part) for part in self._mini_batches(texts)] for texts in passes],
            "columns": len(columns),
        }
        if examples.labels is not None:
            batch["labels"] = torch.from_numpy(np.ascontiguousarray(examples.labels[np.asarray(rows)]))
        return batch

    def _mini_batches(self, texts: Sequence[Tokens]) -> list[Sequence[Tokens]]:
        """Split into mini-batches on the host, which knows the lengths: reading them from a GPU would block."""
        size = self._mini_batch or len(texts)
        return [texts[start : start + size] for start in range(0, len(texts), size)]

    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """Compute the loss of a batch of one data set: a scalar, the mean over the joint batch of all processes.

        Args:
            dataset: Name of the data set.
            batch: As `collate` returned it; with several processes also `sizes`, the examples of each process.
        """
        objective = self.objectives[self._objective_of[dataset]]
        columns = [self._encode(mini_batches) for mini_batches in batch["passes"]]  # each (texts, dimensions)
        if len(columns) == 1:
            columns = list(columns[0].chunk(batch["columns"]))  # each (examples, dimensions)
        sizes = batch.get("sizes", ())
        labels = gather(batch["labels"], sizes) if "labels" in batch else None
        loss: Tensor = objective([gather(column, sizes) for column in columns], labels)
        return loss

    def _encode(self, mini_batches: Sequence[Batch]) -> Tensor:
        """Compute the vectors of one pass, ``(texts, dimensions)``; each of several mini-batches is computed again for
        the gradients.
        """
        if len(mini_batches) == 1:
            vectors: Tensor = self.encoder(**mini_batches[0])
            return vectors
        return torch.cat(
            [checkpoint(self.encoder, part["ids"], part["mask"], use_reentrant=False) for part in mini_batches]
        )

    def save(self, folder: Path, *, name: str) -> None:
        """Write the trained model to a new folder, without the objectives' heads.

        Raises:
            OSError: the disk is full, or the folder cannot be written to.
        """
        self.encoder.model = self.encoder.model.model_copy(update={"name": name})
        save_siamese_encoder(self.encoder, folder)
