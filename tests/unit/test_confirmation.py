"""Commands that ask for confirmation need a terminal."""

from __future__ import annotations

import pytest

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
