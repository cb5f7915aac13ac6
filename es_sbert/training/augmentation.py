"""Examples made by models before training: pairs of nearest neighbors, and labels by a teacher.

Augmented SBERT (Thakur et al. 2021, arXiv 2010.08240) trains on a few gold pairs and many pairs that a stronger model
has labeled. Random pairs are nearly all unrelated; neighbors have scores across the whole range.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import SourceError
from es_sbert.evaluation.exact_search import unit_vectors
from es_sbert.evaluation.pair_metrics import Similarity, paired_similarity
from es_sbert.messages import pluralize
from es_sbert.networks.pair_scorer_folder import is_pair_scorer, open_pair_scorer
from es_sbert.networks.siamese_encoder import open_siamese_encoder
from es_sbert.training.objective_settings import (
    MarginDistillationSpec,
    ObjectiveSpec,
    RegressionSpec,
    VectorDistillationSpec,
)
from es_sbert.training.recipe import NeighborsSpec
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_examples import DevData, Examples

# Number of texts whose cosines with all others are in memory at once: 200 MB for 100,000 texts.
_NEIGHBOR_BLOCK = 512

# Seconds between two progress messages of the teacher.
_REPORT_SECONDS = 30.0


def mine_neighbor_pairs(
    examples: Examples, spec: NeighborsSpec | None, cache: Path, device: str, report: Callable[[str], None]
) -> Examples:
    """Mine pairs of nearest neighbors for a teacher to label; return the examples unchanged if `spec` is None.

    Args:
        examples: Pairs of texts without labels.
        spec: The model, and the number of neighbors to draw from.
        cache: File (.npy) that stores the pairs, so that a resumed run uses the same ones.
        device: Device of the model, as torch names it.
        report: Called with progress messages.

    Returns:
        The pairs, each with the line of its first text.

    Raises:
        ModelError: the model cannot be opened.
        SourceError: every neighbor pair is already one of the examples.
        OutputError: the cache cannot be written.
    """
    if spec is None:
        return examples
    texts, lines, example_pairs = distinct_texts(examples)
    if not cache.exists():
        report(f"Mining neighbors of the {pluralize(len(texts), 'text')} of {examples.name} with {spec.model}")
        encoder = open_siamese_encoder(resolve_model(spec.model), name=spec.model).to(device)
        save_array(cache, nearest_pairs(encoder.embed(texts), example_pairs, among=spec.among, seed=spec.seed))
    pairs = np.load(cache)  # (pairs, 2)
    if not len(pairs):
        raise SourceError(f"{examples.path}: the file already contains every neighbor pair", "Raise neighbors.among.")
    return replace(
        examples, texts=tuple([texts[row] for row in pairs[:, side]] for side in (0, 1)), lines=lines[pairs[:, 0]]
    )


def distinct_texts(examples: Examples) -> tuple[list[str], NDArray[np.int64], set[tuple[int, int]]]:
    """Collect the distinct texts of all columns, in the order of their first line.

    Returns:
        The texts; the line of each, *shape* ``(texts,)``; the examples as pairs of text numbers, the lower one first.
    """
    numbers: dict[str, int] = {}
    lines: list[int] = []
    example_pairs = set()
    for line, *row in zip(examples.lines.tolist(), *examples.texts, strict=True):
        for text in row:
            if numbers.setdefault(text, len(numbers)) == len(lines):
                lines.append(line)
        first, second = sorted(numbers[text] for text in row)
        example_pairs.add((first, second))
    return list(numbers), np.array(lines, dtype=np.int64), example_pairs


def nearest_pairs(
    vectors: NDArray[np.float32], excluded: Set[tuple[int, int]], *, among: int, seed: int
) -> NDArray[np.int64]:
    """Pair each vector with one of its nearest neighbors by cosine, drawn at random.

    Args:
        vectors: *Shape:* ``(texts, dimensions)``.
        excluded: Pairs to leave out, the lower number first.
        among: Size of the neighborhood to draw from.
        seed: Random seed of the draw.

    Returns:
        *Shape:* ``(pairs, 2)``, each pair once, the lower number first, in ascending order.
    """
    unit = unit_vectors(vectors)  # (texts, dimensions)
    among = min(among, len(unit) - 1)
    random = np.random.default_rng(seed)
    pairs: set[tuple[int, int]] = set()
    for start in range(0, len(unit) if among > 0 else 0, _NEIGHBOR_BLOCK):
        cosines = unit[start : start + _NEIGHBOR_BLOCK] @ unit.T  # (block, texts)
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf  # a text is not its own neighbor
        nearest = np.argpartition(-cosines, among - 1, axis=1)[:, :among]  # (block, among)
        # Sort the neighbors, so that the draw depends only on the seed: argpartition leaves their order undefined.
        nearest.sort(axis=1)
        chosen = nearest[rows, random.integers(among, size=len(rows))]  # (block,)
        pairs.update((min(pair), max(pair)) for pair in zip((start + rows).tolist(), chosen.tolist(), strict=True))
    return np.array(sorted(pairs - excluded), dtype=np.int64).reshape(-1, 2)


def add_teacher_labels(
    examples: Examples, objective: ObjectiveSpec, cache: Path, device: str, report: Callable[[str], None]
) -> Examples:
    """Add a teacher's labels; return the examples unchanged if the objective has no teacher.

    Args:
        examples: One data set.
        objective: Its objective.
        cache: File (.npy) of the labels, memory-mapped. A resumed run reuses it.
        device: Device of the teacher, as torch names it.
        report: Called with progress messages.

    Raises:
        ModelError: the teacher cannot be opened.
        OutputError: the cache cannot be written.
    """
    teacher: str | None = getattr(objective, "teacher", None)
    if teacher is None:
        return examples
    if not cache.exists():
        report(f"Labeling {pluralize(len(examples), 'example')} of {examples.name} with {teacher}")
        if isinstance(objective, VectorDistillationSpec):
            _save_teacher_vectors(cache, examples.texts[0], objective, device, report)
        else:
            save_array(cache, _teacher_labels(teacher, examples, objective, device))
    return replace(examples, labels=np.load(cache, mmap_mode="r"))


def add_teacher_vectors(
    dev: DevData | None, objective: ObjectiveSpec, cache: Path, device: str, report: Callable[[str], None]
) -> DevData | None:
    """Add the teacher's vectors to a dev set whose task is `vectors`; return any other dev set unchanged.

    Args:
        dev: The dev set; its prompt will be that of the teacher.
        objective: The stage's objective, vector distillation.
        cache, device, report: As for `add_teacher_labels`.

    Raises:
        ModelError: the teacher cannot be opened.
        OutputError: the cache cannot be written.
    """
    if dev is None or dev.task != "vectors":
        return dev
    assert isinstance(objective, VectorDistillationSpec), "the recipe's validator has made sure of it"
    if not cache.exists():
        _save_teacher_vectors(cache, dev.texts[0], objective, device, report)
    return replace(dev, gold=np.load(cache, mmap_mode="r"), kinds=(objective.teacher_prompt,))


def _save_teacher_vectors(
    path: Path, texts: Sequence[str], objective: VectorDistillationSpec, device: str, report: Callable[[str], None]
) -> None:
    """Write the teacher's vectors of texts, *shape* ``(texts, dimensions)``, completely or not at all.

    On a CPU, they are computed with the ONNX encoder, which is faster than torch. It runs in fp32, so that the vectors
    do not depend on the processor.
    """
    name, kind = objective.teacher, objective.teacher_prompt
    folder = resolve_model(name)
    if device != "cpu":
        save_array(path, open_siamese_encoder(folder, name=name).to(device).embed(texts, kind))
        return
    with ExitStack() as stack:
        encoder = stack.enter_context(Encoder(folder, device="cpu", precision="fp32", called=name, report=report))
        stack.enter_context(translate_disk_errors(path.parent))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npy")
        vectors = np.lib.format.open_memmap(
            partial, mode="w+", dtype=np.float32, shape=(len(texts), encoder.info.dimensions)
        )
        done, told = 0, time.monotonic()
        for part in encoder.encode_stream(texts, kind):
            vectors[done : done + len(part.vectors)] = part.vectors
            done += len(part.vectors)
            if time.monotonic() - told > _REPORT_SECONDS:
                told = time.monotonic()
                report(f"{name} has embedded {done:,} of {pluralize(len(texts), 'text')}")
        vectors.flush()
        del vectors  # Windows cannot rename a mapped file
        partial.replace(path)


def _teacher_labels(teacher: str, examples: Examples, objective: ObjectiveSpec, device: str) -> NDArray[np.float32]:
    """Compute a teacher's scores or margins ``(examples,)``, depending on the objective."""
    folder = resolve_model(teacher)
    labels: NDArray[np.floating]
    if isinstance(objective, MarginDistillationSpec):
        scorer = open_pair_scorer(folder, name=teacher).to(device)
        anchors, positives, negatives = examples.texts
        margins: NDArray[np.float32] = scorer.score(anchors, positives) - scorer.score(anchors, negatives)
        return margins
    if isinstance(objective, RegressionSpec) and is_pair_scorer(folder):
        labels = open_pair_scorer(folder, name=teacher).to(device).score(*examples.texts)
    else:
        encoder = open_siamese_encoder(folder, name=teacher).to(device)
        labels = paired_similarity(Similarity.COSINE, *(encoder.embed(texts) for texts in examples.texts))
    assert isinstance(objective, RegressionSpec), "no other objective has a teacher"
    return np.clip(labels, *objective.range).astype(np.float32)


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array completely or not at all.

    Raises:
        OutputError: the folder cannot be written to.
    """
    with translate_disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, array)
        partial.replace(path)
