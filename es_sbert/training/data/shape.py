"""What the examples of an objective look like, without torch: columns of text and what stands beside them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LabelKind(StrEnum):
    """What stands beside the texts of an example."""

    NONE = "none"
    SCORE = "score"  # float: a similarity, or a teacher's margin
    CLASS = "class"  # integer: the number of a class
    VECTOR = "vector"  # a teacher's sentence vector


@dataclass(frozen=True)
class Shape:
    """What an objective needs of a data set.

    Attributes:
        roles: Names of the text columns, in the order of the objective.
        label: What kind of label the objective expects.
        repeats_last: Whether the last role may be mapped to any number of columns, none included.
        score_range: For `LabelKind.SCORE`: the range that gold scores are mapped to, or None for scores as they are.
        classes: For `LabelKind.CLASS`: the names of the classes, in the order of their numbers.
        distinct: Whether a text must not stand twice in a batch (in-batch negatives).
        taught: Whether a teacher model makes the labels, so that the data holds none.
    """

    roles: tuple[str, ...]
    label: LabelKind = LabelKind.NONE
    repeats_last: bool = False
    score_range: tuple[float, float] | None = None
    classes: tuple[str, ...] = ()
    distinct: bool = False
    taught: bool = False
