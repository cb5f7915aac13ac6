"""Table 2: models tuned on the STS benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.common import table
from benchmarks.tables import models, paper
from benchmarks.tables.lab import Lab, cells, figure, shown

TITLE = "STS benchmark, tuned (the paper's table 2)"
NOTE = (
    "Spearman's ρ × 100 on STSb test, mean ± standard deviation over seeds. The dev set chooses the checkpoint; the "
    "test set is read once, by this table. Trained by the recipes `stsb-regression` and `nli-softmax`; dev figures "
    "stand in `benchmarks/results`."
)


def rows(lab: Lab) -> list[tuple[str, Callable[[int], tuple[str | Path, tuple[str, ...]]]]]:
    """(label, seed → (model, options)) of our rows."""
    onnx, base = lab.onnx(), lab.profile.base
    own = [
        (f"{base}, STSb", lambda seed: (models.stsb(lab, seed), onnx)),
        (f"{base}, NLI then STSb", lambda seed: (models.nli_then_stsb(lab, seed), onnx)),
    ]
    # A model does not teach itself.
    taught = [(f"{base}, STSb and neighbours scored by a tuned all-mpnet-base-v2",
               lambda seed: (models.augmented(lab, seed), onnx))] if lab.profile.name == "cpu" else []  # fmt: skip
    return [
        *own,
        *taught,
        (f"{base}, cross-encoder, STSb", lambda seed: (models.cross_encoder(lab, seed), ())),
        (f"{base}, poly-encoder, STSb", lambda seed: (models.poly_encoder(lab, seed), ())),
    ]


def make(lab: Lab) -> str:
    """The table."""
    test = lab.data / "sts/stsb-en-test.tsv.gz"

    def measured(name: str, seed: int, model: Callable[[int], tuple[str | Path, tuple[str, ...]]]) -> float:
        report = lab.report("sts", f"{name} {seed}", lambda: model(seed), files=[test])
        names = report["rows"][0]["figures"]
        return figure(report, report["rows"][0]["data"], next(n for n in names if n.startswith("spearman")))

    seeds = lab.profile.seeds

    def ours(name: str, model: Callable[[int], tuple[str | Path, tuple[str, ...]]]) -> list[str]:
        return [shown([measured(name, seed, model) for seed in seeds])]

    lines = [[f"*{name}*", "", value] for name, value in paper.STSB.items()]
    for name, model in rows(lab):
        lines.append([name, str(len(seeds)), *cells(1, lambda name=name, model=model: ours(name, model))])
    return table(["", "seeds", "STSb test ρ"], lines)
