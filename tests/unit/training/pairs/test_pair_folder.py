"""Folders of models that score pairs."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from es_sbert.errors import BundleInvalid
from es_sbert.networks.pair_scorer_folder import is_pair_scorer, open_pair_scorer
from es_sbert.training.objective_settings import RegressionSpec
from es_sbert.training.open_task import open_cross_encoder_task, open_poly_encoder_task
from es_sbert.training.pair_tasks import PolyEncoderTask
from es_sbert.training.recipe import ModelKind, ModelSpec
from tests.unit.checkpoints import write_checkpoint
from tests.unit.training.pairs.support import FIRST, SECOND

OBJECTIVES = {"toy": RegressionSpec(kind="regression")}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("folders") / "bert", hidden=24)


@pytest.fixture(scope="module")
def poly(base: Path) -> PolyEncoderTask:
    spec = ModelSpec(base=str(base), kind=ModelKind.POLY_ENCODER, codes=3, max_tokens=12)
    return open_poly_encoder_task(spec, OBJECTIVES)


@pytest.fixture
def saved(poly: PolyEncoderTask, tmp_path: Path) -> Path:
    poly.save(tmp_path / "poly", name="a name")
    return tmp_path / "poly"


def test_reopened_poly_encoder_gives_the_same_scores(poly: PolyEncoderTask, saved: Path) -> None:
    assert is_pair_scorer(saved)
    scorer = open_pair_scorer(saved, name="mine")
    assert scorer.name == "mine"
    np.testing.assert_allclose(scorer.score(FIRST, SECOND), poly.network.score(FIRST, SECOND), atol=1e-6)
    settings = json.loads((saved / "poly_encoder.json").read_text())
    assert settings == {"format": 1, "name": "a name", "codes": 3}


def test_poly_encoder_base_opens_in_sentence_transformers(poly: PolyEncoderTask, saved: Path) -> None:
    theirs = SentenceTransformer(str(saved), device="cpu").encode(SECOND)
    np.testing.assert_allclose(theirs, poly.encoder.embed(SECOND), atol=1e-5)


def test_cross_encoder_is_detected_by_its_head(base: Path, tmp_path: Path) -> None:
    spec = ModelSpec(base=str(base), kind=ModelKind.CROSS_ENCODER)
    open_cross_encoder_task(spec, OBJECTIVES).save(tmp_path / "cross", name="toy")
    assert is_pair_scorer(tmp_path / "cross")
    assert open_pair_scorer(tmp_path / "cross", name="mine").name == "mine"


def test_sentence_encoders_are_not_pair_scorers(base: Path, tmp_path: Path) -> None:
    assert not is_pair_scorer(base)
    assert not is_pair_scorer(tmp_path / "nowhere")
    with pytest.raises(BundleInvalid, match="neither a cross-encoder nor a poly-encoder"):
        open_pair_scorer(base)


def test_a_head_without_weights_is_refused(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "headless"))
    for file in ("modules.json", "config_sentence_transformers.json"):
        (folder / file).unlink()
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BundleInvalid, match="lacks 2 tensors") as caught:
        open_pair_scorer(folder)
    assert "trained cross-encoder" in caught.value.remedy


def test_missing_codes_are_refused(saved: Path) -> None:
    (saved / "poly_encoder.safetensors").unlink()
    with pytest.raises(BundleInvalid, match=r"poly_encoder.safetensors is missing"):
        open_pair_scorer(saved)


def test_broken_codes_are_refused(saved: Path) -> None:
    (saved / "poly_encoder.safetensors").write_bytes(b"no tensors")
    with pytest.raises(BundleInvalid, match="cannot be read"):
        open_pair_scorer(saved)


def test_codes_of_another_width_are_refused(saved: Path) -> None:
    save_file({"codes": torch.zeros(3, 7)}, saved / "poly_encoder.safetensors")
    with pytest.raises(BundleInvalid, match=r"\(3, 7\) for vectors of 24 values"):
        open_pair_scorer(saved)


def test_a_newer_format_is_refused(saved: Path) -> None:
    (saved / "poly_encoder.json").write_text('{"format": 2}')
    with pytest.raises(BundleInvalid, match="has the format 2, not 1"):
        open_pair_scorer(saved)


@pytest.mark.parametrize("open_pair_task", [open_cross_encoder_task, open_poly_encoder_task])
def test_full_disk_raises_os_error(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_pair_task: Any
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        from safetensors import SafetensorError

        raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")

    task = open_pair_task(ModelSpec(base=str(base)), OBJECTIVES)
    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        task.save(tmp_path / "full", name="toy")
