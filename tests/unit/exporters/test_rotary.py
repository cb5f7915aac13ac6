"""Models with rotary positions: every setting as sentence-transformers applies it, other files, and bad ones."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from es_sbert.bundle.known_settings import TABLES
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.errors import BundleInvalid, ModelError, UnsupportedArchitecture
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.exporters.numpy_reference import NumpyReference
from es_sbert.exporters.parity import row_cosines
from tests.unit.checkpoints import ROTARY_ARCHITECTURES, mostly_long, write_checkpoint
from tests.unit.exporters.test_parity_of_architectures import check

pytestmark = pytest.mark.slow

TEXTS = ["", "a", "The CAT sleeps", "naïve café", "The night train is late. " * 9]

# Architecture, settings of its configuration.
CONFIGURATIONS: list[tuple[str, dict[str, Any]]] = [
    ("modernbert", {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "hidden_activation": "relu"}),
    ("modernbert", {"layer_types": ["sliding_attention", "full_attention"], "local_attention": 7, "norm_eps": 0.1}),
    (
        "modernbert",
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 50.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 9.0, "rope_type": "default"},
            }
        },
    ),
    ("nomic_bert", {"head_dim": 6, "hidden_act": "gelu", "layer_norm_eps": 0.1}),
    ("nomic_bert", {"rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}}),
    ("gte", {"type_vocab_size": 0}),
    ("eurobert", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4, "rms_norm_eps": 0.1}),
    ("eurobert", {"num_key_value_heads": 1, "head_dim": 12}),
    ("qwen3", {"attention_bias": True, "hidden_act": "gelu_pytorch_tanh"}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    ("qwen3", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
    ("gemma3_text", {"use_bidirectional_attention": False, "sliding_window": 5}),
    ("gemma3_text", {"sliding_window": 7, "query_pre_attn_scalar": 5, "attention_bias": True}),
    ("gemma3_text", {"layer_types": None}),
]


@pytest.mark.parametrize(("architecture", "config"), CONFIGURATIONS)
def test_configuration_equals_sentence_transformers(architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    check(write_checkpoint(tmp_path / "model", architecture, config=config))


# Settings as older files have them.
OLD_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("modernbert", {"global_rope_theta": 60.0, "local_rope_theta": 7.0, "global_attn_every_n_layers": 1}),
    ("nomic_bert", {"rope_theta": 60.0}),
    ("gte", {"rope_theta": 60.0, "rope_scaling": None}),
    ("qwen3", {"rope_theta": 60.0, "rope_scaling": None, "use_sliding_window": False, "sliding_window": 4}),
    ("gemma3_text", {"rope_theta": 60.0, "rope_local_base_freq": 7.0, "sliding_window_pattern": 1}),
]


@pytest.mark.parametrize(("architecture", "settings"), OLD_SETTINGS)
def test_settings_of_older_files_are_applied(architecture: str, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    config = json.loads((folder / "config.json").read_text())
    for key in ("rope_parameters", "layer_types"):
        config.pop(key, None)
    before = read_sentence_model(folder).fingerprint
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    assert check(folder).fingerprint != before


@pytest.mark.parametrize("architecture", mostly_long(ROTARY_ARCHITECTURES))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_are_computed_in_float32(
    architecture: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Gemma multiplies its embeddings by a constant that is rounded to the type of the weights."""
    folder = write_checkpoint(tmp_path / "model", architecture)
    weights = {name: value.to(dtype) for name, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}))
    check(folder)


# Names in the files of a model's first code → in transformers' network, for one layer.
NATIVE_NAMES = {
    "nomic_bert": {
        "emb_ln": "embeddings.LayerNorm", "encoder.layers": "layers", "attn.out_proj": "self_attn.o_proj",
        "fc11": "up_proj", "fc12": "gate_proj", "fc2": "down_proj", "norm1": "post_attention_layernorm",
        "norm2": "post_mlp_layernorm", "attn.Wqkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    },
    "gte": {
        "encoder.layer": "layers", "attention.o_proj": "self_attn.o_proj", "attn_ln": "post_attention_layernorm",
        "mlp_ln": "post_mlp_layernorm", "attention.qkv_proj": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "mlp.up_gate_proj": "mlp.up_proj mlp.gate_proj",
    },
}  # fmt: skip


@pytest.mark.parametrize("architecture", NATIVE_NAMES)
def test_names_of_the_network_and_a_prefix_are_read_too(architecture: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    before = NumpyReference(model := read_sentence_model(folder), read_transformer_weights(model)).encode(TEXTS)
    weights: dict[str, torch.Tensor] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        names = [name]
        for old, new in NATIVE_NAMES[architecture].items():
            names = [each.replace(old, part) for each in names for part in (new.split() if old in each else [old])]
        for part, chunk in zip(names, value.chunk(len(names)), strict=True):
            weights[f"model.{part}"] = chunk.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    after = NumpyReference(model := read_sentence_model(folder), read_transformer_weights(model)).encode(TEXTS)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("architecture", mostly_long(ROTARY_ARCHITECTURES))
def test_export_without_torch(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    missing = ("torch", "sentence_transformers")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in missing else found(name, *rest)
    )
    folder = write_checkpoint(tmp_path / "model", architecture)
    model = read_sentence_model(folder)
    manifest = export_bundle(model, tmp_path / "bundle", [Variant.FP32, Variant.INT8], reference="auto")
    for variant in manifest.variants.values():
        assert variant.attention == "plain"
        assert variant.parity is not None
        assert variant.parity.passed
        assert variant.parity.reference.startswith("numpy ")


@pytest.mark.parametrize("architecture", mostly_long(ROTARY_ARCHITECTURES))
def test_fp16_passes_parity_emulated(architecture: str, tmp_path: Path) -> None:
    model = read_sentence_model(write_checkpoint(tmp_path / "model", architecture))
    variant = export_bundle(model, tmp_path / "bundle", [Variant.FP16]).variants["fp16"]
    assert variant.attention == "fused"
    assert variant.parity is not None
    assert variant.parity.emulated
    assert variant.parity.passed
    assert 0.999 < variant.parity.min_cosine < 0.9999999, "this graph is not in float16"
    graph = onnx.load(str(tmp_path / "bundle/onnx/model_fp16.onnx")).graph
    operators = Counter(node.op_type for node in graph.node)
    assert operators["MultiHeadAttention"] == 2
    assert operators["Softmax"] == 0
    weights = [tensor for tensor in graph.initializer if len(tensor.dims) == 2 and min(tensor.dims) > 8]
    assert {tensor.data_type for tensor in weights} == {onnx.TensorProto.FLOAT16}


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, "scaled rotary positions"),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 8.0}}, "scaled rotary positions"),
    ("qwen3", {"is_causal": False}, "not causal"),
    ("eurobert", {"hidden_act": "mish"}, "mish"),
    ("nomic_bert", {"quantization_config": {"bits": 8}}, "quantization_config"),
    ("nomic_bert", {"attention_bias": True}, "attention_bias"),
    ("qwen3", {"a_new_setting": 1}, "a_new_setting"),
]


