"""The root command."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from es_sbert.cli.ingest import _confirm_prune
from es_sbert.cli.main import main
from es_sbert.ingest.reconcile import PruneCandidates
from tests.terminal import Frame, run_in_terminal
from tests.unit.golden import assert_golden_message, golden_messages


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command writes to stderr."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, shown = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    return " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "completed"), [("es-sbert index cr", {"create"}), ("es-sbert ingest --text-t", {"--text-template"})]
)
def test_a_shell_completes_commands_and_options(words: str, completed: set[str]) -> None:
    environment = os.environ | {"_ES_SBERT_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(words.count(" "))
    program = [sys.executable, "-c", "import sys; sys.argv[0] = 'es-sbert'; from es_sbert.cli.main import main; main()"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert {line.partition(",")[2] for line in done.stdout.split()} == completed, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serach", "Did you mean 'search'"),
        ("index shwo", "Did you mean 'show'"),
        ("duplicates", "exactly one of FILES and --index is required, but neither is given"),
        ("--versoin", "Did you mean '--version'"),
        ("evaluate mine --task transfer --data .", "'transfer' is not one of"),
        ("ingest --log-format json --index docs --retry-seconds nan", 'nan is not a finite number.", "error": '),
        ("index calibrate docs --keep nan", "nan is not a finite number"),
    ],
)
def test_click_refuses_what_it_knows_to_be_wrong(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(words.split(), capsys)


@pytest.mark.parametrize("words", golden_messages())
def test_commands_that_cannot_run_are_refused_with_the_reason(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a text\n")
    Path("empty.txt").touch()
    Path("recipe.yaml").write_text("model: {base: all-MiniLM-L6-v2}\n")
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert_golden_message(words, capsys.readouterr().err.replace(str(tmp_path), "FOLDER").replace(os.sep, "/"))


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


def test_a_file_without_permission_is_no_bug_but_other_errors_of_the_system_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raised: OSError = PermissionError(errno.EACCES, "Permission denied", "a.txt")

    def fail() -> None:
        raise raised

    monkeypatch.setattr("es_sbert.cli.main.cli", click.Command("cli", callback=fail))
    assert "a.txt is not accessible to this user: Permission denied Check its perm" in refusal([], capsys)
    for raised in (PermissionError(errno.EPERM, "of no file"), OSError(errno.EIO, "a broken disk")):
        with pytest.raises(OSError, match=str(raised.strerror)):
            main([])


def test_documents_and_indices_are_deleted_only_with_consent() -> None:
    gone = PruneCandidates(12, 50, ("a\x1b", "b"))
    for answer, consent in (("n", False), ("\n", False), ("y", True)):
        with CliRunner().isolation(answer) as streams:
            assert _confirm_prune(gone) is consent
        assert "12 of 50 loaded documents are no longer in the source (a\\x1b, b, …)" in streams[1].getvalue().decode()
    question = "Delete the index docs once the new one is ready? [y/N]:"
    command = [sys.executable, "-m", "es_sbert", "index", "migrate", "docs", "--replace-index", "--url", "http://no:1"]
    run = run_in_terminal(command, environment=os.environ, press=lambda frame: b"n\n" * (question in frame.rows))
    assert (run.code, run.frames[-1].rows) == (0, (f"{question} n",)), "the engine, which is not there, was not asked"


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
