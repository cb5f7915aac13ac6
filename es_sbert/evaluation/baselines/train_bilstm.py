"""Training of BiLSTM-max on sentence pairs with classes, as InferSent was (Conneau et al. 2017, arXiv 1705.02364)."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from es_sbert.encoder.batches import distinct
from es_sbert.errors import SourceError, TrainingDiverged
from es_sbert.evaluation.baselines.bilstm import BiLstmMax, InferSent
from es_sbert.evaluation.baselines.labelled_pairs import LabelledPairs
from es_sbert.evaluation.baselines.vectors_file import WordVectors
from es_sbert.evaluation.baselines.words import tokenize

# The paper's schedule (section 3.3): the learning rate falls by 1 % an epoch and to a fifth whenever accuracy on dev
# falls; training ends below the last rate. The norm of gradients is its published code's.
_DECAY, _SHRINK, _LAST_RATE, _MAX_NORM = 0.99, 5.0, 1e-5, 5.0
_CLASSIFIER = 512
_POOL = 32  # batches whose pairs are sorted by length together


@dataclass(frozen=True)
class Epoch:
    """What one pass brought.

    Attributes:
        number: From 1.
        loss: Mean cross-entropy of the training pairs, in nats.
        accuracy: Share of dev pairs classified rightly.
        pairs_per_second: Training pairs read a second, without the measurement on dev.
    """

    number: int
    loss: float
    accuracy: float
    pairs_per_second: float


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
        kinds, where = distinct(texts)  # a premise that stands in several pairs of the batch is encoded once
        vectors = self.encoder([texts[kind] for kind in kinds])  # (distinct texts, 2 · hidden)
        u, v = vectors[torch.from_numpy(where).to(vectors.device)].chunk(2)  # each (pairs, 2 · hidden)
        logits: Tensor = self.head(torch.cat([u, v, (u - v).abs(), u * v], dim=1))
        return logits


def train_bilstm(
    train: LabelledPairs,
    vectors: WordVectors,
    *,
    dev: LabelledPairs,
    name: str = "BiLSTM-max",
    hidden: int = 512,
    epochs: int = 10,
    batch: int = 64,
    learning_rate: float = 1e-3,
    seed: int = 1,
    device: str = "cpu",
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> InferSent:
    """Train by Adam and give back the weights of the epoch that was best on dev.

    The paper's SGD needs its million of pairs: on tens of thousands it barely moves within ten epochs. Batches hold
    pairs with first texts of similar length, in random order; pairs of one first text stand together, so that it is
    encoded once for all of them.

    Args:
        train: Pairs to learn from.
        vectors: Word vectors; they stay as they are.
        dev: Pairs of the same classes that decide on the learning rate and on the epoch that is kept.
        name: Name of the model.
        hidden: Width of the LSTM in each direction (the paper's: 2048).
        epochs: The most passes.
        batch: Pairs of a step.
        learning_rate: Of the first epoch.
        seed: The same one gives the same weights on a CPU.
        device: As torch names it.
        on_epoch: Called after each pass.

    Raises:
        SourceError: none of the texts has a word that the table knows.
        TrainingDiverged: the loss is no finite number.
    """
    first, second = _rows(train.first, vectors), _rows(train.second, vectors)
    dev_first, dev_second = _rows(dev.first, vectors), _rows(dev.second, vectors)
    if not any(map(len, first)) or not any(map(len, second)):
        raise SourceError(
            "the table of word vectors knows no word of the training pairs", "Give vectors of the pairs' language."
        )
    with torch.random.fork_rng():  # the caller's random numbers stay untouched
        torch.manual_seed(seed)
        model = PairClassifier(BiLstmMax(vectors.vectors, hidden), len(train.classes)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    random = np.random.default_rng(seed)
    lengths = np.fromiter(map(len, first), dtype=np.int64, count=len(first))  # (pairs,)
    groups = np.unique(np.array(train.first, dtype=np.object_), return_inverse=True)[1]  # (pairs,)
    best, best_weights, previous = -1.0, copy.deepcopy(model.encoder.state_dict()), -1.0
    for number in range(1, epochs + 1):
        started = time.perf_counter()
        loss = _pass(model, optimizer, first, second, train.labels, _batches(lengths, groups, batch, random), number)
        rate = len(train) / (time.perf_counter() - started)
        accuracy = _accuracy(model, dev_first, dev_second, dev.labels)
        on_epoch(Epoch(number, loss, accuracy, rate))
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


def _rows(texts: Sequence[str], vectors: WordVectors) -> list[NDArray[np.int64]]:
    """Rows of the table of each text's words, each *shape* ``(words,)``."""
    return [vectors.rows(tokenize(text)) for text in texts]


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


def _pass(
    model: PairClassifier,
    optimizer: torch.optim.Optimizer,
    first: Sequence[NDArray[np.int64]],
    second: Sequence[NDArray[np.int64]],
    labels: NDArray[np.int64],
    batches: Iterator[NDArray[np.int64]],
    number: int,
) -> float:
    """One epoch; the mean loss of its pairs."""
    model.train()
    total = 0.0
    for step, members in enumerate(batches, 1):
        logits = model([first[member] for member in members], [second[member] for member in members])
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels[members]).to(logits.device))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingDiverged(f"the loss is {value} at step {step} of epoch {number}", "Lower the learning rate.")
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
