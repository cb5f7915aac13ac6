"""The root command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from es_sbert.cli.main import main
from tests.terminal import Frame, run_in_terminal


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


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("es-sbert index cr", {"create"}),
        ("es-sbert ingest --text-t", {"--text-template"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, completed: set[str]) -> None:
    environment = os.environ | {
        "_ES_SBERT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    program = [sys.executable, "-c", "import sys; sys.argv[0] = 'es-sbert'; from es_sbert.cli.main import main; main()"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert {line.partition(",")[2] for line in done.stdout.split()} == completed, done.stderr


@pytest.mark.parametrize(
    ("arguments", "removed", "way_out"),
    [
        (["--profile=production", "search", "docs", "text"], "--profile", "Set ES_SBERT_URL"),
        (["index", "show", "docs", "--profile", "production"], "--profile", "Set ES_SBERT_URL"),
        (["ingest", "--dimensions", "128", "--index", "docs", "docs.jsonl"], "--dimensions", "`--model MODEL@N`"),
        (["ingest", "--index", "docs", "--sql", "SELECT 1"], "--sql", "docs/sources.md"),
        (["model", "fetch", "bge", "--prompt", "query", "q: "], "fetch --prompt", "es-sbert model add FOLDER"),
        (["model", "tune"], "model tune", "es-sbert encode"),
        (["index", "remove", "docs"], "index remove", "docs/commands/index.md"),
        (["search", "--index", "docs", "x", "--hybrid", "--weights", "2:1"], "--weights", "`SemanticIndex.hybrid`"),
    ],
)
def test_options_and_commands_of_earlier_versions_are_refused_with_the_way_out(
    arguments: list[str], removed: str, way_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert f"there is no {removed} any more" in shown
    assert way_out in shown


def test_configuration_file_and_profiles_of_earlier_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["engine", "down", "no-such-engine", *arguments])
        return ended.value.code, capsys.readouterr().err

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "no configuration file" not in run()[1]
    with monkeypatch.context() as set_once:
        set_once.setenv("ES_SBERT_PROFILE", "production")
        assert "ES_SBERT_PROFILE is set" in run()[1]
    file = tmp_path / "es-sbert" / "config.toml"
    file.parent.mkdir()
    file.write_text("[profiles.production]")
    code, refused = run()
    assert code == 2
    assert f"{file} exists" in refused
    assert "Set ES_SBERT_URL" in refused
    assert run("--help") == (0, "")


def test_a_message_after_ctrl_c_begins_a_line() -> None:
    pressed = False

    def press(frame: Frame) -> bytes:
        nonlocal pressed
        if pressed or "Ready" not in "\n".join(frame.rows):
            return b""
        pressed = True
        return b"\x03"

    program = (
        "import time, click; from es_sbert.cli import main; "
        "main.cli = click.Command('cli', callback=lambda: (click.echo('Ready'), time.sleep(60))); main.main([])"
    )
    run = run_in_terminal([sys.executable, "-c", program], environment=dict(os.environ), press=press)
    assert run.code == 130
    assert run.frames[-1].rows[-1] == "Interrupted."
