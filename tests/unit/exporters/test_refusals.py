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
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceModel:
    return read_sentence_model(write_checkpoint(tmp_path_factory.mktemp("models") / "bert", layers=1))


def with_config(model: SentenceModel, **settings: Any) -> SentenceModel:
    """The model as if its config.json said so."""
    config = {**model.transformer_config, **settings}
    return model.model_copy(update={"transformer_config": config, "architecture": config["model_type"]})


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "albert"},
        {"position_embedding_type": "relative_key"},
        {"hidden_act": "mish"},
        {"auto_map": {"AutoModel": "modeling.Model"}},
    ],
)
def test_unknown_architecture_error_names_the_train_extra(model: SentenceModel, settings: dict[str, Any]) -> None:
    with raises_as_recorded(UnsupportedArchitecture):
        read_transformer_weights(with_config(model, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": None},
        {"num_attention_heads": 5},
        {"num_hidden_layers": 2},
        {"intermediate_size": 100},
        {"vocab_size": 9},
    ],
)
def test_settings_that_do_not_fit_the_weights_are_rejected(model: SentenceModel, settings: dict[str, Any]) -> None:
    with raises_as_recorded(BundleInvalid):
        read_transformer_weights(with_config(model, **settings))


def test_more_tokens_than_positions_and_other_token_types_are_rejected(model: SentenceModel) -> None:
    with raises_as_recorded(UnsupportedArchitecture):
        read_transformer_weights(model.model_copy(update={"uses_token_types": True}))
    with raises_as_recorded(BundleInvalid):
        read_transformer_weights(model.model_copy(update={"max_tokens": 65}))


def test_weights_that_are_incomplete_ambiguous_or_quantized_are_rejected(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "bert", layers=1)
    tensors, name = load_file(folder / "model.safetensors"), "encoder.layer.0.output.dense.weight"
    for changed in (
        {key: value for key, value in tensors.items() if key != name},
        {"transformer.wte.weight": np.zeros((3, 3), np.float32)},
        {f"{prefix}.{key}": value for prefix in "ab" for key, value in tensors.items()},
        {**tensors, name: tensors[name].astype(np.int8)},
    ):
        save_file(changed, folder / "model.safetensors")
        with raises_as_recorded(BundleInvalid):
            read_transformer_weights(read_sentence_model(folder))
