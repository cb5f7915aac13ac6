"""What a user calls a model leads to what can be measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.errors import UnsupportedArchitecture, UsageError
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder, close_model, open_model
from es_sbert.exporters.export_bundle import export_reranker
from es_sbert.runtime.siamese_encoder import open_siamese_encoder
from tests.raised import raises_as_recorded
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_cross_encoder

TEXTS = ["a man plays the guitar", "the cat sleeps on the mat", "a cat"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "query : "})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_open_sentence_encoder(tiny: Path) -> None:
    told: list[str] = []
    model = open_model(str(tiny), precision="fp32", device="cpu", report=told.append)
    assert isinstance(model, SentenceEmbedder)
    assert model.name == f"{tiny} (fp32)"
    assert any("Exporting" in message for message in told)
    network = open_siamese_encoder(tiny)
    for kind in (None, "query"):
        np.testing.assert_allclose(model.embed(TEXTS, kind), network.embed(TEXTS, kind), atol=1e-5)  # type: ignore[arg-type]
    assert np.abs(model.embed(TEXTS) - model.embed(TEXTS, "query")).max() > 0.01
    close_model(model)
    with raises_as_recorded(UsageError):
        model.embed(TEXTS)


def test_sentences_get_the_prompt_for_queries_of_a_model_with_both_prompts(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny", prompts={"query": "query : ", "document": "passage : "})
    model = open_model(str(folder), precision="fp32", device="cpu")
    np.testing.assert_array_equal(model.embed(TEXTS), model.embed(TEXTS, "query"))  # type: ignore[union-attr]
    close_model(model)


def test_open_cross_encoder(tmp_path: Path) -> None:
    folder, exported = tmp_path / "cross", tmp_path / "exported"
    write_cross_encoder(folder, layers=1)
    with raises_as_recorded(UsageError):
        open_model(str(folder))
    export_reranker(read_cross_encoder(folder), exported, [Variant.FP32])
    model = open_model(str(exported), device="cpu", precision="fp32")
    assert isinstance(model, PairScorer)
    assert not isinstance(model, SentenceEmbedder)
    reference = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    np.testing.assert_allclose(model.score(TEXTS, TEXTS[::-1]), reference.predict(pairs), atol=1e-4)
    close_model(model)


def test_poly_encoder_is_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "poly"))
    (folder / "poly_encoder.json").write_text("{}")
    with raises_as_recorded(UnsupportedArchitecture):
        open_model(str(folder), device="cpu")
