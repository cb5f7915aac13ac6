"""Where models are looked for."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.tiny import write_tiny_bert


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, a hub at which nobody listens, and an empty working directory."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "hub"


def in_hub_cache(hub: Path, name: str, seed: int = 0) -> Path:
    """A model as if it had been downloaded under that name."""
    revision = "a" * 40
    repository = hub / f"models--{name.replace('/', '--')}"
    folder = write_tiny_bert(repository / "snapshots" / revision, seed=seed)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(revision)
    return folder
