"""Run a written variant and the reference on the same sentences, and report how they compare."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path

import numpy as np

from es_sbert.bundle.manifest import ParityReport
from es_sbert.bundle.model import SentenceModel
from es_sbert.encoder.batches import plan_batches
from es_sbert.encoder.device import Device, choose_device
from es_sbert.encoder.hardware import cuda_devices
from es_sbert.encoder.packing import BatchInputs
from es_sbert.encoder.session import SHORT_TEXT, available_providers, run
from es_sbert.encoder.tokenizer import SentenceTokenizer
from es_sbert.encoder.workers import Workers
from es_sbert.errors import EsSbertError, ModelError, SourceError
from es_sbert.exporters.attention import Attention
from es_sbert.exporters.build import Recipe
from es_sbert.exporters.parity import GoldPairs, compare, padded_batches, sts_spearman
from es_sbert.exporters.reference import ReferenceKind, choose_reference
from es_sbert.exporters.sentences import parity_sentences
from es_sbert.exporters.transformer import Floats, Transformer
from es_sbert.tabular import read_table

_BATCH_TOKENS = {"cpu": 512, "cuda": 16_384}


class ParityCheck:
    """The parity gate of one model; reference vectors are made once, when the first variant needs them.

    Args:
        model: The model.
        transformer: Its weights; None where graphs are traced, whose reference is always sentence-transformers.
        reference: Which reference implementation.
        gold: Sentence pairs with scores, where given.
    """

    def __init__(
        self, model: SentenceModel, transformer: Transformer | None, reference: ReferenceKind, gold: GoldPairs | None
    ) -> None:
        self._model = model
        self._transformer = transformer
        self._kind: ReferenceKind = reference if transformer is not None else "sentence-transformers"
        self._gold = gold
        self._sentences = parity_sentences(model.max_tokens)
        self._tokenizer = SentenceTokenizer(model)

    @cached_property
    def _reference(self) -> tuple[str, Floats, float | None]:
        """Name of the reference, its vectors of the parity sentences, its ρ × 100 on the gold pairs."""
        try:
            return self._encode_by(self._kind)
        except EsSbertError:
            raise
        except Exception as error:  # whatever another library raises on a folder that it does not understand
            reason = f"sentence-transformers fails on it: {type(error).__name__}: {error}"
            if self._kind != "auto":
                raise ModelError(
                    f"{self._model.folder} cannot be compared with its reference: {reason}",
                    "Open the folder with SentenceTransformer(...) and mend what it names.",
                ) from error
            name, vectors, gold = self._encode_by("numpy")
            return f"{name} ({reason})", vectors, gold

    def _encode_by(self, kind: ReferenceKind) -> tuple[str, Floats, float | None]:
        name, encode = choose_reference(self._model, self._transformer, kind)
        vectors = encode(self._sentences)
        if self._gold is None:
            return name, vectors, None
        return name, vectors, sts_spearman(encode(self._gold.first), encode(self._gold.second), self._gold)

    def __call__(self, path: Path, recipe: Recipe) -> ParityReport:
        """Check one ONNX file.

        Raises:
            DeviceError: this machine lacks the device it is meant for, or it does not run there.
            BundleInvalid: onnxruntime does not take the file.
        """
        device = choose_device(recipe.device, available_providers(), cuda_devices())
        with closing(Workers(path, device, threads=1)) as workers:
            return self._compare(workers, device, recipe)

    def _compare(self, workers: Workers, device: Device, recipe: Recipe) -> ParityReport:
        with workers.session() as session:
            inputs = BatchInputs(session)

        def encode(texts: Sequence[str]) -> Floats:
            rows = self._tokenizer(texts).ids
            lengths = np.array([len(row) for row in rows])  # (texts,)
            # Nobody wrote a traced graph with padding in mind, so it has to show that padding changes nothing.
            traced = recipe.attention is Attention.TRACED
            batches = padded_batches(lengths) if traced else plan_batches(lengths, _BATCH_TOKENS[device.kind])
            vectors = np.empty((len(rows), self._model.dimensions), dtype=np.float32)
            for batch in batches:
                into = np.empty((len(batch), self._model.dimensions), dtype=np.float32)
                # As the encoder does: short texts have an attention kernel of their own.
                with workers.session(short=inputs.packed and lengths[batch].max() <= SHORT_TEXT) as session:
                    run(session, inputs([rows[number] for number in batch]), into)
                vectors[batch] = into
            return vectors

        name, reference, sts_reference = self._reference
        gold = self._gold
        return compare(
            recipe.precision,
            name,
            reference,
            encode(self._sentences),
            sts_reference=sts_reference,
            sts_variant=None if gold is None else sts_spearman(encode(gold.first), encode(gold.second), gold),
        )


def read_gold_pairs(path: Path) -> GoldPairs:
    """Read sentence pairs with scores from a table with the columns `sentence1`, `sentence2` and `score`.

    Raises:
        SourceError: the file cannot be read, lacks a column, has an empty sentence or a score that is no number, or
            holds fewer than two pairs.
    """
    table = read_table(path, ("sentence1", "sentence2", "score"))
    pairs = GoldPairs(table.texts("sentence1"), table.texts("sentence2"), table.floats("score"))
    if len(table) < 2:
        raise SourceError(f"{path} holds {len(table)} pairs, too few to rank", "Give a file with more pairs.")
    return pairs
