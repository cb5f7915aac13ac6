"""Modules around the pooling, in any order that sentence-transformers runs: its vectors, or a refusal by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
)

from es_sbert.bundle.modules import ACTIVATION_CLASSES
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting
from es_sbert.runtime.siamese_encoder import open_siamese_encoder
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import write_checkpoint
from tests.unit.exporters.comparison import check, edit, numpy_vectors, our_vectors, their_vectors

pytestmark = pytest.mark.slow

TOKENS = "token_embeddings"
RELU = torch.nn.ReLU


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "base", layers=1)


def save(base: Path, folder: Path, *modules: torch.nn.Module) -> Path:
    """A folder of these modules after a Transformer, with random weights in all of them."""
    network = SentenceTransformer(modules=[Transformer(str(base)), *modules], device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    network.save(str(folder))
    return folder


SHAPES: dict[str, Sequence[torch.nn.Module]] = {
    "layer norm": [Pooling(48), LayerNorm(48)],
    "layer norm and all others": [Pooling(48), LayerNorm(48), Dense(48, 24), LayerNorm(24), Dropout(0.5), Normalize()],
    "dense after normalize": [Pooling(48), Normalize(), Dense(48, 24)],
    "normalize between dense": [Pooling(48), Dense(48, 32), Normalize(), Normalize(), Dense(32, 24), Normalize()],
    "dropout": [Pooling(48), Dropout(0.5), Dense(48, 24), Dropout(0.1), Normalize()],
    "residual": [Pooling(48), Dense(48, 48, use_residual=True), Normalize()],
    "residual of another width": [Pooling(48), Dense(48, 24, activation_function=RELU(), use_residual=True)],
    "dense of tokens": [Dense(48, 24, bias=False, module_input_name=TOKENS), Pooling(24, "mean"), Normalize()],
    "dense of tokens, cls and max": [Dense(48, 24, module_input_name=TOKENS), Pooling(24, ("cls", "max"))],
    "normalized tokens": [Normalize(TOKENS), Dense(48, 48, module_input_name=TOKENS, use_residual=True), Pooling(48)],
    # The pooling takes vectors of any width: its setting is not used.
    "pooling of another width": [Dense(48, 24, module_input_name=TOKENS), Pooling(48, ("mean", "lasttoken"))],
    "other names": [
        Pooling(48),
        Dense(48, 24, module_output_name="other"),
        Dense(48, 16, module_output_name="unused"),
        Normalize("other"),
        Normalize("missing"),
        Dense(24, 12, module_input_name="other", module_output_name="sentence_embedding"),
    ],
    "pooled twice": [Pooling(48, "cls"), Dense(48, 24), Dense(48, 32, module_input_name=TOKENS), Pooling(32, "max")],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_modules_give_the_vectors_of_sentence_transformers(base: Path, tmp_path: Path, shape: str) -> None:
    check(save(base, tmp_path / "model", *SHAPES[shape]), tmp_path / "bundle")


@pytest.mark.parametrize("name", ACTIVATION_CLASSES)
def test_activation_of_a_dense_module(base: Path, tmp_path: Path, name: str) -> None:
    """Of every value of a wide range, that of torch: one row of the product is one value."""
    layer = Dense(48, 24, activation_function=getattr(torch.nn, name)())
    with torch.no_grad():
        layer.linear.weight.mul_(20)
    folder = save(base, tmp_path / "model", Pooling(48), layer)
    expected = their_vectors(folder)[None]
    np.testing.assert_allclose(our_vectors(folder)[None], expected, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(numpy_vectors(read_sentence_model(folder))[None], expected, rtol=1e-4, atol=2e-5)


def test_bad_layer_norm_is_refused(base: Path, tmp_path: Path) -> None:
    folder = save(base, tmp_path / "model", Pooling(48), LayerNorm(48))
    module = folder / "2_LayerNorm"
    edit(module / "config.json", eps=1e-3)
    with raises_as_recorded(UnsupportedSetting):
        read_sentence_model(folder)
    for settings in ({"dimension": 47}, {}):
        (module / "config.json").write_text(json.dumps(settings))
        with raises_as_recorded(BundleInvalid):
            read_sentence_model(folder)
    (module / "config.json").write_text('{"dimension": 48}')
    (module / "model.safetensors").unlink()
    with raises_as_recorded(BundleInvalid):
        read_sentence_model(folder)
    with raises_as_recorded(BundleInvalid):
        read_sentence_model(save(base, tmp_path / "narrow", Pooling(48), LayerNorm(24)))


@pytest.mark.parametrize("missing", ["linear.bias", "linear.weight", "residual.weight"])
def test_dense_without_one_of_its_tensors_is_refused(base: Path, tmp_path: Path, missing: str) -> None:
    folder = save(base, tmp_path / "model", Pooling(48), Dense(48, 24, use_residual=True))
    tensors = load_file(folder / "2_Dense/model.safetensors")
    del tensors[missing]
    save_file(tensors, folder / "2_Dense/model.safetensors")
    with raises_as_recorded(BundleInvalid):
        read_sentence_model(folder)


@pytest.mark.parametrize(
    "modules",
    [
        [Dense(48, 24)],
        [Dense(48, 24, module_input_name=TOKENS)],
        [Pooling(48), Dense(48, 24, module_output_name=TOKENS), Pooling(24)],
    ],
)
def test_order_that_cannot_run_is_refused(base: Path, tmp_path: Path, modules: list[torch.nn.Module]) -> None:
    with raises_as_recorded(BundleInvalid):
        read_sentence_model(save(base, tmp_path / "model", *modules))


def test_models_of_other_modules_have_other_fingerprints(base: Path, tmp_path: Path) -> None:
    shapes = [
        [Pooling(48), Dense(48, 48)],
        [Pooling(48), Dense(48, 48, use_residual=True)],
        [Dense(48, 48, module_input_name=TOKENS), Pooling(48)],
        [Pooling(48), Normalize(), Dense(48, 48)],
        [Pooling(48), Dense(48, 48), Normalize()],
    ]
    folders = [save(base, tmp_path / str(number), *shape) for number, shape in enumerate(shapes)]
    assert len({read_sentence_model(folder).fingerprint for folder in folders}) == len(shapes)


@pytest.mark.parametrize("shape", ["layer norm", "dense after normalize", "residual", "dense of tokens"])
def test_other_shapes_are_not_trained(base: Path, tmp_path: Path, shape: str) -> None:
    folder = save(base, tmp_path / "model", *SHAPES[shape])
    with raises_as_recorded(UnsupportedArchitecture):
        open_siamese_encoder(folder)


@pytest.mark.parametrize("kind", ["Router", "Asym"])
def test_two_networks_are_refused_with_the_way_out(base: Path, tmp_path: Path, kind: str) -> None:
    folder = save(base, tmp_path / "model", Pooling(48))
    modules = [{"path": "", "idx": 0, "name": "0", "type": f"sentence_transformers.models.{kind}"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with raises_as_recorded(UnsupportedArchitecture):
        read_sentence_model(folder)
