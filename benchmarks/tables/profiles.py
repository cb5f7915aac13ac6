"""What a machine can afford."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """How far the tables go.

    Attributes:
        name: Folder of the results: `cpu` or `gpu`.
        device: What trains and measures.
        precision: Of training.
        evaluation: Number format of measured ONNX models.
        seeds: Of the runs whose mean and standard deviation are given.
        pair_seeds: Those of the cross-encoder, which takes longer.
        ablation_seeds: The same for the ablation.
        base: Sentence-tuned encoder that runs start from.
        argument_epochs: Epochs of each fold of the argument table.
        argument_parts: Splits of the argument table for which models are tuned: each fold is a run.
    """

    name: str
    device: str
    precision: str
    evaluation: str
    seeds: tuple[int, ...]
    pair_seeds: tuple[int, ...]
    ablation_seeds: tuple[int, ...]
    base: str
    argument_epochs: int
    argument_parts: tuple[str, ...]


PROFILES = {
    "cpu": Profile(
        name="cpu",
        device="cpu",
        precision="bf16",
        evaluation="fp32",
        seeds=(1, 2, 3),
        pair_seeds=(1, 2),
        ablation_seeds=(1, 2),
        base="all-MiniLM-L6-v2",
        argument_epochs=1,
        argument_parts=("across topics",),
    ),
    "gpu": Profile(
        name="gpu",
        device="cuda",
        precision="bf16",
        evaluation="fp16",
        seeds=tuple(range(1, 11)),
        pair_seeds=tuple(range(1, 11)),
        ablation_seeds=tuple(range(1, 11)),
        base="all-mpnet-base-v2",
        argument_epochs=3,
        argument_parts=("10 folds", "across topics"),
    ),
}
