"""Table 1: semantic textual similarity without tuning on it."""

from __future__ import annotations

from typing import Any

from benchmarks.common import table
from benchmarks.tables import models, paper
from benchmarks.tables.lab import Lab, cells, figure

TITLE = "Semantic textual similarity (the paper's table 1)"
NOTE = (
    "Spearman's ρ × 100 of cosines, all pairs of a year together. Rows in italics are the paper's. STS15, STS16 and "
    "SICK-R are not at hand; the means are of STS12, 13, 14 and STSb for every row, the paper's included. word2vec "
    "trained on 451,640 short documents replaces GloVe, 69,544 pairs of nli-train replace SNLI and MultiNLI, and a "
    "small encoder of our own replaces BERT (two layers of 128, masked language modeling on the same documents, from "
    "word2vec embeddings). all-MiniLM-L6-v2 comes tuned on more than a billion pairs, NLI among them."
)
COLUMNS = ("sts12-test", "sts13-test", "sts14-test", "stsb-en-test")
_PAPER_COLUMNS = (0, 1, 2, 5)


def rows(lab: Lab) -> models.Rows:
    """Our rows."""
    onnx = lab.onnx()
    return [
        *models.untuned(lab),
        ("SBERT-NLI from the masked start", lambda: (models.small_nli(lab), onnx)),
        ("all-MiniLM-L6-v2", lambda: ("all-MiniLM-L6-v2", onnx)),
        (f"{lab.profile.base}, SBERT-NLI", lambda: (models.nli(lab), onnx)),
    ]


def make(lab: Lab) -> str:
    """The table."""
    lines: list[list[str]] = []
    for name, figures in paper.STS.items():
        lines.append([f"*{name}*", *_shown([figures[column] for column in _PAPER_COLUMNS])])
    for name, model in rows(lab):
        lines.append([name, *cells(5, lambda name=name, model=model: _figures(lab.report("sts", name, model)))])
    return table(["", "STS12", "STS13", "STS14", "STSb", "mean of these"], lines)


def _figures(report: dict[str, Any]) -> list[str]:
    return _shown([figure(report, data, "spearman_cosine") for data in COLUMNS])


def _shown(figures: list[float]) -> list[str]:
    return [*(f"{value:.2f}" for value in figures), f"{sum(figures) / len(figures):.2f}"]
