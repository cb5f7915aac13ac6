"""The root command."""

from __future__ import annotations

import pytest

from es_sbert.cli.main import main


@pytest.mark.parametrize(
    ("words", "near"), [(["serach"], "'search'"), (["index", "shwo"], "'show'"), (["--versoin"], "'--version'")]
)
def test_a_misspelt_command_or_option_gets_a_suggestion(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"Did you mean {near}" in capsys.readouterr().err


def test_an_unknown_command_that_is_like_none_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "No such command 'xyzzy'.\n" in capsys.readouterr().err
