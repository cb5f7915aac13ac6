"""Labels by a teacher model, made once before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.resolve import resolve_model
from es_sbert.errors import RecipeInvalid
from es_sbert.evaluation.similarity import Similarity, paired_similarity
from es_sbert.networks.folder import open_siamese
from es_sbert.networks.pair_folder import is_pair_model, open_pair_scorer
from es_sbert.training.data.examples import Examples
from es_sbert.training.failures import disk_errors_explained
from es_sbert.training.objectives.settings import MarginDistillation, ObjectiveSpec, Regression, VectorDistillation


def taught(
    examples: Examples, objective: ObjectiveSpec, cache: Path, device: str, report: Callable[[str], None]
) -> Examples:
    """Examples with a teacher's labels; unchanged where the objective has no teacher.

    Args:
        examples: One data set.
        objective: Its objective.
        cache: File (.npy) that keeps the labels, so that a resumed run need not make them again; vectors are read
            from it as they are needed.
        device: What the teacher runs on, as torch names it.
        report: Told what takes long.

    Raises:
        ModelError: the teacher cannot be opened.
        RecipeInvalid: it takes more than one negative.
        OutputError: the cache cannot be written.
    """
    make: Callable[[Examples], NDArray[np.float32]]
    if isinstance(objective, VectorDistillation):
        make = _vectors(objective.teacher, device)
    elif isinstance(objective, MarginDistillation) and objective.teacher is not None:
        make = _margins(objective.teacher, device)
    elif isinstance(objective, Regression) and objective.teacher is not None:
        make = _scores(objective.teacher, objective.range, device)
    else:
        return examples
    if not cache.exists():
        report(f"{objective.teacher} labels {len(examples):,} examples of {examples.name}")
        labels = make(examples)
        with disk_errors_explained(cache.parent):
            cache.parent.mkdir(parents=True, exist_ok=True)
            partial = cache.with_suffix(".partial.npy")
            np.save(partial, labels)
            partial.replace(cache)
    return examples.with_labels(np.load(cache, mmap_mode="r"))


def _vectors(teacher: str, device: str) -> Callable[[Examples], NDArray[np.float32]]:
    def make(examples: Examples) -> NDArray[np.float32]:
        encoder = open_siamese(resolve_model(teacher), name=teacher).to(device)
        vectors: NDArray[np.float32] = encoder.embed(examples.texts[0])  # (examples, dimensions)
        return vectors

    return make


def _scores(teacher: str, limits: tuple[float, float], device: str) -> Callable[[Examples], NDArray[np.float32]]:
    def make(examples: Examples) -> NDArray[np.float32]:
        folder = resolve_model(teacher)
        scores: NDArray[np.floating]  # (examples,)
        if is_pair_model(folder):
            scores = open_pair_scorer(folder, name=teacher).to(device).score(*examples.texts)
        else:
            encoder = open_siamese(folder, name=teacher).to(device)
            scores = paired_similarity(Similarity.COSINE, *(encoder.embed(texts) for texts in examples.texts))
        return np.clip(scores, *limits).astype(np.float32)

    return make


def _margins(teacher: str, device: str) -> Callable[[Examples], NDArray[np.float32]]:
    def make(examples: Examples) -> NDArray[np.float32]:
        if len(examples.texts) != 3:
            raise RecipeInvalid(
                f"{examples.name}: a teacher's margin is between one positive and one negative",
                "Map the role negative to one column.",
            )
        scorer = open_pair_scorer(resolve_model(teacher), name=teacher).to(device)
        anchors, positives, negatives = examples.texts
        margins: NDArray[np.float32] = scorer.score(anchors, positives) - scorer.score(anchors, negatives)
        return margins  # (examples,)

    return make
