"""Models whose graph is traced: the same gate, the same encoder, the same independence of a text's neighbors."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from es_sbert.bundle.bundle import EncoderManifest
from es_sbert.bundle.fingerprint import KNOWN_ARCHITECTURES
from es_sbert.bundle.known_settings import CONFIGS, ROTARY_CONFIGS
from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.transformer_module import max_input_tokens
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.model_loading import find_encoder, select_encoder_variant
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from es_sbert.exporters import parity, tracing
from es_sbert.exporters.architectures import ARCHITECTURES
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.runtime.batching import InputBuilder
from es_sbert.runtime.device import Device
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import TRACED_ARCHITECTURES, mostly_long, open_variant, write_checkpoint
from tests.unit.exporters.comparison import edit

pytestmark = pytest.mark.slow


TEXTS = ["Two children repaired the telescope.", "", "Why?", "a", "The night train is late. " * 30]
BOTH = [Variant.FP32, Variant.INT8]


class Network(nn.Embedding):
    """Looks up the vectors of tokens and changes them."""

    change: Callable[[Tensor], Tensor]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.change(super().forward(ids))


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        (lambda x: x.repeat_interleave(2, dim=-1), False),
        (lambda x: x + x.mean(dim=1, keepdim=True), True),
        (lambda x: x if x.shape[1] == 11 else 2 * x, True),
        (lambda x: x + torch.zeros(1, int(x.shape[1]), 1), True),
        (lambda x: x.reshape(-1, 11, 4), True),
        (lambda x: x * float("nan"), True),
        (torch.special.bessel_j0, True),
    ],
)
def test_network_whose_graph_differs_is_refused(change: Callable[[Tensor], Tensor], is_refused: bool) -> None:
    network, (ids, mask) = Network(20, 4), tracing.example_inputs((3, 11), 20)
    network.change = change
    with raises_as_recorded(UnsupportedArchitecture) if is_refused else nullcontext():
        traced = tracing.trace_module(network, {"input_ids": ids, "attention_mask": mask}, "vectors", name="tiny")
        tracing.check_trace(traced, network, (ids, mask), 20, 64)


@pytest.fixture(scope="module", params=mostly_long(TRACED_ARCHITECTURES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = {"query": "query: "}
    return write_checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param, prompts=prompts)


@pytest.fixture(scope="module")
def bundle(folder: Path) -> tuple[Path, EncoderManifest]:
    output = folder.with_name("bundle")
    return output, export_bundle(read_sentence_model(folder), output, BOTH)


def encode(folder: Path, variant: str, texts: list[str]) -> Floats:
    with open_variant(folder, variant, threads=1) as encoder:
        return encoder.encode(texts)


def test_traced_graphs_pass_parity(bundle: tuple[Path, EncoderManifest]) -> None:
    _, manifest = bundle
    assert {variant.attention for variant in manifest.variants.values()} == {"traced"}
    fp32, int8 = manifest.variants["fp32"].parity, manifest.variants["int8"].parity
    assert fp32 is not None
    assert int8 is not None
    assert fp32.reference.startswith("sentence-transformers ")  # asked for was numpy, which cannot know the network
    assert fp32.sentences >= 1000
    assert fp32.passed
    assert fp32.min_cosine >= 0.99999
    assert int8.passed
    assert int8.mean_cosine < 0.99999, "this graph is not quantized"


@pytest.mark.parametrize("variant", BOTH)
def test_vector_is_independent_of_the_batch(bundle: tuple[Path, EncoderManifest], variant: str) -> None:
    together = encode(bundle[0], variant, TEXTS)
    alone = np.concatenate([encode(bundle[0], variant, [text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=2e-5)


def test_int8_quantizes_every_product_with_a_weight(bundle: tuple[Path, EncoderManifest]) -> None:
    def operators(name: str) -> list[str]:
        return [node.op_type for node in onnx.load(str(bundle[0] / f"onnx/model_{name}.onnx")).graph.node]

    # XLNet: query, key, value, position, output as Einsum, and the feed-forward block's two; ELECTRA: query, key,
    # value, output and the feed-forward block's two; two layers each. ELECTRA also widens its embeddings.
    expected = 2 * 7 if bundle[1].architecture == "xlnet" else 2 * 6 + 1
    assert operators("int8").count("MatMulIntegerToFloat") == expected
    assert "MatMulIntegerToFloat" not in operators("fp32")


@pytest.mark.parametrize("pooling", list(Pooling))
def test_every_pooling_mode_equals_sentence_transformers(pooling: Pooling, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "xlnet", "xlnet", pooling=str(pooling), normalize=False, layers=1)
    export_bundle(read_sentence_model(folder), tmp_path / "bundle", [Variant.FP32])
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(encode(tmp_path / "bundle", "fp32", TEXTS), theirs, atol=3e-5)


def test_settings_unknown_to_the_graph_builder_are_traced(tmp_path: Path) -> None:
    """BERT is built from its weights, but not with this activation."""
    model = read_sentence_model(write_checkpoint(tmp_path / "bert", hidden_act="mish", layers=1))
    manifest = export_bundle(model, tmp_path / "bundle", BOTH)
    assert {variant.attention for variant in manifest.variants.values()} == {"traced"}


def test_static_model_runs_in_fp32_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of vectors has nothing to halve."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from tests.tiny import tiny_tokenizer

    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    name = str(tmp_path / "model")
    SentenceTransformer(modules=[StaticEmbedding(tiny_tokenizer(), embedding_dim=8)], device="cpu").save(name)
    selected = select_encoder_variant(find_encoder(name), Device("cuda"), "auto", report=lambda message: None)
    assert (selected.variant, selected.warnings) == ("fp32", ())
    with raises_as_recorded(UnsupportedArchitecture):
        select_encoder_variant(find_encoder(name), Device("cuda"), "fp16", report=lambda message: None)


def test_auto_on_cuda_is_fp32_only_if_a_graph_cannot_be_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: onnx.ModelProto) -> None:
        raise UnsupportedArchitecture("the graph branches", "Export another precision.")

    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    name = str(write_checkpoint(tmp_path / "model", "electra", layers=1))
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "to_fp16", refuse)
        selected = select_encoder_variant(find_encoder(name), Device("cuda"), "auto", report=lambda message: None)
        assert selected.variant == "fp32"
        assert any("the graph branches" in warning for warning in selected.warnings)
        with raises_as_recorded(UnsupportedArchitecture):
            select_encoder_variant(find_encoder(name), Device("cuda"), "fp16", report=lambda message: None)
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr(parity, "cuda_devices", lambda: 0)
    selected = select_encoder_variant(find_encoder(name), Device("cuda"), "auto", report=lambda message: None)
    assert (selected.variant, selected.warnings) == ("fp16", ())


def test_traced_fp16_passes_parity_emulated(folder: Path, tmp_path: Path) -> None:
    manifest = export_bundle(read_sentence_model(folder), tmp_path / "bundle", [Variant.FP16])
    variant = manifest.variants["fp16"]
    assert variant.attention == "traced"
    assert variant.parity is not None
    assert variant.parity.emulated
    assert variant.parity.passed
    assert 0.999 < variant.parity.min_cosine < 0.9999999, "this graph is not in float16"
    # Weights are float16; what goes in and out is not.
    graph = onnx.load(str(tmp_path / "bundle/onnx/model_fp16.onnx")).graph
    weights = [tensor for tensor in graph.initializer if len(tensor.dims) == 2 and min(tensor.dims) > 8]
    assert {tensor.data_type for tensor in weights} == {onnx.TensorProto.FLOAT16}
    assert graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_fp16_texts_are_padded_to_multiples_the_network_has_positions_for(tmp_path: Path) -> None:
    """Of 62 positions none is left for 64 tokens."""
    for tokens, multiple in ((64, 8), (62, 1)):
        folder = write_checkpoint(tmp_path / str(tokens), "electra", layers=1, max_tokens=tokens)
        export_bundle(read_sentence_model(folder), tmp_path / f"bundle-{tokens}", [Variant.FP16])
        graph = onnx.load(tmp_path / f"bundle-{tokens}/onnx/model_fp16.onnx")
        properties = {entry.key: entry.value for entry in graph.metadata_props}
        inputs = InputBuilder([value.name for value in graph.graph.input], properties)([np.arange(3), np.arange(11)])
        assert inputs["input_ids"].shape == (2, 16 if multiple == 8 else 11)
        assert inputs["attention_mask"].sum() == 14


def test_model_code_is_not_executed(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", layers=1)
    edit(folder / "config.json", model_type="mine", auto_map={"AutoModel": "modeling.Model"})
    (folder / "modeling.py").write_text("raise SystemExit('this ran')")
    with raises_as_recorded(UnsupportedArchitecture):
        export_bundle(read_sentence_model(folder), tmp_path / "bundle", BOTH)


def test_unknown_architecture_fingerprint_covers_every_setting(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", "electra", layers=1)
    before = read_sentence_model(folder).fingerprint
    edit(folder / "config.json", transformers_version="9", attention_dropout=0.5, architectures=["ElectraForMaskedLM"])
    assert read_sentence_model(folder).fingerprint == before
    edit(folder / "config.json", embedding_size=16)
    assert read_sentence_model(folder).fingerprint != before


def test_built_architectures_have_known_settings() -> None:
    assert set(CONFIGS) == KNOWN_ARCHITECTURES
    assert {*CONFIGS, *ROTARY_CONFIGS} == ARCHITECTURES.keys()


@pytest.mark.parametrize(
    ("said", "positions", "expected"), [(32, None, 32), (32, -1, 32), (10**30, 24, 24), (32, 24, 24)]
)
def test_max_tokens_without_position_limit(said: int, positions: int | None, expected: int, tmp_path: Path) -> None:
    config = {"model_type": "xlnet", "max_position_embeddings": positions}
    assert max_input_tokens(tmp_path, config, {"max_seq_length": said}, {}) == expected


@pytest.mark.parametrize("said", [0, 10**30])
def test_missing_max_tokens_is_rejected(said: int, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": said}))
    with raises_as_recorded(BundleInvalid):
        max_input_tokens(tmp_path, {"model_type": "xlnet"}, {}, {})


def test_masks_of_both_directions_are_traced(tmp_path: Path) -> None:
    """EmbeddingGemma's: transformers builds them by `vmap`, of which no graph can be written."""
    model = read_sentence_model(write_checkpoint(tmp_path / "model", "gemma3_text"))
    manifest = export_bundle(model, tmp_path / "bundle", [Variant.FP32, Variant.INT8])
    reports = [variant.parity for variant in manifest.variants.values()]
    assert [report is not None and report.passed for report in reports] == [True, True]
