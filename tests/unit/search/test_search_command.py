"""What `es-sbert search` refuses before it asks any engine; the rest: tests/e2e/test_search_cli.py."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from es_sbert.cli.main import cli
from es_sbert.errors import UsageError


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["x", "--like", "1"], "exactly one of TEXT and --like"),
        ([], "exactly one of TEXT and --like"),
        (["--like", "1", "--hybrid"], "--hybrid and --rerank need a query text"),
        (["--like", "1", "--rerank", "model"], "--hybrid and --rerank need a query text"),
        (["x", "--filter", "[1]"], "the filter must be a JSON object with one query"),
    ],
)
def test_conflicting_options_are_rejected(args: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["search", "--index", "docs", *args])
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message
