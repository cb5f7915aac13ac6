"""Dev data: what chooses the best checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError
from es_sbert.training.data.read import read_shape
from es_sbert.training.data.shape import LabelKind, Shape
from es_sbert.training.recipe import DevSpec

_SHAPES = {
    "sts": Shape(("sentence1", "sentence2"), LabelKind.SCORE),
    "triplet": Shape(("anchor", "positive", "negative")),
    "pairs": Shape(("anchor", "positive")),
    "duplicates": Shape(("sentence1", "sentence2"), LabelKind.CLASS, classes=("0", "1")),
}


@dataclass(frozen=True)
class DevData:
    """Texts and gold labels of a dev set.

    Attributes:
        task: What is measured on them.
        texts: One list for each role of the task, all of one length.
        gold: Scores (`sts`, float32) or classes (`duplicates`, int64) of *shape* ``(examples,)``; None for the
            tasks whose columns say which text is right.
    """

    task: Literal["sts", "triplet", "pairs", "duplicates"]
    texts: tuple[list[str], ...]
    gold: NDArray[np.float32] | NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.texts[0])


def read_dev(spec: DevSpec, data_folder: Path) -> DevData:
    """Read a stage's dev set and check every row.

    Args:
        spec: The dev set; a relative path counts from `data_folder`.
        data_folder: The data folder of the run.

    Raises:
        RecipeInvalid: a role of the task is unknown or has no column.
        SourceError: the file or a row is bad, as for training data, or all gold labels or positives are the same.
        UsageError: the library that reads the format is not installed.
    """
    path = data_folder / spec.path
    examples = read_shape(
        f"dev ({path.name})", path, spec.columns, _SHAPES[spec.task], skip=spec.skip, limit=spec.limit
    )
    gold = examples.labels
    if gold is not None and np.all(gold == gold[0]):
        # Neither a rank correlation nor a precision is defined then: no checkpoint could be called the best.
        raise SourceError(
            f"{path}: all {len(examples)} gold labels are {gold[0]:g}, which tells no checkpoint from another",
            "Name another dev set, or raise its limit.",
        )
    if spec.task == "pairs" and len(set(examples.texts[1])) == 1:
        raise SourceError(
            f"{path}: all {len(examples)} positives are one text, which is always the first among them",
            "Name another dev set, or raise its limit.",
        )
    return DevData(spec.task, examples.texts, gold)
