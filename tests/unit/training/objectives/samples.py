"""Batches of vectors, and sentence-transformers' losses on vectors that are given instead of made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from es_sbert.training.losses import Objective
from es_sbert.training.recipe import ObjectiveSpec
from es_sbert.training.training_examples import LabelKind

BATCH, DIMENSIONS = 8, 12

# One of every kind and variant, as they stand in a recipe; classes of the softmax objective: 3.
SPECS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "softmax", "classes": ["no", "perhaps", "yes"]},
    "softmax of all features": {"kind": "softmax", "classes": ["a", "b", "c"], "features": ["u*v", "|u-v|", "v", "u"]},
    "regression": {"kind": "regression"},
    "triplet, euclidean": {"kind": "triplet", "margin": 2},
    "triplet, manhattan": {"kind": "triplet", "distance": "manhattan", "margin": 5},
    "triplet, cosine": {"kind": "triplet", "distance": "cosine"},
    "in-batch": {"kind": "in-batch"},
    "in-batch, symmetric": {"kind": "in-batch", "symmetric": True},
    "cosent": {"kind": "cosent"},
    "vector-distillation": {"kind": "vector-distillation", "teacher": "a-model"},
    "margin-distillation": {"kind": "margin-distillation"},
}
MATRYOSHKA = {"dimensions": [12, 6, 3]}
ALL_SPECS = SPECS | {f"matryoshka of {name}": spec | {"matryoshka": MATRYOSHKA} for name, spec in SPECS.items()}


def settings(values: dict[str, Any]) -> ObjectiveSpec:
    """An objective's settings as the recipe reads them."""
    spec: ObjectiveSpec = TypeAdapter(ObjectiveSpec).validate_python(values)
    return spec


def tensor(*rows: Sequence[float]) -> Tensor:
    """*Shape:* ``(rows, dimensions)``."""
    return torch.tensor(rows, dtype=torch.float32)


def columns(count: int, seed: int = 0, *, batch: int = BATCH, dimensions: int = DIMENSIONS) -> list[Tensor]:
    """Columns of random vectors, each ``(batch, dimensions)``, that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, dimensions, generator=generator).requires_grad_() for _ in range(count)]


def labels_for(label: LabelKind, seed: int = 0, *, batch: int = BATCH, dimensions: int = DIMENSIONS) -> Tensor | None:
    """Random labels of a kind: scores in [0, 1), classes of three, or vectors."""
    generator = torch.Generator().manual_seed(1000 + seed)
    match label:
        case LabelKind.NONE:
            return None
        case LabelKind.SCORE:
            return torch.rand(batch, generator=generator)
        case LabelKind.CLASS:
            return torch.randint(3, (batch,), generator=generator)
        case LabelKind.VECTOR:
            return torch.randn(batch, dimensions, generator=generator)


class GivenVectors(nn.Module):
    """In the place of a SentenceTransformer: its features are the vectors already."""

    device = torch.device("cpu")

    def get_embedding_dimension(self) -> int:
        return DIMENSIONS

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["vectors"]}


def assert_same_as_reference(
    objective: Objective, make: Callable[[Any], Any], vectors: Sequence[Tensor], labels: Tensor | None
) -> None:
    """Loss and gradients are those of sentence-transformers; `make` turns a model into its loss."""
    ours = objective(vectors, labels)
    theirs = make(GivenVectors())([{"vectors": column} for column in vectors], labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    wanted = torch.autograd.grad(theirs, vectors)
    for got, want in zip(torch.autograd.grad(ours, vectors), wanted, strict=True):
        # What float32 rounds off counts from the largest value: a scale multiplies it.
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6 * max(1, want.abs().max().item()))
