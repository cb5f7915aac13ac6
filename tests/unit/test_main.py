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
    shown = refusal(arguments, capsys)
    assert f"there is no {removed} any more" in shown
    assert way_out in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serach", "Did you mean 'search'"),
        ("index shwo", "Did you mean 'show'"),
        ("--versoin", "Did you mean '--version'"),
        ("search --index docs x --like 1", "exactly one of TEXT and --like"),
        ("search --index docs", "exactly one of TEXT and --like"),
        ("search --index docs --like 1 --hybrid", "--hybrid and --rerank need a query text"),
        ("search --index docs --like 1 --rerank model", "--hybrid and --rerank need a query text"),
        ("search --index docs x --filter [1]", "the filter must be a JSON object with one query"),
        ("encode --text-field embedding", "'embedding'"),
        ("evaluate mine --task sts", "Set either --data or --file."),
        ("evaluate mine --task sts --data nowhere", "there is no folder nowhere"),
        ("evaluate mine --task transfer --data .", "'transfer' is not one of"),
        ("evaluate mine --task retrieval --index a", "--index requires either --judgements FILE or --data FOLDER"),
        ("evaluate mine --task retrieval --data . --index a --compare b", "--compare cannot be combined"),
        ("evaluate --task retrieval --data . --index a --index b --index c", "at most two indices can be compared"),
        ("evaluate mine --task sts --judgements a.txt", "--judgements requires the task retrieval"),
        ("evaluate mine --task retrieval --judgements a.txt", "--judgements requires --index"),
        ("evaluate --task retrieval", "MODEL or --index is required"),
        ("train quickstart", "an output folder is required"),
        ("duplicates a.txt --write-field f", "--write-field requires --index"),
        ("duplicates --index i --filter {", "the filter is not JSON"),
        ("duplicates", "exactly one of FILES and --index is required, but neither is given"),
        ('cluster a.txt --filter {"match_all":{}}', "--filter requires --index"),
        ("cluster --index docs --text-field body", "--index cannot be combined with a model or options for files"),
        ("duplicates a.txt --html none/a.html", "none/a.html cannot be written: its folder does not exist"),
        ("duplicates a.txt --num-candidates 9", "--num-candidates requires --index"),
        ("ingest --index docs a.txt --prune", "--prune asks before it removes documents"),
        ("ingest --index docs a.txt --dry-run 0", "--dry-run must be at least 1"),
        ("ingest --log-format json --index docs --retry-seconds nan", 'nan is not a finite number.", "error": '),
        ("index calibrate docs --keep nan", "nan is not a finite number"),
        ("dashboards docs --tenant us", "--tenant requires --kibana"),
        ("dashboards docs --kibana http://localhost:1 -o a", "--output and --kibana cannot be combined"),
        ("distill mine --layers 1 --texts empty.txt -o out", "empty.txt contain no text"),
        ("engine down no-such-engine --yes", "--yes requires --purge"),
        ("export mine -o out --precision fp32,int4", "is not a list of fp32, int8, fp16"),
        ("export mine -o out --precision ,", "several by commas: --precision fp32,int8"),
        ("serve --log-queries", "--log-queries requires --search-log"),
        ("serve --model one/name --also-model one/name", "two models would be served"),
        ("serve --embeddings-key-file missing", "cannot be read"),
        ("serve --search-log missing/searches.jsonl", "missing/searches.jsonl cannot be written: No such file"),
        ("model add none", "there is no folder 'none'"),
    ],
)
def test_commands_that_cannot_run_are_refused_with_the_reason(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a text\n")
    Path("empty.txt").touch()
    assert message in refusal(words.split(), capsys)


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
