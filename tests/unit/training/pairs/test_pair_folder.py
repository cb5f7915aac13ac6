"""Folders of cross-encoders."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from es_sbert.bundle.cross_encoder_model import is_cross_encoder
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from es_sbert.networks.cross_encoder import open_cross_encoder
from es_sbert.training.open_task import open_cross_encoder_task
from es_sbert.training.recipe import ModelKind, ModelSpec, RegressionSpec
from tests.unit.checkpoints import write_checkpoint

OBJECTIVES = {"toy": RegressionSpec(kind="regression")}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("folders") / "bert", hidden=24)


def test_cross_encoder_is_detected_by_its_head(base: Path, tmp_path: Path) -> None:
    spec = ModelSpec(base=str(base), kind=ModelKind.CROSS_ENCODER)
    open_cross_encoder_task(spec, OBJECTIVES).save(tmp_path / "cross", name="toy")
    assert is_cross_encoder(tmp_path / "cross")
    assert open_cross_encoder(tmp_path / "cross", name="mine").name == "mine"


def test_sentence_encoders_are_not_cross_encoders(base: Path, tmp_path: Path) -> None:
    assert not is_cross_encoder(base)
    assert not is_cross_encoder(tmp_path / "nowhere")
    with pytest.raises(UnsupportedArchitecture, match="es-sbert reads cross-encoders"):
        open_cross_encoder(base)


def test_a_head_without_weights_is_refused(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "headless"))
    for file in ("modules.json", "config_sentence_transformers.json"):
        (folder / file).unlink()
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BundleInvalid, match="lacks 2 tensors") as caught:
        open_cross_encoder(folder)
    assert "trained cross-encoder" in caught.value.remedy


def test_full_disk_raises_os_error(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        from safetensors import SafetensorError

        raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")

    task = open_cross_encoder_task(ModelSpec(base=str(base)), OBJECTIVES)
    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        task.save(tmp_path / "full", name="toy")
