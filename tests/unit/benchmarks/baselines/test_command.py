"""`python -m benchmarks.baselines` from a corpus to a model that opens."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.baselines.__main__ import main
from benchmarks.baselines.open_baseline import open_baseline
from es_sbert.errors import DeviceError, SourceError, UsageError
from es_sbert.evaluation.evaluated_models import SentenceEmbedder

ROWS = [
    f"a {noun} sleeps\tthe {noun} {verb}\t{label}"
    for noun in ("cat", "dog", "man")
    for verb, label in (("sleeps", "yes"), ("runs", "no"))
] * 4


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(["sentence1\tsentence2\tlabel", *ROWS]) + "\n")
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["train", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stderr


def test_train_word_vectors_then_bilstm(tmp_path: Path, pairs: Path) -> None:
    vectors, folder = tmp_path / "words.vec.gz", tmp_path / "infersent"
    columns = ("--column", "sentence1", "--column", "sentence2")
    said = run("word-vectors", pairs, *columns, "-o", vectors, "--dimensions", 5, "--min-count", 2)
    assert said == f"7 words of 5 dimensions from 48 texts → {vectors}\n"
    said = run("bilstm", pairs, "--dev", pairs, "--vectors", vectors, "-o", folder, "--hidden", 3, "--epochs", 2)
    assert [line.split(",")[0].split(": ")[0] for line in said.splitlines()[:2]] == ["epoch 1", "epoch 2"]
    for spec, width in ((f"word2vec:{vectors}", 5), (f"infersent:{folder}", 6)):
        model = open_baseline(spec)
        assert isinstance(model, SentenceEmbedder)
        assert model.embed(["the cat runs", "a dog"]).shape == (2, width)


def test_dev_class_missing_from_training_is_rejected(tmp_path: Path, pairs: Path) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("sentence1\tsentence2\tlabel\na\tb\tmaybe\n")
    with pytest.raises(SourceError, match="dev.tsv, line 2: label is 'maybe', none of no, yes"):
        run("bilstm", pairs, "--dev", dev, "--vectors", "words.vec", "-o", tmp_path / "out")


def test_cuda_without_a_device_raises_device_error(
    tmp_path: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="no CUDA device"):
        run("bilstm", pairs, "--dev", pairs, "--vectors", "x", "-o", tmp_path / "out", "--device", "cuda")


def test_evaluate_prints_a_json_report(tmp_path: Path) -> None:
    vectors, sts = tmp_path / "words.vec", tmp_path / "small-test.tsv"
    vectors.write_text("a 1 2\ncat 3 4\ndog 4 1\n")
    sts.write_text("sentence1\tsentence2\tscore\na cat\ta cat\t5\na dog\tcat\t1\na\tdog\t0\n")
    arguments = ["evaluate", f"glove:{vectors}", "--task", "sts", "--file", str(sts), "--json"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["model"] == "glove averaged (words.vec)"
    assert report["rows"][0]["figures"]["spearman_cosine"] == pytest.approx(100)


def test_evaluate_unknown_baseline_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="no baseline 'bm25'"):
        CliRunner().invoke(main, ["evaluate", "bm25", "--task", "sts"], catch_exceptions=False)
