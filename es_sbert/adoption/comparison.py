"""Stored vectors compared with those that a model gives for the same texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.types import Vectors
from es_sbert.engines.hits import Key
from es_sbert.engines.protocol import Json

# Failing documents that are shown.
WORST = 10


class ComparedDocument(NamedTuple):
    """A document whose vector was compared.

    Attributes:
        key: Its id and routing.
        cosine: Of the stored vector and the model's; 0 where one of them has no direction.
        is_truncated: Whether its text is longer than the model reads.
    """

    key: Key
    cosine: float
    is_truncated: bool

    def as_json(self) -> Json:
        document_id, routing = self.key
        named: Json = {"id": document_id} if routing is None else {"id": document_id, "routing": routing}
        return named | {"cosine": round(self.cosine, 6), "truncated": self.is_truncated}


def row_cosines(one: Vectors, two: Vectors) -> NDArray[np.float64]:
    """The cosine of each row of `one` with the same row of `two`; lengths do not matter.

    Args:
        one, two: *Shape:* ``(rows, dimensions)``.

    Returns:
        *Shape:* ``(rows,)``; 0 where a vector is zero or not finite.
    """
    a, b = np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        cosines: NDArray[np.float64] = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return np.clip(np.nan_to_num(cosines, nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)


@dataclass(frozen=True)
class SampleCheck:
    """How well the vectors of a sample agree with a model.

    Attributes:
        documents: Those that were compared, at least one.
        min_cosine: Cosine from which on a vector counts as the model's.
        share: Share of the documents that must have such a vector.
        without_text: Sampled documents with a vector whose text is empty or missing.
        unreadable: Sampled documents whose text is not a string.
        max_tokens: Tokens of a text that the model reads.
    """

    documents: Sequence[ComparedDocument]
    min_cosine: float
    share: float
    without_text: int = 0
    unreadable: int = 0
    max_tokens: int = 0

    @cached_property
    def failing(self) -> list[ComparedDocument]:
        """Documents whose vector is not the model's, the most distant first."""
        return sorted((one for one in self.documents if one.cosine < self.min_cosine), key=lambda one: one.cosine)

    @property
    def matching_share(self) -> float:
        """Share of the documents whose vector is the model's."""
        return 1.0 - len(self.failing) / len(self.documents)

    @property
    def is_accepted(self) -> bool:
        """Whether enough documents have a vector of the model."""
        return len(self.documents) - len(self.failing) >= self.share * len(self.documents)

    @property
    def lowest(self) -> float:
        """The lowest cosine."""
        return min(one.cosine for one in self.documents)

    @property
    def median(self) -> float:
        """The median cosine."""
        return float(np.median([one.cosine for one in self.documents]))

    @property
    def fails_only_where_truncated(self) -> bool:
        """Whether long texts alone fail: their vectors were made with another maximum of tokens."""
        whole = [one for one in self.documents if not one.is_truncated]
        return bool(self.failing) and bool(whole) and all(one.is_truncated for one in self.failing)

    def as_json(self) -> Json:
        return {
            "compared": len(self.documents),
            "matching": len(self.documents) - len(self.failing),
            "share": round(self.matching_share, 6),
            "required_share": self.share,
            "min_cosine": self.min_cosine,
            "lowest_cosine": round(self.lowest, 6),
            "median_cosine": round(self.median, 6),
            "without_text": self.without_text,
            "unreadable": self.unreadable,
            "failing": [one.as_json() for one in self.failing],
        }
