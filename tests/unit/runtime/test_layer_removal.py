"""Students with some of the layers of their teacher."""

from pathlib import Path

import pytest
import torch

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import UnsupportedArchitecture
from es_sbert.runtime.siamese_encoder import open_siamese_encoder, save_siamese_encoder
from es_sbert.training.bi_encoder_task import evenly_spaced_layers, remove_layers
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import ARCHITECTURES, write_checkpoint
from tests.unit.runtime.test_siamese_encoder_folder import TEXTS, both


def test_layers_are_evenly_spaced_and_the_last_is_kept() -> None:
    assert evenly_spaced_layers(6, 3) == (1, 3, 5)
    assert evenly_spaced_layers(12, 3) == (3, 7, 11)
    assert evenly_spaced_layers(12, 5) == (1, 3, 6, 8, 11)
    assert evenly_spaced_layers(6, 1) == (5,)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_keep_their_weights(tmp_path: Path, architecture: str) -> None:
    encoder = open_siamese_encoder(write_checkpoint(tmp_path / "model", architecture, layers=3))
    before = {name: tensor.clone() for name, tensor in encoder.transformer.state_dict().items()}
    remove_layers(encoder.transformer, 1, "model")
    after = encoder.transformer.state_dict()
    assert len(after) < len(before)
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name.replace("layer.0.", "layer.2.")])
    save_siamese_encoder(encoder, tmp_path / "saved")
    vectors = encoder.embed(TEXTS)
    assert both(tmp_path / "saved", vectors) < 1e-5
    assert read_sentence_model(tmp_path / "saved").architecture == architecture


def test_architectures_whose_layers_differ_are_refused(tmp_path: Path) -> None:
    encoder = open_siamese_encoder(write_checkpoint(tmp_path / "model", "modernbert", layers=3))
    with raises_as_recorded(UnsupportedArchitecture):
        remove_layers(encoder.transformer, 1, "a-name")
