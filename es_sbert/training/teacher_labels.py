"""Labels that a teacher gives to examples before training: its vectors, or margins between its scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, UnsupportedSetting
from es_sbert.filesystem import open_output
from es_sbert.messages import pluralize
from es_sbert.networks.siamese_encoder import load_pretrained, open_siamese_encoder, quiet_transformers
from es_sbert.training.recipe import MarginDistillationSpec, ObjectiveSpec, VectorDistillationSpec
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_examples import DevData, Examples

# Seconds between two progress messages of the teacher.
_REPORT_SECONDS = 30.0


class TorchPairScorer:
    """A cross-encoder in torch by sentence-transformers, as a `PairScorer`.

    Args:
        name: Folder, hub id or name of a cross-encoder with one score.
        device: Device, as torch names it.

    Raises:
        ModelError: the model cannot be opened, or has several labels.
    """

    def __init__(self, name: str, device: str) -> None:
        from sentence_transformers import CrossEncoder

        folder = resolve_model(name)
        labels = read_cross_encoder(folder, name).labels
        if len(labels) > 1:
            raise UnsupportedSetting(
                f"{name} has the labels {', '.join(labels)}, not one score", "Use a cross-encoder with one score."
            )
        self.name = name
        with quiet_transformers():
            # The library would give a model without a head random weights.
            _, absent = load_pretrained(AutoModelForSequenceClassification, folder)
            if absent:
                raise BundleInvalid(
                    f"{folder} lacks {len(absent)} tensors of the network, for example {min(absent)}",
                    "Use the folder of a trained cross-encoder.",
                )
            options = {"dtype": torch.float32, "use_safetensors": True}
            self._network = CrossEncoder(str(folder), device=device, local_files_only=True, model_kwargs=options)

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Score pairs, *shape* ``(pairs,)``."""
        pairs = list(zip(first, second, strict=True))
        return np.asarray(self._network.predict(pairs, show_progress_bar=False), dtype=np.float32)


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
    if not isinstance(objective, VectorDistillationSpec | MarginDistillationSpec) or objective.teacher is None:
        return examples
    teacher = objective.teacher
    if not cache.exists():
        report(f"Labeling {pluralize(len(examples), 'example')} of {examples.name} with {teacher}")
        if isinstance(objective, VectorDistillationSpec):
            _save_teacher_vectors(cache, examples.texts[0], objective, device, report)
        else:
            scorer = TorchPairScorer(teacher, device)
            anchors, positives, negatives = examples.texts
            save_array(cache, scorer.score(anchors, positives) - scorer.score(anchors, negatives))
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


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array completely or not at all.

    Raises:
        OutputError: the folder cannot be written to.
    """
    with translate_disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_output(path) as file:
            np.save(file, array)
