"""Table 3: argument similarity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.open_baseline import open_network
from benchmarks.baselines.probing import (
    ARGUMENT_FOLDS,
    fold_correlations,
    grades,
    random_splits,
    read_arguments,
    topic_splits,
)
from benchmarks.common import table
from benchmarks.tables import models, paper
from benchmarks.tables.cross_encoder import train_cross_encoder
from benchmarks.tables.lab import Lab, cells
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.evaluation.pair_metrics import Similarity, paired_similarity

TITLE = "Argument similarity (the paper's table 3)"
NOTE = (
    "r / ρ × 100, means over folds. The UKP aspect corpus (3,595 pairs of 28 topics; NS and DTORCD count as 0, SS as "
    "1, HS as 2) replaces AFS (6,000 pairs of 3 topics), so only the order of the rows can be compared with the paper. "
    "Across topics: 4 folds of 7 topics that training has not seen. Tuned rows: {epochs} of cosine "
    "regression (cross-encoder: binary cross-entropy) a fold, learning rate 5e-5, batch 16."
)
PARTS = {"no training": "no training", "10 folds": f"{ARGUMENT_FOLDS} folds", "across topics": "across topics"}


def make(lab: Lab) -> str:
    """The table."""
    lines = [[part, f"*{name}*", value] for (part, name), value in paper.ARGUMENT.items()]
    for name, model in _untrained(lab):
        lines += [
            [
                part,
                f"{name}{', SVR on the vectors' if place else ''}",
                *cells(
                    1, lambda name=name, model=model, place=place: [_row(lab.report("argument", name, model), place)]
                ),
            ]
            for place, part in enumerate(PARTS if not name.startswith("tf-idf") else ["no training"])
        ]
    for kind in ("bi-encoder", "cross-encoder"):
        for part in lab.profile.argument_parts:
            name = f"{lab.profile.base}, {kind}"
            lines.append([part, name, *cells(1, lambda kind=kind, part=part: [_tuned(lab, kind, part)])])
    order = list(PARTS)
    lines.sort(key=lambda line: order.index(line[0]))
    return table(["", "", "r / ρ"], lines)


def _untrained(lab: Lab) -> models.Rows:
    onnx = lab.onnx()
    return [
        ("tf-idf", lambda: ("tfidf", ())),
        ("word2vec averaged", lambda: (f"word2vec:{models.word_vectors(lab)}", ())),
        (lab.profile.base, lambda: (lab.profile.base, onnx)),
    ]


def _row(report: dict[str, Any], place: int) -> str:
    figures = report["rows"][place]["figures"]
    return f"{figures['pearson']:.2f} / {figures['spearman']:.2f}"


def _tuned(lab: Lab, kind: str, part: str) -> str:
    """Mean correlations of models tuned on the other folds."""

    def make() -> dict[str, Any]:
        (file,) = (lab.data / "argument").iterdir()
        data = read_arguments(file)
        gold = grades(data.labels)  # (pairs,)
        splits = random_splits(data.labels) if part == "10 folds" else topic_splits(data.topics)
        scores = np.empty_like(gold)  # (pairs,)
        for fold, (train, test) in enumerate(splits):
            folder = lab.work / f"argument-{kind}-{'topics' if part != '10 folds' else 'folds'}-{fold}"
            rows = [(data.first[row], data.second[row], float(gold[row])) for row in train]
            model = (_tune if kind == "bi-encoder" else _tune_cross_encoder)(lab, rows, folder.name)
            scores[test] = _scores(lab, model, [data.first[row] for row in test], [data.second[row] for row in test])
        mean, folds = fold_correlations(splits, scores, gold)
        return {
            "pearson": mean.pearson,
            "spearman": mean.spearman,
            "folds": [[each.pearson, each.spearman] for each in folds],
        }

    result = lab.kept(f"argument/{kind}-{part.replace(' ', '-')}", make)["result"]
    return f"{result['pearson']:.2f} / {result['spearman']:.2f}"


def _tune(lab: Lab, rows: list[tuple[str, str, float]], name: str) -> Path:
    source = lab.work / f"{name}.tsv"
    source.parent.mkdir(parents=True, exist_ok=True)
    lines = ["sentence1\tsentence2\tscore", *("\t".join(map(str, row)) for row in rows)]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lab.train(
        name,
        "stsb-regression",
        model__base=lab.profile.base,
        seed=1,
        stages__0__data__0__path=str(source),
        stages__0__data__0__score_range=[0, 2],
        stages__0__dev=None,
        stages__0__epochs=lab.profile.argument_epochs,
        stages__0__learning_rate=5e-5,
        stages__0__checkpoints_per_epoch=1,
    )


def _tune_cross_encoder(lab: Lab, rows: list[tuple[str, str, float]], name: str) -> Path:
    def make(folder: Path) -> None:
        train_cross_encoder(
            resolve_model(lab.profile.base), [(first, second, score / 2) for first, second, score in rows], folder,
            epochs=lab.profile.argument_epochs, learning_rate=5e-5, seed=1, device=lab.profile.device,
        )  # fmt: skip

    return lab.folder(name, make)


def _scores(lab: Lab, folder: Path, first: list[str], second: list[str]) -> NDArray[np.floating]:
    model = open_network(str(folder), lab.profile.device)
    if hasattr(model, "score"):
        return model.score(first, second)
    return paired_similarity(Similarity.COSINE, model.embed(first), model.embed(second))
