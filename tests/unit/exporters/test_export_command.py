"""`es-sbert export` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from es_sbert.bundle.bundle import EncoderManifest
from es_sbert.cli.main import main
from tests.unit.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "small", layers=1)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a call."""
    with pytest.raises(SystemExit) as ended:
        main(["export", *arguments])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def test_table_goes_to_stdout_and_progress_to_stderr(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, str(folder), "-o", str(tmp_path / "bundle"), "--precision", "fp32,fp16")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith(f"{folder} → {tmp_path / 'bundle'} (fingerprint ")
    assert "fp32" in lines[2]
    assert "passed (min cosine ≥ 0.99999" in lines[2]
    assert [line.split()[0] for line in lines[3:]] == ["fp16"]
    assert "Comparing fp32 with the reference" in err
    _, out, _ = run(capsys, str(folder), "-o", str(tmp_path / "bundle"), "--precision", "fp32", "--json")
    assert json.loads(out) == json.loads((tmp_path / "bundle" / EncoderManifest.FILE_NAME).read_text())
