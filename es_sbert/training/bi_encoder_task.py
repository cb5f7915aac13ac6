"""The interface between trainer and network, and its implementation for bi-encoders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
from es_sbert.networks.siamese_encoder import SiameseEncoder, save_siamese_encoder
from es_sbert.runtime.tokenizer import TokenizedPairs
from es_sbert.training.losses import Objective
from es_sbert.training.training_device import gather
from es_sbert.training.training_examples import Examples

# Token ids of a text, *shape* ``(tokens,)``.
Tokens = NDArray[np.int64]

# Texts tokenized at a time: the tokenizer's own objects are many times as large as their ids.
_SLICE = 16_384


class TokenRows:
    """Rows of numbers, one per text or pair, in one flat array.

    Args:
        parts: The rows in order; each part as a flat array, *shape* ``(numbers of the part,)``.
        lengths: *Shape:* ``(rows,)``.
    """

    def __init__(self, parts: Sequence[NDArray[np.integer]], lengths: Sequence[int]) -> None:
        self._flat = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)  # (numbers,)
        self.lengths = np.array(lengths, dtype=np.int64)
        """Numbers of each row, *shape* ``(rows,)``."""
        self._ends = np.cumsum(self.lengths)  # (rows,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        """One row, *shape* ``(numbers,)``."""
        end = self._ends[row]
        return self._flat[end - self.lengths[row] : end].astype(np.int64)


class TokenColumn(TokenRows):
    """Token ids of many texts.

    Args:
        texts: The texts.
        tokenize: Texts → one int64 array of token ids each.
    """

    def __init__(self, texts: Sequence[str], tokenize: Callable[[Sequence[str]], list[Tokens]]) -> None:
        parts, lengths = [], []
        for start in range(0, len(texts), _SLICE):
            rows = tokenize(texts[start : start + _SLICE])
            parts.append(np.concatenate(rows).astype(np.int32))  # (tokens of the slice,)
            lengths += [len(row) for row in rows]
        super().__init__(parts, lengths)


TokenizePairs = Callable[[Sequence[str], Sequence[str]], TokenizedPairs]


class PairColumn:
    """Token ids of many pairs of texts, and which text each token belongs to.

    Args:
        first, second: The texts.
        tokenize: Pairs of texts, as two columns → their tokens.
    """

    def __init__(self, first: Sequence[str], second: Sequence[str], tokenize: TokenizePairs) -> None:
        ids, types, lengths = [], [], []
        for start in range(0, len(first), _SLICE):
            part = slice(start, start + _SLICE)
            tokenized = tokenize(first[part], second[part])
            ids.append(np.concatenate(tokenized.ids).astype(np.int32))  # (tokens of the slice,)
            types.append(np.concatenate(tokenized.types).astype(np.int8))  # (tokens of the slice,)
            lengths += tokenized.lengths.tolist()
        self._ids, self._types = TokenRows(ids, lengths), TokenRows(types, lengths)
        self.lengths = self._ids.lengths
        """Tokens of each pair, *shape* ``(pairs,)``."""

    def pairs(self, rows: Sequence[int]) -> TokenizedPairs:
        """Return some pairs. Whether they were truncated is not known: they are all marked as not truncated."""
        return TokenizedPairs(
            [self._ids[row] for row in rows], [self._types[row] for row in rows], np.zeros(len(rows), dtype=np.bool_)
        )


# A collated batch: name → tensors, nested for the text columns. The trainer moves it to the device.
Batch = Mapping[str, Any]


class TrainingTask(nn.Module, ABC):
    """A network with its objectives, one for each data set.

    It holds every trained parameter: its `state_dict` is the whole checkpoint.
    """

    def __init__(self) -> None:
        super().__init__()
        self._token_cache: dict[str, list[Any]] = {}

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Count the tokens of each example's longest input, *shape* ``(examples,)``, for sorting batches by length."""
        longest: NDArray[np.int64] = np.max([column.lengths for column in self.tokenized(examples)], axis=0)
        return longest

    def tokenized(self, examples: Examples) -> list[Any]:
        """Columns of `tokenize_columns`, computed once: tokenizing is most of the host's work for a batch."""
        if examples.name not in self._token_cache:
            self._token_cache[examples.name] = list(self.tokenize_columns(examples))
        return self._token_cache[examples.name]

    @abstractmethod
    def tokenize_columns(self, examples: Examples) -> Sequence[TokenColumn | PairColumn]:
        """Tokenize the inputs of a data set: a column for each text column, or one for its pairs of texts."""

    @abstractmethod
    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """Make a batch of rows of a data set: tokenized, padded to the longest of the batch, with labels.

        Called in the main process or in workers of a DataLoader; tensors stay on the CPU. The batch holds what
        `forward` takes: tensors and numbers, in dictionaries and lists.
        """

    @abstractmethod
    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """Compute the loss of a batch of one data set: a scalar, the mean over the joint batch of all processes.

        Args:
            dataset: Name of the data set.
            batch: As `collate` returned it; with several processes also `sizes`, the examples of each process.
        """

    @abstractmethod
    def evaluated_model(self) -> SentenceEmbedder | PairScorer:
        """The network for evaluation (in evaluation mode, without gradients)."""

    @abstractmethod
    def save(self, folder: Path, *, name: str) -> None:
        """Write the trained model to a new folder, in the format of its kind, without the objectives' heads.

        Raises:
            OSError: the disk is full, or the folder cannot be written to.
        """


# One pass over all columns has less overhead than one per column, unless it pads short texts to the length of long
# ones.
_MAX_PADDING_RATIO = 1.25


class BiEncoderTask(TrainingTask):
    """A siamese encoder with its objectives.

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

    def tokenize_columns(self, examples: Examples) -> list[TokenColumn]:
        prompts = self._prompts.get(examples.name) or [""] * len(examples.texts)
        return [
            TokenColumn(texts, lambda part, prompt=prompt: self.encoder.tokenize(part, prompt))  # type: ignore[misc]
            for texts, prompt in zip(examples.texts, prompts, strict=True)
        ]

    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """Make a batch: `passes`, one for all columns or one per column, each a list of mini-batches as
        `SiameseEncoder.inputs` returns them; `columns`, their number; `labels`, if the objective needs them.
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

    def evaluated_model(self) -> SentenceEmbedder:
        return self.encoder

    def save(self, folder: Path, *, name: str) -> None:
        self.encoder.model = self.encoder.model.model_copy(update={"name": name})
        save_siamese_encoder(self.encoder, folder)
