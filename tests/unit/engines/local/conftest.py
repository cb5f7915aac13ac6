"""A home for local engines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh home that the servers' user may enter; pytest's own folders are closed."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("ES_SBERT_ENGINE_HOME", f"{folder}/engines")
        yield Path(folder, "engines")
