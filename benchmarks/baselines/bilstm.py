"""BiLSTM-max over frozen word vectors, and its training (InferSent, Conneau et al. 2017, arXiv 1705.02364)."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from benchmarks.baselines.word_vectors import WordVectors, read_word_vectors, write_word_vectors
from benchmarks.common import read_tsv
from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.runtime.batching import plan_batches, unique_rows

_CONFIG, _WEIGHTS, _WORDS = "config.json", "model.safetensors", "words.vec"
_BUDGET = 4096  # padded words of one batch


@dataclass(frozen=True)
class ClassifiedPairs:
    """Pairs of texts with a class.

    Attributes:
        first: The first text of each pair (premises).
        second: The second (hypotheses).
        labels: ``(pairs,)`` int64: the number of each pair's class, in the order of the alphabet.
        classes: How many classes there are.
    """

    first: Sequence[str]
    second: Sequence[str]
    labels: NDArray[np.int64]
    classes: int


def read_classified_pairs(path: Path) -> ClassifiedPairs:
    """Read a gzip'd TSV file with the columns sentence1, sentence2 and label."""
    rows = list(read_tsv(path))
    classes, labels = np.unique([row["label"] for row in rows], return_inverse=True)
    first, second = [row["sentence1"] for row in rows], [row["sentence2"] for row in rows]
    return ClassifiedPairs(first, second, labels.astype(np.int64), len(classes))


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
    """A trained BiLSTM-max with its table of words (a `SentenceEmbedder`).

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
        rows = [self.vectors.rows(text) for text in texts]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (texts,)
        vectors = np.empty((len(texts), 2 * self.network.lstm.hidden_size), dtype=np.float32)  # (texts, 2 · hidden)
        for members in plan_batches(lengths, _BUDGET):
            with torch.inference_mode():
                vectors[members] = self.network([rows[member] for member in members]).cpu().numpy()
        return vectors

    def save(self, folder: Path) -> None:
        """Write config.json, model.safetensors and words.vec (word2vec's text format) into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        write_word_vectors(folder / _WORDS, self.vectors)
        save_file(self.network.cpu().state_dict(), folder / _WEIGHTS)
        (folder / _CONFIG).write_text(json.dumps({"hidden": self.network.lstm.hidden_size}) + "\n")


def open_infersent(folder: Path, device: str = "cpu") -> InferSent:
    """Open a folder that `InferSent.save` wrote."""
    vectors = read_word_vectors(folder / _WORDS)
    network = BiLstmMax(vectors.vectors, json.loads((folder / _CONFIG).read_bytes())["hidden"])
    network.load_state_dict(load_file(folder / _WEIGHTS))
    return InferSent(network.to(device), vectors, folder.resolve().name)


# The paper's schedule (section 3.3): the learning rate falls by 1 % an epoch and to a fifth whenever accuracy on dev
# falls; training ends below the last rate. The norm of gradients is its published code's.
_DECAY, _SHRINK, _LAST_RATE, _MAX_NORM = 0.99, 5.0, 1e-5, 5.0
_CLASSIFIER = 512
_POOL = 32  # batches whose pairs are sorted by length together


class PairClassifier(nn.Module):
    """Classes of pairs from (u, v, |u − v|, u ∗ v) by one hidden layer of 512 (the paper's section 3.1 and 3.3).

    Args:
        encoder: Gives u and v.
        classes: How many there are.
    """

    def __init__(self, encoder: BiLstmMax, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        width = 2 * encoder.lstm.hidden_size
        self.head = nn.Sequential(nn.Linear(4 * width, _CLASSIFIER), nn.Tanh(), nn.Linear(_CLASSIFIER, classes))

    def forward(self, first: Sequence[NDArray[np.int64]], second: Sequence[NDArray[np.int64]]) -> Tensor:
        """Logits, *shape* ``(pairs, classes)``, of pairs of texts given as rows of the table, each ``(words,)``."""
        texts = [*first, *second]
        kinds, where = unique_rows(texts)  # a premise shared by several pairs of the batch is encoded once
        vectors = self.encoder([texts[kind] for kind in kinds])  # (distinct texts, 2 · hidden)
        u, v = vectors[torch.from_numpy(where).to(vectors.device)].chunk(2)  # each (pairs, 2 · hidden)
        logits: Tensor = self.head(torch.cat([u, v, (u - v).abs(), u * v], dim=1))
        return logits


def train_bilstm(
    train: ClassifiedPairs,
    dev: ClassifiedPairs,
    vectors: WordVectors,
    *,
    name: str,
    hidden: int,
    epochs: int,
    batch: int = 64,
    learning_rate: float = 1e-3,
    seed: int = 1,
    device: str = "cpu",
) -> InferSent:
    """Train with Adam and return the weights of the best epoch on dev.

    The paper's SGD needs its million of pairs: on tens of thousands it barely moves within ten epochs. Batches hold
    pairs with first texts of similar length, in random order; pairs that share a first text are adjacent, so that it is
    encoded once for all of them.

    Args:
        train: Pairs to learn from.
        dev: Pairs of the same classes that decide on the learning rate and on the epoch that is kept.
        vectors: Word vectors; they are not trained.
        name: Name of the model.
        hidden: Width of the LSTM in each direction (the paper's: 2048).
        epochs: The most passes.
        batch: Pairs of a step.
        learning_rate: Of the first epoch.
        seed: The same one gives the same weights on a CPU.
        device: As torch names it.
    """
    first, second = ([vectors.rows(text) for text in texts] for texts in (train.first, train.second))
    dev_first, dev_second = ([vectors.rows(text) for text in texts] for texts in (dev.first, dev.second))
    torch.manual_seed(seed)
    model = PairClassifier(BiLstmMax(vectors.vectors, hidden), train.classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    random = np.random.default_rng(seed)
    lengths = np.fromiter(map(len, first), dtype=np.int64, count=len(first))  # (pairs,)
    groups = np.unique(np.array(train.first, dtype=np.object_), return_inverse=True)[1]  # (pairs,)
    best, best_weights, previous = -1.0, copy.deepcopy(model.encoder.state_dict()), -1.0
    for number in range(1, epochs + 1):
        batches = _batches(lengths, groups, batch, random)
        loss = _train_epoch(model, optimizer, first, second, train.labels, batches)
        accuracy = _accuracy(model, dev_first, dev_second, dev.labels)
        click.echo(f"epoch {number}: loss {loss:.4f}, dev accuracy {100 * accuracy:.2f} %", err=True)
        if accuracy > best:
            best, best_weights = accuracy, copy.deepcopy(model.encoder.state_dict())
        learning_rate *= _DECAY if accuracy >= previous else _DECAY / _SHRINK
        previous = accuracy
        if learning_rate < _LAST_RATE:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
    model.encoder.load_state_dict(best_weights)
    return InferSent(model.encoder, vectors, name)


def _batches(
    lengths: NDArray[np.int64], groups: NDArray[np.int64], batch: int, random: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Every pair once, in batches of similar length in random order; each *shape* ``(at most batch,)``.

    Args:
        lengths: ``(pairs,)``: words of the first text.
        groups: ``(pairs,)``: equal for pairs of the same first text, which are put side by side.
        batch: Pairs of a batch.
        random: Shuffles.
    """
    ranks = random.permutation(int(groups.max()) + 1)[groups]  # (pairs,)
    order = np.argsort(ranks, kind="stable")  # (pairs,)
    pool = _POOL * batch
    parts = []
    for start in range(0, len(order), pool):
        members = order[start : start + pool]
        members = members[np.lexsort((ranks[members], lengths[members]))]
        parts += [members[at : at + batch] for at in range(0, len(members), batch)]
    return (parts[number] for number in random.permutation(len(parts)))


def _train_epoch(
    model: PairClassifier,
    optimizer: torch.optim.Optimizer,
    first: Sequence[NDArray[np.int64]],
    second: Sequence[NDArray[np.int64]],
    labels: NDArray[np.int64],
    batches: Iterator[NDArray[np.int64]],
) -> float:
    """One epoch; the mean loss of its pairs."""
    model.train()
    total = 0.0
    for members in batches:
        logits = model([first[member] for member in members], [second[member] for member in members])
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels[members]).to(logits.device))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise click.ClickException(f"the loss is {value}: lower the learning rate")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
        optimizer.step()
        total += value * len(members)
    return total / len(labels)


def _accuracy(
    model: PairClassifier,
    first: Sequence[NDArray[np.int64]],
    second: Sequence[NDArray[np.int64]],
    labels: NDArray[np.int64],
    batch: int = 256,
) -> float:
    """The share of pairs whose class has the highest logit."""
    model.eval()
    right = 0
    for start in range(0, len(labels), batch):
        with torch.inference_mode():
            logits = model(first[start : start + batch], second[start : start + batch])  # (pairs, classes)
        right += int((logits.argmax(dim=1).cpu().numpy() == labels[start : start + batch]).sum())
    return right / len(labels)
