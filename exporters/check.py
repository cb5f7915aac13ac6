"""Run a written variant and the reference on the same sentences, and report how they compare."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from es_sbert.bundle.manifest import ParityReport
from es_sbert.bundle.model import SentenceModel
from es_sbert.encoder.batches import pad, plan_batches
from es_sbert.encoder.device import choose_device
from es_sbert.encoder.hardware import cuda_devices
from es_sbert.encoder.session import available_providers, open_session, run
from es_sbert.encoder.tokenizer import SentenceTokenizer
from es_sbert.errors import DeviceError, EsSbertError, ModelError, SourceError
from es_sbert.exporters.build import Recipe
from es_sbert.exporters.parity import GoldPairs, compare, sts_spearman
from es_sbert.exporters.reference import ReferenceKind, choose_reference
from es_sbert.exporters.sentences import parity_sentences
from es_sbert.exporters.transformer import Floats, Transformer

_BATCH_TOKENS = {"cpu": 512, "cuda": 16_384}
_COLUMNS = ("sentence1", "sentence2", "score")


class ParityCheck:
    """The parity gate of one model; reference vectors are made once, when the first variant needs them.

    Args:
        model: The model.
        transformer: Its weights.
        reference: Which reference implementation.
        gold: Sentence pairs with scores, where given.
    """

    def __init__(
        self, model: SentenceModel, transformer: Transformer, reference: ReferenceKind, gold: GoldPairs | None
    ) -> None:
        self._model = model
        self._transformer = transformer
        self._kind: ReferenceKind = reference
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

    def __call__(self, path: Path, recipe: Recipe) -> ParityReport | None:
        """Check one ONNX file; None where this machine lacks the device it is meant for.

        Raises:
            BundleInvalid: onnxruntime does not take the file.
        """
        try:
            device = choose_device(recipe.device, available_providers(), cuda_devices())
            session = open_session(path, device)
        except DeviceError:
            # A driver alone is not enough (CUDA, cuDNN): only opening a session shows what is there.
            return None

        def encode(texts: Sequence[str]) -> Floats:
            rows = self._tokenizer(texts).ids
            vectors = np.empty((len(rows), self._model.dimensions), dtype=np.float32)
            for batch in plan_batches(np.array([len(row) for row in rows]), _BATCH_TOKENS[device.kind]):
                vectors[batch] = run(session, *pad([rows[number] for number in batch]))
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
    """Read sentence pairs with scores from a TSV file with a header (`sentence1`, `sentence2`, `score`), gzip'd or not.

    Raises:
        SourceError: the file cannot be read, lacks a column, or holds a score that is no number.
    """
    remedy = f"Give a TSV file with the columns {', '.join(_COLUMNS)} in its first line."
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
            lines = [line.rstrip("\r\n").split("\t") for line in stream]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}", remedy) from error
    header = lines[0] if lines else []
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise SourceError(f"{path} has no column {', '.join(missing)}", remedy)
    places = [header.index(name) for name in _COLUMNS]
    pairs: list[tuple[str, str]] = []
    scores: list[float] = []
    for number, fields in enumerate(lines[1:], start=2):
        try:
            first, second, score = (fields[place] for place in places)
            scores.append(float(score))
        except (IndexError, ValueError) as error:
            raise SourceError(f"{path}, line {number}: {error}", remedy) from error
        if not math.isfinite(scores[-1]):
            raise SourceError(f"{path}, line {number}: the score is not finite", remedy)
        pairs.append((first, second))
    if len(pairs) < 2:
        raise SourceError(f"{path} holds {len(pairs)} pairs, too few to rank", remedy)
    return GoldPairs([first for first, _ in pairs], [second for _, second in pairs], np.array(scores))
