"""`es-sbert export` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from es_sbert.bundle.bundle import EncoderManifest, EncoderVariant, ParityReport
from es_sbert.cli.export import export_summary
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


def test_json_is_the_manifest(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(folder), "-o", str(tmp_path / "bundle"), "--precision", "int8", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "bundle" / EncoderManifest.FILE_NAME).read_text())


@pytest.mark.parametrize("value", ["fp8", "fp32,int4", "", ","])
def test_unknown_precisions_exit_with_code_2(
    value: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, str(folder), "-o", str(tmp_path / "bundle"), "--precision", value)
    assert (code, out) == (2, "")
    assert "is not a list of fp32, int8, fp16" in err
    assert "--precision fp32,int8" in err


def test_non_empty_output_folder_exits_with_code_2(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("mine")
    code, _, err = run(capsys, str(folder), "-o", str(tmp_path))
    assert code == 2
    assert "neither empty nor an es-sbert bundle" in err
    assert "Traceback" not in err


def test_the_output_is_required(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, str(folder))
    assert code == 2
    assert "--output" in err


def variant(*, forced: bool = False, parity: bool = True) -> EncoderVariant:
    report = ParityReport(
        reference="numpy 2",
        sentences=1024,
        mean_cosine=0.5,
        min_cosine=0.25,
        max_abs_difference=0.1,
        rank_agreement=90.0,
        bar="the bar",
        passed=not forced,
    )
    return EncoderVariant(
        file="onnx/model.onnx",
        sha256="0",
        precision="int8",
        device="cpu",
        attention="plain",
        parity=report if parity else None,
        forced=forced,
    )


def test_summary_marks_forced_and_unchecked_variants() -> None:
    variants = {"int8": variant(forced=True), "fp16": variant(parity=False)}
    manifest = EncoderManifest(
        name="m",
        architecture="bert",
        fingerprint="f",
        pooling=["mean"],
        normalize=True,
        max_tokens=8,
        dimensions=4,
        prompts={},
        default_prompt=None,
        variants=variants,
        exporter={},
    )
    lines = export_summary(manifest, Path("out")).splitlines()
    assert lines[2].split()[:5] == ["int8", "cpu", "0.250000", "0.500000", "90.00"]
    assert lines[2].endswith("FORCED below its bar (the bar)")
    assert lines[3].endswith("NOT CHECKED on CUDA")
