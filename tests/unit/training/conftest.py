"""A model and data that the tests of whole runs share."""

from pathlib import Path

import pytest

from tests.unit.training.support import write_model, write_pairs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with scored pairs to train and measure on, where recipes are written."""
    write_pairs(tmp_path / "train.tsv", 128)
    write_pairs(tmp_path / "dev.tsv", 30, start=128)
    return tmp_path
