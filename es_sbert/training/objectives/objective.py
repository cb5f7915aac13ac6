"""The base class of all objectives, and the cosines and distances that they share.

Gradients stay finite where vectors are zero or equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from es_sbert.networks.pooling import normalize_vectors
from es_sbert.training.data.examples import LabelKind
from es_sbert.training.objectives.settings import TripletDistance


def pairwise_cosine(u: Tensor, v: Tensor) -> Tensor:
    """cos(u, v) row by row; 0 where a vector is zero.

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.

    Returns:
        *Shape:* ``(batch,)``.
    """
    return (normalize_vectors(u) * normalize_vectors(v)).sum(dim=-1)


def pairwise_dot(u: Tensor, v: Tensor) -> Tensor:
    """u · v row by row.

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.

    Returns:
        *Shape:* ``(batch,)``.
    """
    return (u * v).sum(dim=-1)


def pairwise_distance(u: Tensor, v: Tensor, distance: TripletDistance) -> Tensor:
    """Distance row by row: ‖u − v‖₂, ‖u − v‖₁ or 1 − cos(u, v).

    Args:
        u, v: *Shape:* ``(batch, dimensions)``.
        distance: Which one.

    Returns:
        *Shape:* ``(batch,)``.
    """
    match distance:
        case TripletDistance.EUCLIDEAN:
            # Not the root of a sum of squares, whose gradient is infinite at u = v: vector_norm's is 0 there.
            return torch.linalg.vector_norm(u - v, dim=-1)
        case TripletDistance.MANHATTAN:
            return (u - v).abs().sum(dim=-1)
        case TripletDistance.COSINE:
            return 1 - pairwise_cosine(u, v)


class Objective(nn.Module, ABC):
    """A loss over the sentence vectors of a batch.

    An objective sees the joint batch of all processes; it need not know how the vectors were made. A subclass says
    what it wants in class attributes and computes the loss in `compute`.

    Attributes:
        roles: Names of the text columns, in the order in which `forward` gets their vectors.
        repeats_last: Whether the last role may be mapped to any number of columns, none included (hard negatives,
            target languages).
        label: What kind of label `forward` expects.
        score_range: For `LabelKind.SCORE`: the range that gold scores are mapped to, or None for scores as they are.
        distinct: Whether a text must not stand twice in a batch (in-batch negatives).
    """

    roles: tuple[str, ...]
    repeats_last: bool = False
    label: LabelKind
    score_range: tuple[float, float] | None = None
    distinct: bool = False

    def forward(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        """The loss, averaged over the batch; in float32, under autocast too.

        Args:
            vectors: One tensor for each text column, each ``(batch, dimensions)``, as the encoder gives them (of
                unit length only where the model normalises).
            labels: ``(batch,)`` float32 scores, ``(batch,)`` int64 classes, ``(batch, dimensions)`` float32
                vectors, or None, as `label` says.

        Returns:
            A scalar, float32.

        Raises:
            ValueError: the columns are not those of `roles`, or the labels not of `label`'s shape.
        """
        self._check(vectors, labels)
        if labels is not None and self.label is not LabelKind.CLASS:
            labels = labels.float()
        # Near 1 bfloat16 goes in steps of 0.004: cosines times a scale of 20 would be logits in steps of 0.08. The
        # products here are small beside the encoder's, so that float32 costs next to nothing.
        with torch.autocast(vectors[0].device.type, enabled=False):
            return self.compute([column.float() for column in vectors], labels)

    @abstractmethod
    def compute(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        """The loss of float32 vectors, as `forward` describes it; called with autocast off."""

    def _check(self, vectors: Sequence[Tensor], labels: Tensor | None) -> None:
        # Broadcasting would make a loss of tensors that do not fit each other, and training would go on with it.
        expected = len(self.roles)
        if len(vectors) != expected and not (self.repeats_last and len(vectors) >= expected - 1):
            raise ValueError(f"{len(vectors)} columns of vectors for the roles {', '.join(self.roles)}")
        if any(column.shape != vectors[0].shape for column in vectors):
            raise ValueError(f"columns of shapes {', '.join(str(tuple(column.shape)) for column in vectors)}")
        if (labels is None) != (self.label is LabelKind.NONE):
            raise ValueError(f"{'no' if labels is None else 'unexpected'} labels; the kind is {self.label!r}")
        if labels is not None:
            wanted = 2 if self.label is LabelKind.VECTOR else 1
            if labels.ndim != wanted or len(labels) != len(vectors[0]):
                raise ValueError(f"labels of shape {tuple(labels.shape)} for vectors of {tuple(vectors[0].shape)}")
