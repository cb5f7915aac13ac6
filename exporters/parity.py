"""The parity gate: does an exported graph give the vectors of the reference, and rank texts as they do?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.manifest import ParityReport
from es_sbert.bundle.model import Precision
from es_sbert.exporters.transformer import Floats


@dataclass(frozen=True)
class Bar:
    """What a variant must reach.

    Attributes:
        min_cosine: Least cosine between reference and variant vector of one sentence.
        rank_agreement: Least Spearman's ρ × 100 between their pairwise cosines.
        sts_loss: Most points of Spearman's ρ × 100 that it may lose against gold scores, where they are given.
    """

    min_cosine: float
    rank_agreement: float
    sts_loss: float

    def __str__(self) -> str:
        return (
            f"min cosine ≥ {self.min_cosine:g}, rank agreement ≥ {self.rank_agreement:g}, "
            f"STS within {self.sts_loss:g} points"
        )


# fp32 differs from its reference by rounding only.
#
# Quantised vectors may move, but not past each other: search and STS see ranks. Gold scores hardly notice lost
# bits, agreement with the reference's own ranks does, so the bar is on that: both models of benchmarks/parity.py
# stay well above it, coarser weights (5 bits, or one scale a matrix) fell below. A single cosine says less: its bar
# catches a sentence that went astray.
#
# fp16 rounds activations to 11 bits; the bar leaves room for CUDA kernels that sum in fp16.
BARS = {
    Precision.FP32: Bar(min_cosine=0.99999, rank_agreement=99.99, sts_loss=0.05),
    Precision.INT8: Bar(min_cosine=0.9, rank_agreement=99.0, sts_loss=0.5),
    Precision.FP16: Bar(min_cosine=0.999, rank_agreement=99.8, sts_loss=0.1),
}


@dataclass(frozen=True)
class GoldPairs:
    """Sentence pairs with human scores (STS).

    Attributes:
        first, second: The sentences of each pair.
        scores: *Shape:* ``(pairs,)``.
    """

    first: list[str]
    second: list[str]
    scores: NDArray[np.float64]


def ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Ranks from 1, equal values sharing their mean rank. *Shape:* that of ``values``, one-dimensional."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[where]
    return mean


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Spearman's ρ × 100 of two sequences of equal length; 0 where one of them is constant."""
    first, second = ranks(a), ranks(b)
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(100 * np.corrcoef(first, second)[0, 1])


def unit(vectors: Floats) -> NDArray[np.float64]:
    """Vectors scaled to length 1 in float64; a zero vector stays zero. *Shape:* ``(texts, dimensions)``."""
    wide = vectors.astype(np.float64)
    scaled: NDArray[np.float64] = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return scaled


def pairwise_cosines(vectors: Floats) -> NDArray[np.float64]:
    """Cosines of all pairs of different texts: *shape* ``(texts · (texts − 1) / 2,)``, to 5 decimals.

    Many pairs tie exactly where a model cuts texts short; rounding in float32 must not put them in an order.
    """
    normed = unit(vectors)
    upper: NDArray[np.float64] = np.round((normed @ normed.T)[np.triu_indices(len(normed), k=1)], 5)
    return upper


def sts_spearman(first: Floats, second: Floats, gold: GoldPairs) -> float:
    """Spearman's ρ × 100 between the cosines of pairs and their gold scores."""
    return spearman(np.einsum("pd,pd->p", unit(first), unit(second)), gold.scores)


def padded_batches(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Batches of two, the longest text beside the shortest and so on inwards: as much padding as there can be.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.

    Returns:
        Index arrays; together they hold every index exactly once.
    """
    order = np.argsort(lengths, kind="stable")  # (texts,)
    half = len(order) // 2
    pairs = np.stack([order[:half], order[::-1][:half]], axis=1)  # (texts // 2, 2)
    return [*pairs, *([order[half : half + 1]] if len(order) % 2 else [])]


def compare(
    precision: Precision,
    reference_name: str,
    reference: Floats,
    variant: Floats,
    *,
    sts_reference: float | None = None,
    sts_variant: float | None = None,
) -> ParityReport:
    """Hold a variant's vectors against the reference's and both against the bar of its precision.

    Args:
        precision: Of the variant; decides the bar.
        reference_name: What made the reference vectors, with version.
        reference, variant: *Shape:* ``(sentences, dimensions)``, of the same sentences.
        sts_reference, sts_variant: Spearman's ρ × 100 on gold pairs, both or none.
    """
    bar = BARS[precision]
    cosines = np.einsum("sd,sd->s", unit(reference), unit(variant))
    agreement = spearman(pairwise_cosines(reference), pairwise_cosines(variant))
    finite = bool(np.isfinite(variant).all())
    loss = 0.0 if sts_reference is None or sts_variant is None else sts_reference - sts_variant
    passed = finite and cosines.min() >= bar.min_cosine and agreement >= bar.rank_agreement and loss <= bar.sts_loss
    # Figures that are not finite would make es_sbert.json unreadable as JSON.
    figures = np.nan_to_num([cosines.mean(), cosines.min(), np.abs(variant - reference).max(), agreement], nan=0.0)
    return ParityReport(
        reference=reference_name,
        sentences=len(reference),
        mean_cosine=float(figures[0]),
        min_cosine=float(figures[1]),
        max_abs_difference=float(figures[2]),
        rank_agreement=float(figures[3]),
        sts_reference=sts_reference,
        sts_variant=sts_variant,
        bar=str(bar) if finite else f"{bar}; vectors must be finite",
        passed=bool(passed),
    )


def describe(report: ParityReport) -> str:
    """The figures of a report in one line."""
    sts = "" if report.sts_variant is None else f", STS {report.sts_variant:.2f} (reference {report.sts_reference:.2f})"
    return (
        f"cosine mean {report.mean_cosine:.6f}, min {report.min_cosine:.6f}, "
        f"rank agreement {report.rank_agreement:.2f}{sts}; against {report.reference} on {report.sentences} sentences"
    )
