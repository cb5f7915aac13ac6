"""What other models add to examples before training: a teacher's labels, and hard negatives.

Hard negatives are texts that a ranking places near a query although they are not relevant to it. Most texts that rank
high for a query and are not labeled are in fact relevant (Qu et al. 2021, RocketQA, arXiv 2010.08191). A candidate is
therefore dropped unless its cosine with the query is lower than that of the positive by a margin (de Souza P. Moreira
et al. 2024, NV-Retriever, arXiv 2407.15831).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import SourceError, UnsupportedSetting
from es_sbert.evaluation.ranking import search_exact
from es_sbert.filesystem import open_output
from es_sbert.messages import pluralize
from es_sbert.runtime.siamese_encoder import load_pretrained, open_siamese_encoder, quiet_transformers
from es_sbert.runtime.tokenizer import ModelTokenizer
from es_sbert.training.recipe import (
    HardNegativesSpec,
    InBatchSpec,
    MarginDistillationSpec,
    ObjectiveSpec,
    StageSpec,
    VectorDistillationSpec,
)
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_examples import DevData, Examples, StageData
from es_sbert.vectors import unit_vectors

# Seconds between two progress messages of the teacher.
_REPORT_SECONDS = 30.0


def _add_teacher_labels(
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
    if not isinstance(objective, VectorDistillationSpec | MarginDistillationSpec) or objective.teacher is None:
        return examples
    if not cache.exists():
        report(f"Labeling {pluralize(len(examples), 'example')} of {examples.name} with {objective.teacher}")
        if isinstance(objective, VectorDistillationSpec):
            _save_teacher_vectors(cache, examples.texts[0], objective, device, report)
        else:
            anchors, positives, negatives = examples.texts
            teacher = TorchPairScorer(resolve_model(objective.teacher), device, objective.teacher)
            _save_array(cache, np.subtract(teacher.score(anchors, positives), teacher.score(anchors, negatives)))
    return replace(examples, labels=np.load(cache, mmap_mode="r"))


class TorchPairScorer:
    """A cross-encoder in torch by sentence-transformers (a `PairScorer`).

    Raises:
        ModelError: the model cannot be opened, or has several labels.
    """

    def __init__(self, folder: Path, device: str, name: str | None = None) -> None:
        from sentence_transformers import CrossEncoder

        self.name = name or folder.resolve().name
        model = read_cross_encoder(folder, self.name)
        if len(labels := model.labels) > 1:
            raise UnsupportedSetting(
                f"{self.name} has the labels {', '.join(labels)}, not one score", "Use a cross-encoder with one score."
            )
        self._tokenizer = ModelTokenizer(model)
        with quiet_transformers():
            # CrossEncoder would give a model without a head random weights.
            load_pretrained(AutoModelForSequenceClassification, folder)
            options = {"dtype": torch.float32, "use_safetensors": True}
            self._network = CrossEncoder(str(folder), device=device, local_files_only=True, model_kwargs=options)

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Score pairs, *shape* ``(pairs,)``.

        Raises:
            UsageError: a text contains a token for which the model has no vector.
        """
        self._tokenizer.check_texts([*first, *second])
        pairs = list(zip(first, second, strict=True))
        return np.asarray(self._network.predict(pairs, show_progress_bar=False), dtype=np.float32)


