"""Models with fixed vectors, for es-sbert and for sentence-transformers' evaluators alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers.util import cos_sim

from es_sbert.bundle.modules import PromptKind


class FixedEmbedder:
    """Gives each text a vector that was decided before; `kinds` notes what it was asked for."""

    def __init__(self, vectors: Mapping[str, Sequence[float] | NDArray[np.float32]], name: str = "fixed") -> None:
        self.vectors = {text: np.asarray(vector, dtype=np.float32) for text, vector in vectors.items()}
        self.name = name
        self.kinds: list[PromptKind | None] = []
        self.texts = 0

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        self.kinds.append(kind)
        self.texts += len(texts)
        return np.stack([self.vectors[text] for text in texts])


class FixedScorer:
    """Gives each pair a score that was decided before."""

    def __init__(self, scores: Mapping[tuple[str, str], float]) -> None:
        self.scores = scores
        self.name = "scorer"

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        return np.array([self.scores[pair] for pair in zip(first, second, strict=True)], dtype=np.float32)


class ReferenceModel:
    """What sentence-transformers' evaluators need of a model, with the vectors of a `FixedEmbedder`."""

    similarity_fn_name = "cosine"
    similarity = staticmethod(cos_sim)
    model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *arguments, **named: None)

    def __init__(self, embedder: FixedEmbedder) -> None:
        self._embedder = embedder

    def encode(self, sentences: Sequence[str], *, convert_to_tensor: bool = False, **options: Any) -> Any:
        import torch

        vectors = self._embedder.embed(list(sentences))
        return torch.from_numpy(vectors) if convert_to_tensor else vectors

    encode_query = encode
    encode_document = encode


def random_embedder(texts: Sequence[str], dimensions: int = 8, seed: int = 0) -> FixedEmbedder:
    """Vectors of differing length, so that cosine and dot product differ."""
    random = np.random.default_rng(seed)
    lengths = random.uniform(0.5, 3, size=(len(texts), 1))  # (texts, 1)
    vectors = random.normal(size=(len(texts), dimensions)) * lengths  # (texts, dimensions)
    return FixedEmbedder(dict(zip(texts, vectors, strict=True)))


def write_collection(
    folder: Path,
    *,
    corpus: list[object] | None = None,
    queries: list[object] | None = None,
    judgements: str = "1\td1\t2\n1\td9\t1\n2\td2\t0\n",
) -> Path:
    """A small collection: document 1 is query 1 as well, as equal ids and texts say."""
    corpus = corpus or [
        {"_id": "1", "title": "Do cats", "text": "sleep a lot?"},
        {"_id": "d1", "title": "", "text": "Cats sleep."},
        {"_id": "d2", "text": "Dogs bark."},
        {"_id": "2", "text": "Something else."},
    ]
    queries = queries or [{"_id": "1", "text": "sleep a lot?"}, {"_id": "2", "text": "dogs"}, {"_id": "3", "text": "x"}]
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)
    return folder
