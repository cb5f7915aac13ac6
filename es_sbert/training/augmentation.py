"""Examples made by models before training: pairs of nearest neighbours, and labels by a teacher.

Augmented SBERT (Thakur et al. 2021, arXiv 2010.08240) trains on a few gold pairs and many pairs that a stronger model
has labelled. Random pairs are nearly all unrelated; neighbours have scores across the whole range.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.evaluation.pair_metrics import Similarity, paired_similarity
from es_sbert.networks.pair_scorer_folder import is_pair_scorer, open_pair_scorer
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from es_sbert.training.data.examples import Examples
from es_sbert.training.objectives.settings import (
    MarginDistillationSpec,
    ObjectiveSpec,
    RegressionSpec,
    VectorDistillationSpec,
)
from es_sbert.training.recipe import NeighboursSpec
from es_sbert.training.training_errors import translate_disk_errors

# Texts whose cosines with all others are in memory at a time: 200 MB for 100,000 texts.
_NEIGHBOUR_BLOCK = 512


def mine_neighbour_pairs(
    examples: Examples, spec: NeighboursSpec | None, cache: Path, device: str, report: Callable[[str], None]
) -> Examples:
    """Pairs of near texts in place of the pairs that were read; unchanged where `spec` is None.

    Args:
        examples: Pairs of texts without labels.
        spec: Which model says what is near, and how near.
        cache: File (.npy) that keeps the pairs, so that a resumed run has the same.
        device: What the model runs on, as torch names it.
        report: Told what takes long.

    Returns:
        Examples whose lines are those of each pair's first text.

    Raises:
        ModelError: the model cannot be opened.
        SourceError: the texts give no pair that is not among the examples already.
        OutputError: the cache cannot be written.
    """
    if spec is None:
        return examples
    texts, lines, known = distinct_texts(examples)
    if not cache.exists():
        report(f"{spec.model} looks for neighbours of the {len(texts):,} texts of {examples.name}")
        encoder = open_siamese_encoder(resolve_model(spec.model), name=spec.model).to(device)
        pairs = nearest_pairs(encoder.embed(texts), known, among=spec.among, seed=spec.seed)
        with translate_disk_errors(cache.parent):
            cache.parent.mkdir(parents=True, exist_ok=True)
            partial = cache.with_suffix(".partial.npy")
            np.save(partial, pairs)
            partial.replace(cache)
    pairs = np.load(cache)  # (pairs, 2)
    if not len(pairs):
        raise SourceError(
            f"{examples.path}: the neighbours of its texts are the pairs that it has", "Raise neighbours.among."
        )
    return replace(
        examples,
        texts=tuple([texts[row] for row in pairs[:, side]] for side in (0, 1)),
        lines=lines[pairs[:, 0]],
    )


def distinct_texts(examples: Examples) -> tuple[list[str], NDArray[np.int64], set[tuple[int, int]]]:
    """The texts of all columns, each once, in the order of their first line.

    Returns:
        The texts; the line of each, *shape* ``(texts,)``; the pairs that the examples are, as two numbers of texts,
        the lower first.
    """
    numbers: dict[str, int] = {}
    lines: list[int] = []
    known = set()
    for line, *row in zip(examples.lines.tolist(), *examples.texts, strict=True):
        for text in row:
            if numbers.setdefault(text, len(numbers)) == len(lines):
                lines.append(line)
        first, second = sorted(numbers[text] for text in row)
        known.add((first, second))
    return list(numbers), np.array(lines, dtype=np.int64), known


def nearest_pairs(
    vectors: NDArray[np.float32], known: Set[tuple[int, int]], *, among: int, seed: int
) -> NDArray[np.int64]:
    """Each vector with one of its nearest by cosine, chosen at random.

    Args:
        vectors: *Shape:* ``(texts, dimensions)``.
        known: Pairs to leave out, the lower number first.
        among: How many nearest a partner is drawn from.
        seed: Of the draw; the same gives the same pairs.

    Returns:
        *Shape:* ``(pairs, 2)``, each pair once, the lower number first, in ascending order.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths, lengths, 1)  # (texts, dimensions)
    among = min(among, len(unit) - 1)
    random = np.random.default_rng(seed)
    pairs: set[tuple[int, int]] = set()
    for start in range(0, len(unit) if among > 0 else 0, _NEIGHBOUR_BLOCK):
        cosines = unit[start : start + _NEIGHBOUR_BLOCK] @ unit.T  # (block, texts)
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf  # nothing is its own neighbour
        nearest = np.argpartition(-cosines, among - 1, axis=1)[:, :among]  # (block, among)
        # Their order within a row is an accident of the partition: sorted, so that the draw depends on the seed alone.
        nearest.sort(axis=1)
        chosen = nearest[rows, random.integers(among, size=len(rows))]  # (block,)
        pairs.update((min(pair), max(pair)) for pair in zip((start + rows).tolist(), chosen.tolist(), strict=True))
    return np.array(sorted(pairs - known), dtype=np.int64).reshape(-1, 2)


def add_teacher_labels(
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
    if isinstance(objective, VectorDistillationSpec):
        make = _teacher_vectors(objective.teacher, device)
    elif isinstance(objective, MarginDistillationSpec) and objective.teacher is not None:
        make = _teacher_margins(objective.teacher, device)
    elif isinstance(objective, RegressionSpec) and objective.teacher is not None:
        make = _teacher_scores(objective.teacher, objective.range, device)
    else:
        return examples
    if not cache.exists():
        report(f"{objective.teacher} labels {len(examples):,} examples of {examples.name}")
        labels = make(examples)
        with translate_disk_errors(cache.parent):
            cache.parent.mkdir(parents=True, exist_ok=True)
            partial = cache.with_suffix(".partial.npy")
            np.save(partial, labels)
            partial.replace(cache)
    return examples.replace_labels(np.load(cache, mmap_mode="r"))


def _teacher_vectors(teacher: str, device: str) -> Callable[[Examples], NDArray[np.float32]]:
    def make(examples: Examples) -> NDArray[np.float32]:
        encoder = open_siamese_encoder(resolve_model(teacher), name=teacher).to(device)
        vectors: NDArray[np.float32] = encoder.embed(examples.texts[0])  # (examples, dimensions)
        return vectors

    return make


def _teacher_scores(
    teacher: str, limits: tuple[float, float], device: str
) -> Callable[[Examples], NDArray[np.float32]]:
    def make(examples: Examples) -> NDArray[np.float32]:
        folder = resolve_model(teacher)
        scores: NDArray[np.floating]  # (examples,)
        if is_pair_scorer(folder):
            scores = open_pair_scorer(folder, name=teacher).to(device).score(*examples.texts)
        else:
            encoder = open_siamese_encoder(folder, name=teacher).to(device)
            scores = paired_similarity(Similarity.COSINE, *(encoder.embed(texts) for texts in examples.texts))
        return np.clip(scores, *limits).astype(np.float32)

    return make


def _teacher_margins(teacher: str, device: str) -> Callable[[Examples], NDArray[np.float32]]:
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
