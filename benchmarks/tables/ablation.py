"""Table 6: pooling, and what the softmax classifier sees."""

from __future__ import annotations

from benchmarks.common import table
from benchmarks.tables import models, paper
from benchmarks.tables.lab import Lab, cells, seeded, shown

TITLE = "Ablation (the paper's table 6)"
NOTE = (
    "Best Spearman's ρ × 100 on STSb dev after one epoch of softmax on nli-train, or four epochs of regression on STSb "
    "(batch 16, learning rate 1e-4), mean ± standard deviation over {seeds} seeds (the paper: 10), or one seed where "
    "there is no ±. All from an encoder without sentence tuning: our own masked language model (two layers of 128), "
    "whose averaged vectors are in the first table."
)


def make(lab: Lab) -> str:
    """Both halves of the table."""
    pooling = table(
        ["pooling", "NLI, paper", "NLI, ours", "STSb, paper", "STSb, ours"],
        [
            [
                mode,
                f"{figures[0]:.2f}",
                *_ours(lab, "nli", mode, ("u", "v", "|u-v|")),
                f"{figures[1]:.2f}",
                *_ours(lab, "stsb", mode, ()),
            ]
            for mode, figures in paper.POOLING.items()
        ],
    )
    features = table(
        ["features (mean pooling, NLI)", "paper", "ours"],
        [
            [f"({', '.join(names)})".replace("|", "\\|"), f"{value:.2f}", *_ours(lab, "nli", "mean", names)]
            for names, value in paper.FEATURES.items()
        ],
    )
    return f"{pooling}\n\n{features}"


def _ours(lab: Lab, objective: str, pooling: str, features: tuple[str, ...]) -> list[str]:
    seeds = lab.profile.ablation_seeds

    def make() -> list[str]:
        found = seeded(seeds, lambda seed: _dev(lab, objective, pooling, features, seed))
        return [shown(found)]

    return cells(1, make)


def _dev(lab: Lab, objective: str, pooling: str, features: tuple[str, ...], seed: int) -> float:
    """The best dev score of one run, made where it is not at hand."""
    name = models.ablated_name(objective, pooling, features, seed)
    trained = lab.trained(name, lambda: models.ablated(lab, objective, pooling, features, seed))
    return float(trained["stages"][0]["best_dev"])
