"""What `es-sbert search` refuses before it asks any engine; the rest: tests/e2e/test_search_cli.py."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from es_sbert.cli.main import cli
from es_sbert.errors import UsageError


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["x", "--like", "1"], "both given or both missing"),
        ([], "both given or both missing"),
        (["--like", "1", "--hybrid"], "--hybrid searches by words"),
        (["x", "--fusion", "rrf"], "are for --hybrid"),
        (["x", "--weights", "2:1"], "are for --hybrid"),
        (["x", "--rank-constant", "10"], "are for --hybrid"),
        (["x", "--hybrid", "--fusion", "weighted", "--rank-constant", "10"], "--rank-constant is given with --fusion"),
        (["x", "--hybrid", "--weights", "2"], "not two numbers"),
        (["x", "--hybrid", "--weights", "a:b"], "not two numbers"),
        (["x", "--rerank-window", "3"], "is given without --rerank"),
        (["--like", "1", "--rerank", "model"], "--like has none"),
        (["x", "--filter", "[1]"], "the filter must be a JSON object with one query"),
    ],
)
def test_conflicting_options_are_rejected(args: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["search", "--index", "docs", *args])
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message
