"""What `es-sbert adapt --migrate` refuses before anything is trained; tests/e2e/test_adapt_cli.py migrates."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from es_sbert.cli.main import cli
from es_sbert.cli.output import require_terminal
from es_sbert.errors import UsageError


def test_confirmation_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    with pytest.raises(
        UsageError, match="^docs is deleted, but there is no terminal to ask for confirmation"
    ) as caught:
        require_terminal("docs is deleted")
    assert caught.value.remedy == "Add --yes."
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    require_terminal("docs is deleted")


def test_yes_without_migrate_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["adapt", "docs", "-o", str(tmp_path / "out"), "--yes"])
    assert isinstance(result.exception, UsageError)
    assert "Add --migrate" in result.exception.remedy
