"""Open a baseline by `KIND:PATH`, such as `glove:FILE`, or `tfidf`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder

# What can be written, for help texts: form → what it is.
BASELINES = {
    "glove:FILE": "averaged word vectors in GloVe's text format",
    "fasttext:FILE": "the same in fastText's or word2vec's text format",
    "word2vec:FILE": "the same",
    "tfidf": "cosine of tf-idf, idf from the texts of the task's own pairs (tasks of pairs only)",
    "average:MODEL": "averaged outputs of a transformer, without sentence tuning",
    "cls:MODEL": "first output of a transformer, without sentence tuning",
}


class TfidfOfPairs:
    """Scores pairs by the cosine of their tf-idf vectors; idf comes from the texts of these pairs (a `PairScorer`).

    The texts carry no labels, so nothing of the gold data is seen.
    """

    name = "tf-idf"

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Cosines, *shape* ``(pairs,)``; 0 where a text has no word of two letters or more."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(dtype=np.float32).fit([*first, *second])
        u, v = vectorizer.transform(first), vectorizer.transform(second)  # sparse (pairs, words), rows of unit length
        return np.asarray(u.multiply(v).sum(axis=1), dtype=np.float32).ravel()


def open_baseline(spec: str, device: str = "cpu") -> SentenceEmbedder | PairScorer | None:
    """Open a baseline, or return None where the words name none.

    Args:
        spec: One of the forms of `BASELINES`.
        device: As torch names it, for those that run on torch.
    """
    kind, _, place = spec.partition(":")
    match kind:
        case "tfidf":
            return TfidfOfPairs()
        case "glove" | "fasttext" | "word2vec" if place:
            from benchmarks.baselines.word_vectors import AveragedWordVectors, read_word_vectors

            path = Path(place).expanduser()
            return AveragedWordVectors(read_word_vectors(path), f"{kind} averaged ({path.name})")
        case "average" | "cls" if place:
            from benchmarks.baselines.pooled_transformer import TransformerBaseline

            folder = resolve_model(place)
            label = {"average": "averaged", "cls": "CLS"}[kind]
            return TransformerBaseline(folder, kind, f"{folder.resolve().name} {label}", device)
    return None


def open_network(spec: str, device: str = "cpu") -> SentenceEmbedder | PairScorer:
    """Open a model of es-sbert as the torch network that was trained, not as its ONNX export."""
    from es_sbert.bundle.cross_encoder_model import is_cross_encoder
    from es_sbert.runtime.siamese_encoder import open_siamese_encoder
    from es_sbert.training.example_augmentation import TorchPairScorer

    folder = resolve_model(spec)
    if is_cross_encoder(folder):
        return TorchPairScorer(folder, device)
    return open_siamese_encoder(folder, name=spec).to(device)
