"""Models with rotary positions: every setting as sentence-transformers applies it, other files, and bad ones."""

from __future__ import annotations

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
from es_sbert.errors import ModelError
from es_sbert.exporters.architectures import ARCHITECTURES, read_transformer_weights
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.exporters.numpy_reference import NumpyReference
from es_sbert.exporters.parity import row_cosines
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import ROTARY_ARCHITECTURES, mostly_long, write_checkpoint
from tests.unit.exporters.comparison import edit
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


@pytest.mark.parametrize("architecture", ["bert", *mostly_long(ROTARY_ARCHITECTURES)])
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
            weights[f"{ARCHITECTURES[architecture].prefixes[-1]}{part}"] = chunk.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    after = NumpyReference(model := read_sentence_model(folder), read_transformer_weights(model)).encode(TEXTS)
    np.testing.assert_array_equal(before, after)


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


INVALID: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 8.0}}),
    ("qwen3", {"is_causal": False}),
    ("nomic_bert", {"attention_bias": True}),
    ("modernbert", {"layer_types": ["full_attention"]}),
    ("qwen3", {"num_key_value_heads": 3}),
    ("eurobert", {"head_dim": 5}),
    ("qwen3", {"rope_parameters": {"rope_theta": 0, "rope_type": "default"}}),
    ("qwen3", {"head_dim": 4}),
    ("gemma3_text", {"sliding_window": None}),
    ("gte", {"num_hidden_layers": 3}),
    ("gemma3_text", {"query_pre_attn_scalar": 0}),
    ("modernbert", {"global_attn_every_n_layers": 0}),
    ("roberta", {"pad_token_id": None}),
]


@pytest.mark.parametrize(("architecture", "changes"), INVALID)
def test_unsupported_or_bad_setting_is_an_error(architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", architecture)
    edit(folder / "config.json", **changes)
    with raises_as_recorded(ModelError):
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
        edit(folder / "config.json", **{key: value})
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
