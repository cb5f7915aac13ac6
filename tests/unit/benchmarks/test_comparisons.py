"""Smoke tests of the comparisons with other libraries: no peer is installed, and no engine runs."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks import pairs
from benchmarks.encode_peers import __main__ as encode_command
from benchmarks.ingest_peers import __main__ as ingest_command
from benchmarks.search_peers import __main__ as search_command


@pytest.mark.parametrize("command", [encode_command, ingest_command, search_command, pairs])
def test_commands_refuse_incomplete_arguments_and_show_what_is_kept(command: object) -> None:
    refused = CliRunner().invoke(command.main, [])  # type: ignore[attr-defined]
    assert refused.exit_code == 2
    assert "--data" in refused.output
    shown = CliRunner().invoke(command.main, ["--kept"])  # type: ignore[attr-defined]
    assert shown.exit_code == 0
    assert "AMD EPYC" in shown.output