def _add_teacher_vectors(
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
        _save_array(path, open_siamese_encoder(folder, name=name).to(device).embed(texts, kind))
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


def _save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array completely or not at all.

    Raises:
        OutputError: the folder cannot be written to.
    """
    with translate_disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_output(path) as file:
            np.save(file, array)


Rows = NDArray[np.int64]


def merge_rankings(rankings: Sequence[Rows], first_rank: int, last_rank: int) -> list[list[int]]:
    """Merge the parts of several rankings between two ranks: take documents in turn, each once per query.

    Args:
        rankings: Rows of documents, best first; −1 where a ranking ends. *Shape:* ``(queries, ranks)`` each.
        first_rank, last_rank: From 1, both inclusive.
    """
    merged = []
    for rows in zip(*(ranking[:, first_rank - 1 : last_rank].tolist() for ranking in rankings), strict=True):
        turns = (row for turn in zip_longest(*rows, fillvalue=-1) for row in turn)
        merged.append([row for row in dict.fromkeys(turns) if row >= 0])
    return merged


def keep_below_margin(
    candidates: Sequence[Sequence[int]],
    positives: Sequence[Sequence[int]],
    queries: NDArray[np.float32],
    documents: NDArray[np.float32],
    margin: float,
) -> list[list[int]]:
    """Keep the candidates that the model itself places clearly below the positive, in their order.

    Args:
        candidates: Rows of documents for each query.
        positives: Rows of the documents that are relevant to each query, the pair's own first.
        queries, documents: Vectors of unit length. *Shape:* ``(queries, dimensions)``, ``(documents, dimensions)``.
        margin: Minimum difference between the cosine of the pair's own positive and that of a candidate.
    """
    kept = []
    for query, rows, relevant in zip(queries, candidates, positives, strict=True):
        highest = float(query @ documents[relevant[0]]) - margin
        cosines = documents[list(rows)] @ query  # (candidates,)
        right = set(relevant)
        kept.append(
            [row for row, cosine in zip(rows, cosines.tolist(), strict=True) if cosine <= highest and row not in right]
        )
    return kept


def fill_up(
    candidates: Sequence[Sequence[int]], positives: Sequence[Sequence[int]], documents: int, count: int, seed: int
) -> Rows:
    """Take the first candidates of each query, and add random documents if there are too few.

    Args:
        candidates, positives: As for `keep_below_margin`.
        documents: Number of documents: at least the number of positives of any query plus `count`.
        count: Negatives per query.
        seed: Seed of the random documents.

    Returns:
        *Shape:* ``(queries, count)``, the rows of one query all different.
    """
    random = np.random.default_rng(seed)
    chosen = np.empty((len(candidates), count), dtype=np.int64)
    for number, (rows, relevant) in enumerate(zip(candidates, positives, strict=True)):
        filled = list(rows[:count])
        excluded = {*filled, *relevant}
        while len(filled) < count:
            row = int(random.integers(documents))
            if row not in excluded:
                filled.append(row)
                excluded.add(row)
        chosen[number] = filled
    return chosen


def choose_negatives(
    rankings: Sequence[Rows],
    positives: Sequence[Sequence[int]],
    vectors: tuple[NDArray[np.float32], NDArray[np.float32]],
    spec: HardNegativesSpec,
) -> Rows:
    """Choose the hard negatives of each query.

    Args:
        rankings: Rows of documents, best first, −1 where a ranking ends. *Shape:* ``(queries, ranks)`` each.
        positives: Rows of the documents that are relevant to each query, the pair's own first; also those of equal
            text.
        vectors: Vectors of queries and documents, of any length. *Shape:*
             ``(queries, dimensions)``, ``(documents, dimensions)``.
        spec: Ranks, margin and count.

    Returns:
        *Shape:* ``(queries, spec.count)``.

    Raises:
        SourceError: there are too few documents.
    """
    queries, documents = (unit_vectors(side) for side in vectors)
    most = max(map(len, positives), default=0)
    if len(documents) < most + spec.count:
        raise SourceError(
            f"{len(documents):,} different texts are too few for {spec.count} negatives per query",
            "Use more documents, or lower hard_negatives.count.",
        )
    candidates = merge_rankings(rankings, *spec.ranks)
    margin = -math.inf if spec.margin is None else spec.margin
    candidates = keep_below_margin(candidates, positives, queries, documents, margin)
    return fill_up(candidates, positives, len(documents), spec.count, spec.seed)


def normalized_text(text: str) -> str:
    """Normalize the case and white space of a text: most tokenizers ignore such differences."""
    return " ".join(text.split()).casefold()


def relevant_rows(queries: Sequence[str], positives: Sequence[int], documents: Sequence[str]) -> list[list[int]]:
    """Find all documents that must not be negatives of a query: its positives in any pair, and the query itself.

    Args:
        queries: The query of each pair.
        positives: Row of each pair's positive.
        documents: The documents, whose texts are all different.

    Returns:
        Rows of documents for each pair, its own positive first.
    """
    rows_of: dict[str, dict[int, None]] = {}
    by_text = {normalized_text(text): row for row, text in enumerate(documents)}
    keys = [normalized_text(query) for query in queries]
    for key, row in zip(keys, positives, strict=True):
        rows_of.setdefault(key, {})[row] = None
    for key, rows in rows_of.items():
        if key in by_text:
            rows[by_text[key]] = None
    return [[row, *(other for other in rows_of[key] if other != row)] for key, row in zip(keys, positives, strict=True)]


def _add_hard_negatives(
    examples: Examples,
    spec: HardNegativesSpec | None,
    cache: Path,
    device: str,
    report: Callable[[str], None],
    *,
    one_each: bool = False,
) -> Examples:
    """Mine negatives for each pair among the positives of all pairs; return the examples unchanged if `spec` is None.

    Args:
        examples: Pairs of anchor and positive.
        spec: The model, ranks and margin.
        cache: File (.npy) that stores the negatives, so that a resumed run uses the same ones.
        device: Device of the models, as torch names it.
        report: Called with progress messages.
        one_each: Whether an example of the objective has a single negative.

    Returns:
        The examples with `spec.count` more columns; with `one_each`, `spec.count` rows of each with one more column.

    Raises:
        ModelError: a model cannot be opened.
        SourceError: there are too few positives.
        OutputError: the cache cannot be written.
    """
    if spec is None:
        return examples
    anchors, positives = examples.texts
    rows: dict[str, int] = {}
    documents: list[str] = []
    for text in positives:
        if rows.setdefault(normalized_text(text), len(documents)) == len(documents):
            documents.append(text)
    if not cache.exists():
        report(f"Mining negatives of the {pluralize(len(examples), 'pair')} of {examples.name} with {spec.model}")
        encoder = open_siamese_encoder(resolve_model(spec.model), name=spec.model).to(device)
        vectors = encoder.embed(anchors, "query"), encoder.embed(documents, "document")
        relevant = relevant_rows(anchors, [rows[normalized_text(text)] for text in positives], documents)
        nearest, _ = search_exact(*vectors, spec.ranks[1])
        _save_array(cache, choose_negatives([nearest], relevant, vectors, spec))
    chosen = np.load(cache)  # (pairs, count)
    if one_each:
        repeated = [[text for text in column for _ in range(spec.count)] for column in examples.texts]
        negatives = [documents[row] for row in chosen.flatten().tolist()]
        return replace(examples, texts=(*repeated, negatives), lines=np.repeat(examples.lines, spec.count))
    columns = [[documents[row] for row in column] for column in chosen.T.tolist()]
    return replace(examples, texts=(*examples.texts, *columns))


def augment_examples(
    stage: StageSpec, data: StageData, folder: Path, device: str, report: Callable[[str], None]
) -> StageData:
    """Mine negatives, and add teachers' labels. Both are stored in the stage's folder for a resumed run.

    Args:
        stage, data: The stage and its data.
        folder: Its folder.
        device: Device of the models, as torch names it.
        report: Called with progress messages.

    Raises:
        ModelError: a model cannot be opened.
        SourceError: there are too few positives.
        OutputError: the folder cannot be written to.
    """
    examples = []
    datasets = zip(stage.data, data.examples, data.objectives, strict=True)
    for number, (spec, dataset, objective) in enumerate(datasets):
        labels, negatives = folder / f"teacher-{number}.npy", folder / f"negatives-{number}.npy"
        one_each = not isinstance(objective, InBatchSpec)
        mined = _add_hard_negatives(dataset, spec.hard_negatives, negatives, device, report, one_each=one_each)
        examples.append(_add_teacher_labels(mined, objective, labels, device, report))
    dev = _add_teacher_vectors(data.dev, data.objectives[0], folder / "teacher-dev.npy", device, report)
    return replace(data, examples=tuple(examples), dev=dev)
