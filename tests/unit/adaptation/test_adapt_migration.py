"""What `es-sbert adapt --migrate` refuses before anything is trained; tests/e2e/test_adapt_cli.py migrates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from es_sbert.adaptation.adapt_plan import AdaptSettings
from es_sbert.cli.adapt import _check_migration
from es_sbert.cli.main import cli
from es_sbert.engines.index_state import IndexState
from es_sbert.errors import IndexMismatch, UsageError

SETTINGS = AdaptSettings(index="docs", name="docs-tuned")
FIELD = {"fingerprint": "f", "model": "m", "dimensions": 4, "similarity": "cosine", "index_type": "hnsw"}


def state(**changes: Any) -> IndexState:
    mappings = {"_meta": {"es_sbert": {"fields": {"embedding": FIELD}}}}
    return IndexState(**{"name": "docs", "mappings": mappings, "settings": {}} | changes)


def test_index_is_deleted_only_after_a_question_or_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    with pytest.raises(UsageError, match="there is no terminal to ask for confirmation") as caught:
        _check_migration(state(), SETTINGS, yes=False)
    assert caught.value.remedy == "Add --yes."
    _check_migration(state(), SETTINGS, yes=True)
    _check_migration(state(name="docs-1", aliases={"docs": {}}), SETTINGS, yes=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    _check_migration(state(), SETTINGS, yes=False)


def test_index_without_vectors_and_data_streams_are_refused() -> None:
    with pytest.raises(IndexMismatch, match="docs has no vector field embedding to migrate"):
        _check_migration(state(mappings={}), SETTINGS, yes=True)
    with pytest.raises(IndexMismatch, match="the data stream logs, which cannot be migrated"):
        _check_migration(state(data_stream="logs"), SETTINGS, yes=True)


def test_yes_without_migrate_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["adapt", "docs", "-o", str(tmp_path / "out"), "--yes"])
    assert isinstance(result.exception, UsageError)
    assert "Add --migrate" in result.exception.remedy
