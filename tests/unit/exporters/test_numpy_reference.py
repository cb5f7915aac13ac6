"""What an observer of the numpy reference is shown, and that the pass goes on with what it returns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.exporters.numpy_reference import NumpyReference
from es_sbert.exporters.transformer_weights import Floats, read_transformer_weights
from tests.tiny import write_tiny_bert

TEXT = ["the cat sleeps on the mat"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceModel:
    return read_sentence_model(write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny"))


def test_observer_sees_every_value_once_per_layer(model: SentenceModel) -> None:
    seen: Counter[str] = Counter()

    def observe(name: str, value: Floats) -> Floats:
        seen[name] += 1
        return value

    transformer = read_transformer_weights(model)
    NumpyReference(model, transformer, observe).encode(TEXT)
    layers = len(transformer.layers)
    once = {name for name, count in seen.items() if count == 1}
    assert once >= {"embedding sum", "embedding norm"}
    assert {name: count for name, count in seen.items() if not name.startswith("embedding")} == dict.fromkeys(
        (
            "query",
            "key",
            "value",
            "attention scores",
            "attention weights",
            "attention",
            "attention product",
            "attention sum",
            "attention norm",
            "activation input",
            "activation",
            "feed-forward product",
            "feed-forward sum",
            "feed-forward norm",
        ),
        layers,
    )


def test_observer_result_replaces_the_value(model: SentenceModel) -> None:
    def half(name: str, value: Floats) -> Floats:
        return value.astype(np.float16).astype(np.float32)

    transformer = read_transformer_weights(model)
    exact = NumpyReference(model, transformer).encode(TEXT)
    rounded = NumpyReference(model, transformer, half).encode(TEXT)
    assert 1e-6 < np.abs(exact - rounded).max() < 1e-2
