"""BiLSTM-max over frozen word vectors: InferSent (Conneau et al. 2017, arXiv 1705.02364; extra `train`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from es_sbert.bundle.json_files import read_json
from es_sbert.bundle.model import PromptKind
from es_sbert.bundle.safetensors import find_weights
from es_sbert.encoder.batches import plan_batches
from es_sbert.errors import BundleInvalid, OutputError, first_line
from es_sbert.evaluation.baselines.vectors_file import WordVectors, read_word_vectors, write_word_vectors
from es_sbert.evaluation.baselines.words import tokenize

_CONFIG, _WEIGHTS, _WORDS = "config.json", "model.safetensors", "words.vec"
_BUDGET = 4096  # padded words of one batch
_AGAIN = "Train it again with `es-sbert baseline bilstm`, or copy the folder again."


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str
    hidden: PositiveInt
    dimensions: PositiveInt


class BiLstmMax(nn.Module):
    """Word vectors → bidirectional LSTM → maximum over the words.

    Args:
        table: Word vectors ``(words, dimensions)``; they are not trained and not part of the state.
        hidden: Width of the LSTM in each direction.
    """

    table: Tensor

    def __init__(self, table: NDArray[np.float32], hidden: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.from_numpy(table), persistent=False)  # (words, dimensions)
        self.lstm = nn.LSTM(table.shape[1], hidden, bidirectional=True, batch_first=True)

    def forward(self, texts: Sequence[NDArray[np.int64]]) -> Tensor:
        """Sentence vectors.

        Args:
            texts: Rows of the table of each text's words, each ``(words,)``.

        Returns:
            *Shape:* ``(texts, 2 · hidden)``; zero for a text without words.
        """
        spoken = [number for number, rows in enumerate(texts) if len(rows)]
        vectors = self.table.new_zeros((len(texts), 2 * self.lstm.hidden_size))  # (texts, 2 · hidden)
        if not spoken:
            return vectors
        words = [self.table[torch.from_numpy(texts[number]).to(self.table.device)] for number in spoken]
        states, _ = self.lstm(pack_sequence(words, enforce_sorted=False))
        # The backward direction begins at each text's own last word, and padding never is the maximum.
        states, _ = pad_packed_sequence(states, batch_first=True, padding_value=-torch.inf)  # (spoken, longest, 2h)
        return vectors.index_copy(0, torch.tensor(spoken, device=vectors.device), states.max(dim=1).values)


class InferSent:
    """A trained BiLSTM-max with its table of words (an `Embedder`).

    Args:
        network: The network.
        vectors: The table that it reads.
        name: For tables.
    """

    def __init__(self, network: BiLstmMax, vectors: WordVectors, name: str) -> None:
        self.name = name
        self.network = network.eval()
        self.vectors = vectors

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors, *shape* ``(texts, 2 · hidden)``; zero for a text of unknown words alone; no prompts."""
        rows = [self.vectors.rows(tokenize(text)) for text in texts]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (texts,)
        vectors = np.empty((len(texts), 2 * self.network.lstm.hidden_size), dtype=np.float32)  # (texts, 2 · hidden)
        for members in plan_batches(lengths, _BUDGET):
            with torch.inference_mode():
                vectors[members] = self.network([rows[member] for member in members]).cpu().numpy()
        return vectors

    def save(self, folder: Path) -> None:
        """Write config.json, model.safetensors and words.vec (word2vec's text format) into a folder, made if need be.

        Raises:
            OutputError: it cannot be written.
        """
        config = _Config(
            architecture="bilstm-max", hidden=self.network.lstm.hidden_size, dimensions=self.vectors.dimensions
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_word_vectors(folder / _WORDS, self.vectors)
            save_file(self.network.cpu().state_dict(), folder / _WEIGHTS)
            (folder / _CONFIG).write_text(json.dumps(config.model_dump(), indent=2) + "\n")
        except (OSError, SafetensorError) as error:
            raise OutputError(f"{folder} cannot be written: {first_line(error)}", "Choose another folder.") from error


def open_infersent(folder: Path, name: str | None = None, device: str = "cpu") -> InferSent:
    """Open a folder that `InferSent.save` wrote.

    Args:
        folder: The folder.
        name: For tables; the folder's name by default.
        device: As torch names it.

    Raises:
        BundleInvalid: a file is missing, broken or of another model.
        SourceError: the table of words is broken.
    """
    try:
        config = _Config(**read_json(folder / _CONFIG))
    except ValidationError as error:
        raise BundleInvalid(
            f"{folder / _CONFIG} describes no BiLSTM-max: {error.errors()[0]['msg']}", _AGAIN
        ) from error
    if config.architecture != "bilstm-max":
        raise BundleInvalid(f"{folder} holds a {config.architecture}, no bilstm-max", _AGAIN)
    find_weights(folder)
    vectors = read_word_vectors(folder / _WORDS)
    if vectors.dimensions != config.dimensions:
        raise BundleInvalid(
            f"{folder / _WORDS} has {vectors.dimensions} dimensions, the network reads {config.dimensions}", _AGAIN
        )
    network = BiLstmMax(vectors.vectors, config.hidden)
    try:
        network.load_state_dict(load_file(folder / _WEIGHTS))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise BundleInvalid(f"{folder / _WEIGHTS} does not fit config.json: {first_line(error)}", _AGAIN) from error
    return InferSent(network.to(device), vectors, name or folder.resolve().name)
