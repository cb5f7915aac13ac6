"""The interface between the trainer and a network: tokenise, collate, compute the loss, save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
from es_sbert.training.data.examples import Examples

# What a collated batch is: names → tensors, nested for the text columns. The trainer moves it to the device.
Batch = Mapping[str, Any]


class TrainingTask(nn.Module, ABC):
    """A network with its objectives, one for each data set.

    It holds every parameter that is trained, so that its `state_dict` is the whole checkpoint.
    """

    @abstractmethod
    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Tokens of the longest input of each example, *shape* ``(examples,)``: what batches are sorted by."""

    @abstractmethod
    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """Make a batch of some rows of a data set: tokenised, padded to the longest of the batch, with labels.

        Called in the main process or in workers of a DataLoader; tensors stay on the CPU. The batch must hold what
        `forward` takes: tensors and numbers, in dictionaries and lists.
        """

    @abstractmethod
    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """The loss of one batch of one data set, a scalar, the mean over the joint batch of all processes.

        Args:
            dataset: Name of the data set.
            batch: As `collate` made it; with several processes also `sizes`, the examples of each process's part.
        """

    @abstractmethod
    def measured(self) -> SentenceEmbedder | PairScorer:
        """The network as evaluation sees it (in evaluation mode, without gradients)."""

    @abstractmethod
    def save(self, folder: Path, *, name: str) -> None:
        """Write the trained model into a new folder, in the format of its kind, without the objectives' heads.

        Raises:
            OSError: the disk is full, or the folder cannot be written to.
        """
