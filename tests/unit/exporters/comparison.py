"""Vectors of a model folder: by sentence-transformers, by the numpy pass and by exported graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from es_sbert.bundle.modules import PromptKind
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters import export_model
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.numpy_reference import NumpyReference
from es_sbert.exporters.parity import row_cosines
from es_sbert.exporters.transformer_weights import Floats

TEXTS = ["", "a", "The CAT sleeps", "  leading space", "naïve café", "[MASK] and <mask> spelled out", "yes " * 60]
KINDS: tuple[PromptKind | None, ...] = (None, "query", "document")
Vectors = dict[PromptKind | None, Floats]


def edit(path: Path, **settings: Any) -> None:
    """Change settings of a JSON file."""
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | settings))


def their_vectors(folder: Path) -> Vectors:
    network = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()
    functions = {None: network.encode, "query": network.encode_query, "document": network.encode_document}
    return {kind: np.asarray(functions[kind](TEXTS)) for kind in KINDS}


def our_vectors(folder: Path, precision: str = "fp32") -> Vectors:
    with Encoder(folder, device="cpu", precision=precision) as encoder:
        return {kind: encoder.encode(TEXTS, kind) for kind in KINDS}


def numpy_vectors(model: SentenceModel) -> Vectors:
    reference = NumpyReference(model, read_transformer_weights(model))
    return {kind: reference.encode(TEXTS, kind) for kind in KINDS}


def assert_same(vectors: Vectors, expected: Vectors, cosine: float = 0.99999) -> None:
    for kind in KINDS:
        assert vectors[kind].shape == expected[kind].shape, kind
        assert row_cosines(vectors[kind], expected[kind]).min() > cosine, kind


def check(folder: Path, bundle: Path) -> None:
    """The numpy pass, graphs of both precisions, and the bundle, which both libraries open."""
    expected, model = their_vectors(folder), read_sentence_model(folder)
    is_static = model.architecture == "static"  # a table of vectors, without a network and another precision
    if not is_static:
        assert_same(numpy_vectors(model), expected)
    manifest = export_model(folder, bundle, ["fp32"] if is_static else ["fp32", "int8"], force=True)
    assert manifest.fingerprint == model.fingerprint
    assert_same(our_vectors(bundle), expected)
    if not is_static:
        assert_same(our_vectors(bundle, "int8"), expected, 0.95)
    assert_same(their_vectors(bundle), expected)
