"""Models that no graph can be built for: each refused with what is wrong and what to do."""

from __future__ import annotations

import re
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
        ({"vocab_size": 9}, "states a vocab_size of 9"),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_rejected(
    model: SentenceModel, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(BundleInvalid, match=named):
        read_transformer_weights(with_config(model, **settings))


def test_more_tokens_than_positions_and_other_token_types_are_rejected(model: SentenceModel) -> None:
    with pytest.raises(UnsupportedArchitecture):
        read_transformer_weights(model.model_copy(update={"uses_token_types": True}))
    with pytest.raises(BundleInvalid):
        read_transformer_weights(model.model_copy(update={"max_tokens": 65}))


def test_weights_that_are_incomplete_ambiguous_or_quantized_are_rejected(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "bert", layers=1)
    tensors, name = load_file(folder / "model.safetensors"), "encoder.layer.0.output.dense.weight"
    for changed, message in (
        ({key: value for key, value in tensors.items() if key != name}, f"lack the tensor {re.escape(name)}"),
        ({"transformer.wte.weight": np.zeros((3, 3), np.float32)}, "holds 0 tensors called embeddings"),
        ({f"{prefix}.{key}": value for prefix in "ab" for key, value in tensors.items()}, "holds 2 tensors called"),
        ({**tensors, name: tensors[name].astype(np.int8)}, "has the type I8"),
    ):
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(BundleInvalid, match=message):
            read_transformer_weights(read_sentence_model(folder))
