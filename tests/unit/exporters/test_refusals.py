"""Models that no graph can be built for: each refused with what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.installation import install_extra_command
from tests.unit.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceModel:
    return read_sentence_model(write_checkpoint(tmp_path_factory.mktemp("models") / "bert", layers=1))


def with_config(model: SentenceModel, **settings: Any) -> SentenceModel:
    """The model as if its config.json said so."""
    config = {**model.transformer_config, **settings}
    return model.model_copy(update={"transformer_config": config, "architecture": config["model_type"]})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"model_type": "albert"}, "albert"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "mish"}, "mish"),
        ({"is_decoder": True}, "is_decoder"),
        ({"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map"),
    ],
)
def test_unknown_architecture_error_names_the_train_extra(
    model: SentenceModel, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedArchitecture, match=named) as raised:
        read_transformer_weights(with_config(model, **settings))
    assert install_extra_command("train") in raised.value.remedy


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "5 heads"),
        ({"num_hidden_layers": 2}, r"encoder\.layer\.1\.attention\.self\.query\.weight"),
        ({"intermediate_size": 100}, "expected"),
        (
            {"model_type": "distilbert", "dim": 48, "n_heads": 4, "n_layers": 1, "hidden_dim": 192},
            "transformer.layer.0",
        ),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_rejected(
    model: SentenceModel, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(BundleInvalid, match=named):
        read_transformer_weights(with_config(model, **settings))


def test_more_tokens_than_positions_are_rejected(model: SentenceModel) -> None:
    with pytest.raises(BundleInvalid, match="64 positions, fewer than its maximum of 65 tokens") as raised:
        read_transformer_weights(model.model_copy(update={"max_tokens": 65}))
    assert "at most 64" in raised.value.remedy


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    folder = write_checkpoint(tmp_path / "bert", layers=1)
    return folder, load_file(folder / "model.safetensors")


def test_a_missing_tensor_is_named(weights: tuple[Path, dict[str, Any]]) -> None:
    folder, tensors = weights
    del tensors["encoder.layer.0.output.dense.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BundleInvalid, match=r"lack the tensor encoder\.layer\.0\.output\.dense\.bias"):
        read_transformer_weights(read_sentence_model(folder))


def test_weights_without_embeddings_are_rejected(weights: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = weights
    save_file({"transformer.wte.weight": np.zeros((3, 3), np.float32)}, folder / "model.safetensors")
    with pytest.raises(BundleInvalid, match="holds 0 tensors called embeddings"):
        read_transformer_weights(read_sentence_model(folder))


def test_weights_with_two_embeddings_are_rejected(weights: tuple[Path, dict[str, Any]]) -> None:
    folder, tensors = weights
    save_file(
        {**{f"a.{k}": v for k, v in tensors.items()}, **{f"b.{k}": v for k, v in tensors.items()}},
        folder / "model.safetensors",
    )
    with pytest.raises(BundleInvalid, match="holds 2 tensors called embeddings"):
        read_transformer_weights(read_sentence_model(folder))


def test_quantized_weights_are_rejected(weights: tuple[Path, dict[str, Any]]) -> None:
    folder, tensors = weights
    name = "encoder.layer.0.output.dense.weight"
    tensors[name] = tensors[name].astype(np.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BundleInvalid, match="has the type I8"):
        read_transformer_weights(read_sentence_model(folder))
