"""Table 2: models tuned on the STS benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.common import table
from benchmarks.tables import models, paper
from benchmarks.tables.lab import Lab, cells, figure, seeded, shown

TITLE = "STS benchmark, tuned (the paper's table 2)"
NOTE = (
    "Spearman's ρ × 100 on STSb test, mean ± standard deviation over seeds. The dev set chooses the checkpoint; the "
    "test set is read once, by this table. Recipes: `stsb-regression`, `nli-softmax`, `stsb-cosent`. Dev scores are in "
    "`benchmarks/results`."
)


Seeded = Callable[[int], tuple[str | Path, tuple[str, ...]]]


def rows(lab: Lab) -> list[tuple[str, tuple[int, ...], Seeded]]:
    """(label, seeds, seed → (model, options)) of our rows."""
    onnx, base, seeds, pair_seeds = lab.onnx(), lab.profile.base, lab.profile.seeds, lab.profile.pair_seeds
    own: list[tuple[str, tuple[int, ...], Seeded]] = [
        (f"{base}, STSb", seeds, lambda seed: (models.stsb(lab, seed), onnx)),
        (f"{base}, NLI then STSb", seeds, lambda seed: (models.nli_then_stsb(lab, seed), onnx)),
    ]
    if lab.profile.name == "cpu":
        own.append(("bge-small-en-v1.5, STSb with CoSENT", (1,), lambda seed: (models.cosent(lab, seed), onnx)))
    own.append(
        (f"{base}, cross-encoder, STSb", pair_seeds, lambda seed: (models.cross_encoder(lab, seed), ("--torch",)))
    )
    return own


def make(lab: Lab) -> str:
    """The table."""
    test = lab.data / "sts/stsb-en-test.tsv.gz"

    def measured(name: str, seed: int, model: Seeded) -> float:
        report = lab.report("sts", f"{name} {seed}", lambda: model(seed), files=[test])
        names = report["rows"][0]["figures"]
        return figure(report, report["rows"][0]["data"], next(n for n in names if n.startswith("spearman")))

    def ours(name: str, seeds: tuple[int, ...], model: Seeded) -> list[str]:
        found = seeded(seeds, lambda seed: measured(name, seed, model))
        return [str(len(found)), shown(found)]

    lines = [[f"*{name}*", "", value] for name, value in paper.STSB.items()]
    for row in rows(lab):
        lines.append([row[0], *cells(2, lambda row=row: ours(*row))])
    return table(["", "seeds", "STSb test ρ"], lines)
