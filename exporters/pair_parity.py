"""The parity gate of cross-encoders: does an exported graph put pairs into the order of the reference?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from es_sbert.bundle.model import Precision
from es_sbert.bundle.reranker import ScoreParity
from es_sbert.exporters.parity import spearman
from es_sbert.exporters.sentences import parity_sentences
from es_sbert.exporters.transformer import Floats


@dataclass(frozen=True)
class ScoreBar:
    """What a variant must reach.

    Attributes:
        mean_difference, max_difference: Most that an output may differ on average and once, in standard deviations of
            the reference's outputs.
        rank_agreement: Least Spearman's ρ × 100 between the two orders of the pairs.
    """

    mean_difference: float
    max_difference: float
    rank_agreement: float

    def __str__(self) -> str:
        return (
            f"difference ≤ {self.mean_difference:g} sd on average, ≤ {self.max_difference:g} sd at most, "
            f"rank agreement ≥ {self.rank_agreement:g}"
        )


# fp32 differs from its reference by rounding only. Of int8 the differences are held, less so the ranks: training
# drives most pairs to one of two ends, and an order within an end turns over with the smallest change.
#
# fp16 rounds weights and activations to 11 bits. A MiniLM of real weights moved by 0.006 sd at most, networks
# of random weights by 0.17.
SCORE_BARS = {
    Precision.FP32: ScoreBar(mean_difference=0.0001, max_difference=0.001, rank_agreement=99.9),
    Precision.INT8: ScoreBar(mean_difference=0.1, max_difference=1.0, rank_agreement=95.0),
    Precision.FP16: ScoreBar(mean_difference=0.02, max_difference=0.2, rank_agreement=99.5),
}


def parity_pairs(max_tokens: int, count: int = 1024) -> tuple[list[str], list[str]]:
    """Deterministic pairs: wordings of one statement, statements that share nothing, empty and very long texts."""
    first = parity_sentences(max_tokens, count)
    return first, [*first[1:], first[0]]


def compare_scores(
    precision: Precision, reference_name: str, reference: Floats, variant: Floats, *, emulated: bool = False
) -> ScoreParity:
    """Hold a variant's outputs against the reference's and both against the bar of its precision.

    Args:
        precision: Of the variant; decides the bar.
        reference_name: What made the reference's outputs, with version.
        reference, variant: *Shape:* ``(pairs, labels)``, of the same pairs, before any activation.
        emulated: Whether the variant's outputs come from a processor that only emulates the variant's number format.
    """
    bar = SCORE_BARS[precision]
    spread = np.maximum(reference.std(axis=0), 1e-12)  # (labels,)
    differences = np.abs(variant - reference) / spread  # (pairs, labels)
    # Pairs that are cut to the same tokens tie; rounding in float32 must not put them in an order.
    expected, actual = (np.round(scores.astype(np.float64) / spread, 5) for scores in (reference, variant))
    agreement = min(spearman(expected[:, label], actual[:, label]) for label in range(expected.shape[1]))
    finite = bool(np.isfinite(variant).all())
    figures = np.nan_to_num([differences.mean(), differences.max(), agreement], nan=0.0, posinf=0.0)
    close = differences.mean() <= bar.mean_difference and differences.max() <= bar.max_difference
    passed = finite and close and agreement >= bar.rank_agreement
    return ScoreParity(
        reference=reference_name,
        pairs=len(reference),
        mean_difference=float(figures[0]),
        max_difference=float(figures[1]),
        rank_agreement=float(figures[2]),
        bar=str(bar) if finite else f"{bar}; scores must be finite",
        passed=bool(passed),
        emulated=emulated,
    )


def describe(report: ScoreParity) -> str:
    """The figures of a report in one line."""
    how = " (fp16 emulated on the CPU)" if report.emulated else ""
    return (
        f"difference mean {report.mean_difference:.6f}, max {report.max_difference:.6f} sd, "
        f"rank agreement {report.rank_agreement:.2f}; against {report.reference} on {report.pairs} pairs{how}"
    )
