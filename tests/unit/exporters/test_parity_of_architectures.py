"""Graphs and the numpy reference against sentence-transformers, for every architecture, pooling and activation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.errors import BundleInvalid
from es_sbert.exporters.architectures import ARCHITECTURES as EXPORTED
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.export_bundle import choose_graph_source, export_bundle
from es_sbert.exporters.numpy_reference import choose_reference
from es_sbert.exporters.parity import normalize_rows, parity_sentences
from es_sbert.exporters.sentence_graph import build_sentence_graph
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.runtime.batching import pad, plan_batches
from es_sbert.runtime.siamese_encoder import load_transformer
from es_sbert.runtime.tokenizer import SentenceTokenizer
from tests.unit.checkpoints import ARCHITECTURES, ROTARY_ARCHITECTURES, mostly_long, write_checkpoint

pytestmark = pytest.mark.slow

# Random weights are large, so vectors that are not normalized have coordinates of about 1.
LARGEST_DIFFERENCE = 2e-5


def run_graph(graph: onnx.ModelProto, model: SentenceModel, texts: list[str], budget: int = 700) -> Floats:
    """Vectors of texts by onnxruntime on the CPU, padded batches as the encoder makes them."""
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = SentenceTokenizer(model)(texts).ids
    vectors = np.empty((len(rows), model.dimensions), dtype=np.float32)
    for batch in plan_batches(np.array([len(row) for row in rows]), budget):
        ids, mask = pad([rows[number] for number in batch])
        (vectors[batch],) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    return vectors


def assert_same(vectors: Floats, expected: Floats) -> None:
    """Cosines of at least 0.99999 and coordinates equal to rounding."""
    assert vectors.shape == expected.shape
    assert np.einsum("td,td->t", normalize_rows(vectors), normalize_rows(expected)).min() >= 0.99999
    assert np.abs(vectors - expected).max() <= LARGEST_DIFFERENCE * max(1.0, float(np.abs(expected).max()))


def check(folder: Path, *, sentences: int = 256) -> SentenceModel:
    model = read_sentence_model(folder)
    build, transformer = choose_graph_source(model)
    assert transformer is not None, "it was traced"
    texts = parity_sentences(model.max_tokens, sentences)
    expected = choose_reference(model, transformer, "sentence-transformers").encode(texts, None)
    assert_same(choose_reference(model, transformer, "numpy").encode(texts, None), expected)
    graph = build(Precision.FP32)
    onnx.checker.check_model(graph, full_check=True)
    assert_same(run_graph(graph, model, texts), expected)
    return model


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *ROTARY_ARCHITECTURES])
def test_every_architecture_equals_sentence_transformers(architecture: str, tmp_path: Path) -> None:
    """Plain graphs, and the fused operators that fp16 uses, here in float32 on the CPU; more than 1,000 sentences."""
    model = check(write_checkpoint(tmp_path / architecture, architecture), sentences=1024)
    assert model.architecture == architecture


@pytest.mark.parametrize("architecture", mostly_long([*ARCHITECTURES, *ROTARY_ARCHITECTURES]))
def test_int8_of_every_architecture_passes_parity(architecture: str, tmp_path: Path) -> None:
    activation = "silu" if architecture in ("nomic_bert", "eurobert", "qwen3") else "gelu"  # as their models have it
    model = read_sentence_model(write_checkpoint(tmp_path / architecture, architecture, hidden_act=activation))
    report = export_bundle(model, tmp_path / "bundle", [Variant.INT8]).variants["int8"].parity
    assert report is not None
    assert report.passed
    assert report.mean_cosine < 0.99999, "this graph is not quantized"


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_every_pooling_mode_equals_sentence_transformers(pooling: Pooling, architecture: str, tmp_path: Path) -> None:
    check(write_checkpoint(tmp_path / "model", architecture, pooling=str(pooling), normalize=False, layers=1))


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_every_activation_equals_sentence_transformers(activation: str, tmp_path: Path) -> None:
    check(write_checkpoint(tmp_path / "model", hidden_act=activation, layers=1))


def test_weight_prefixes_old_names_and_shards_give_equal_vectors(tmp_path: Path) -> None:
    """The same weights under `bert.`, with gamma and beta, in two files."""
    from safetensors.numpy import load_file, save_file

    folder = write_checkpoint(tmp_path / "model", layers=1)
    model = read_sentence_model(folder)
    before = run_graph(
        build_sentence_graph(model, read_transformer_weights(model), Precision.FP32), model, ["one", "two three"]
    )
    weights = {}
    for name, value in load_file(folder / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        weights[f"bert.{old}"] = value
    weights["cls.predictions.bias"] = np.zeros(3, dtype=np.float32)
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[:5], "second-half.safetensors": names[5:]}
    for file, held in shards.items():
        save_file({name: weights[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    # Left over from another export; the index does not name it.
    save_file({name: 2 * value for name, value in weights.items()}, folder / "model-00001-of-00001.safetensors")
    model = read_sentence_model(folder)
    after = run_graph(
        build_sentence_graph(model, read_transformer_weights(model), Precision.FP32), model, ["one", "two three"]
    )
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("architecture", EXPORTED)
def test_prefixes_of_weights_are_those_that_transformers_accepts(architecture: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = write_checkpoint(tmp_path / "model", architecture, layers=1)
    weights = load_file(folder / "model.safetensors")
    known = {prefix for spec in EXPORTED.values() for prefix in spec.prefixes}
    for prefix in ("", *sorted(known), "_orig_mod.", "module.", "auto_model."):
        renamed = {f"{prefix}{name}": value for name, value in weights.items()}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
        refused = []
        for read in (read_transformer_weights, load_transformer):
            try:
                read(read_sentence_model(folder))
            except BundleInvalid as error:
                refused.append(error.message)
        assert len(refused) == (0 if prefix in ("", *EXPORTED[architecture].prefixes) else 2), (prefix, refused)
        assert all("begin with" in message for message in refused)