@pytest.mark.parametrize(("architecture", "changes", "named"), UNSUPPORTED)
def test_unsupported_setting_is_named(architecture: str, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    _edit(folder, **changes)
    with pytest.raises(UnsupportedArchitecture, match=named) as raised:
        read_transformer_weights(read_sentence_model(folder))
    assert "train" in raised.value.remedy


def test_unknown_setting_is_traced_or_accepted(tmp_path: Path) -> None:
    """The library applies what it knows; bundles that were traced so still open."""
    folder = write_checkpoint(tmp_path / "model", "qwen3", layers=1)
    _edit(folder, a_new_setting=1)
    attentions = {}
    for ignored in ((), ("a_new_setting",)):
        model = read_sentence_model(folder, ignored=ignored)
        manifest = export_bundle(model, tmp_path / f"bundle{len(ignored)}", [Variant.FP32], reference="auto")
        attentions[ignored] = manifest.variants["fp32"].attention
        assert read_sentence_model(tmp_path / f"bundle{len(ignored)}").fingerprint == model.fingerprint
    assert attentions == {(): "traced", ("a_new_setting",): "plain"}


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
    ("modernbert", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ("modernbert", {"layer_types": [["full_attention"], []]}, "layer_types"),
    ("modernbert", {"num_attention_heads": 5}, "5 heads"),
    ("qwen3", {"num_key_value_heads": 3}, "3 key heads"),
    ("qwen3", {"num_key_value_heads": 0}, "0 key heads"),
    ("eurobert", {"head_dim": 5}, "a head of 5"),
    ("qwen3", {"rope_parameters": {"rope_theta": 0, "rope_type": "default"}}, "rope_theta"),
    ("qwen3", {"head_dim": 4}, "shape"),
    ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma3_text", {"sliding_window": None}, "no window"),
    ("gte", {"num_hidden_layers": 3}, "lack the tensor"),
    ("eurobert", {"max_position_embeddings": 0}, "max_position_embeddings"),
]


@pytest.mark.parametrize(("architecture", "changes", "named"), INVALID)
def test_bad_setting_is_an_error(architecture: str, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    _edit(folder, **changes)
    with pytest.raises(ModelError, match=named):
        read_transformer_weights(read_sentence_model(folder))


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", "modernbert", layers=1)
    other = write_checkpoint(tmp_path / "other", "bert", layers=1)
    shutil.copyfile(other / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(BundleInvalid, match=r"tok_embeddings"):
        read_transformer_weights(read_sentence_model(folder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_checkpoint(folder / name, name, max_tokens=40) for name in ROTARY_ARCHITECTURES}


VALUES = [True, False, 0, 1, 2, 6, 7, 0.5, "relu", "left", [], ["full_attention", "sliding_attention"], {}, None]


@given(st.data())
@pytest.mark.parametrize("architecture", mostly_long(ROTARY_ARCHITECTURES))
def test_any_value_of_any_setting_is_applied_or_refused(
    folders: dict[str, Path], architecture: str, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted(TABLES[architecture].applied)))
    value = data.draw(st.sampled_from(VALUES))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(shutil.copytree(folders[architecture], Path(temporary) / "model"))
        _edit(folder, **{key: value})
        check_against_library(folder)


def check_against_library(folder: Path) -> None:
    """Equal vectors, or an error of ours, or one of the library's."""
    try:
        model = read_sentence_model(folder)
        ours = NumpyReference(model, read_transformer_weights(model)).encode(TEXTS)
    except ModelError:
        return
    try:
        theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float().encode(TEXTS)
    except Exception:  # of many types; a folder that it cannot open has no vectors to compare with
        return
    assert row_cosines(ours, np.asarray(theirs)).min() > 0.99999
