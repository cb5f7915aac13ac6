"""Table 5: SentEval."""

from __future__ import annotations

from typing import Any

from benchmarks.common import table
from benchmarks.tables import models, paper
from benchmarks.tables.lab import Lab, cells, figure

TITLE = "SentEval (the paper's table 5)"
NOTE = (
    "Accuracy × 100 of logistic regression on frozen sentence vectors: 10 folds for MR and CR, the given test sets for "
    "SST2, TREC and MRPC. SUBJ and MPQA are not at hand; the means are of the five for every row, the paper's "
    "included. Stand-ins as in the first table."
)
DATA = ("MR", "CR", "SST2", "TREC", "MRPC")
_PAPER_COLUMNS = (0, 1, 4, 5, 6)


def rows(lab: Lab) -> models.Rows:
    """Our rows."""
    onnx = lab.onnx()
    return [
        *models.untuned(lab),
        ("all-MiniLM-L6-v2", lambda: ("all-MiniLM-L6-v2", onnx)),
        (f"{lab.profile.base}, SBERT-NLI", lambda: (models.nli(lab), onnx)),
    ]


def make(lab: Lab) -> str:
    """The table."""
    lines = [
        [f"*{name}*", *_shown([figures[column] for column in _PAPER_COLUMNS])]
        for name, figures in paper.TRANSFER.items()
    ]
    for name, model in rows(lab):
        lines.append([name, *cells(6, lambda name=name, model=model: _figures(lab.report("transfer", name, model)))])
    return table(["", *DATA, "mean of these"], lines)


def _figures(report: dict[str, Any]) -> list[str]:
    return _shown([figure(report, data, "accuracy") for data in DATA])


def _shown(figures: list[float]) -> list[str]:
    return [*(f"{value:.2f}" for value in figures), f"{sum(figures) / len(figures):.2f}"]
