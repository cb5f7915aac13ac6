"""`es-sbert evaluate` as a user calls it, with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers  # noqa: F401  # its log handler keeps the stderr of its import, which must outlive a test

from es_sbert.cli.main import main
from es_sbert.errors import UsageError
from es_sbert.evaluation import evaluate_model
from es_sbert.evaluation.evaluated_models import open_model
from es_sbert.evaluation.pair_metrics import Similarity, correlate, paired_similarity
from es_sbert.runtime.siamese_encoder import open_siamese_encoder
from tests.raised import raises
from tests.tiny import write_tiny_bert
from tests.unit.evaluation.support import write_collection

PAIRS = [
    ("a man plays the guitar", "the man plays a guitar", 5), ("a cat sleeps", "the cat sleeps on the mat", 4),
    ("a man sleeps", "the cat plays", 1.5), ("guitar", "mat", 0), ("a cat", "a man on the mat", 1),
]  # fmt: skip

CPU = ("--device", "cpu", "--precision", "fp32")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two tasks."""
    (tmp_path / "sts").mkdir()
    lines = ["\t".join(map(str, pair)) for pair in PAIRS]
    (tmp_path / "sts/small-test.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")
    (tmp_path / "triplets").mkdir()
    rows = [f"{first}\t{second}\tguitar on the mat" for first, second, _ in PAIRS]
    (tmp_path / "triplets/small-dev.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a call."""
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    assert "Traceback" not in captured.err
    return ended.value.code, captured.out, captured.err


def test_tables_go_to_stdout_and_progress_to_stderr(tiny: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, tiny, "--task", "sts", "--task", "triplet", "--data", data, "--limit", 3, *CPU)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"sts: {tiny} (fp32)"
    assert lines[2].split()[:3] == ["small-test", "all", "3"]
    assert lines[3] == f"triplet: {tiny} (fp32)"
    assert len(lines) == 6
    assert "sts: small-test" in err.splitlines()


def test_json_report_has_figures_and_settings(tiny: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, tiny, "--task", "sts", "--file", data / "sts/small-test.tsv", *CPU, "--json")
    assert code == 0
    report = json.loads(out)
    assert report["settings"] == {"device": "cpu", "precision": "fp32", "runtime": "auto", "limit": None}
    network = open_siamese_encoder(tiny)
    first, second = (network.embed([pair[side] for pair in PAIRS]) for side in (0, 1))  # type: ignore[misc]
    expected = correlate(paired_similarity(Similarity.COSINE, first, second), np.array([pair[2] for pair in PAIRS]))
    assert report["rows"][0]["figures"]["spearman_cosine"] == pytest.approx(expected.spearman, abs=0.01)


def write_grammar(folder: Path) -> Path:
    """A collection whose queries are the beginnings of its documents."""
    documents = [f"{one} {two} {three}" for one in ("a man", "the cat") for two in ("plays", "sleeps on")
                 for three in ("a guitar", "the mat", "the guitar")]  # fmt: skip
    return write_collection(
        folder,
        corpus=[{"_id": f"d{number}", "text": text} for number, text in enumerate(documents)],
        queries=[{"_id": f"q{number}", "text": text[:-4]} for number, text in enumerate(documents)],
        judgements="".join(f"q{number}\td{number}\t1\n" for number in range(len(documents))),
    )


def test_compare_prints_the_verdict_and_all_metrics(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_grammar(tmp_path / "grammar")
    other = write_tiny_bert(tmp_path / "other", seed=5)
    how = ("--task", "retrieval", "--data", folder, *CPU)
    code, out, _ = run(capsys, tiny, "--compare", tiny, *how)
    assert code == 0
    lines = out.splitlines()
    assert lines[6].startswith(f"grammar: {tiny} and {tiny} are not distinguishable: ndcg@10 +0.00 (95 % interval ")
    assert lines[6].endswith("p = 1.000, 12 queries)")
    assert [line.split()[0] for line in lines[10:]] == [
        *("ndcg@10", "mrr@10", "map@100", "precision@10", "recall@10", "recall@100", "success@1", "unjudged@10")
    ]
    code, out, _ = run(capsys, tiny, "--compare", other, *how, "--json")
    assert code == 0
    first, second, compared = map(json.loads, out.splitlines())
    difference = compared["comparison"]["differences"]["grammar"]["ndcg@10"]
    figures = [report["rows"][0]["figures"]["ndcg@10"] for report in (first, second)]
    assert [difference["first"], difference["second"]] == pytest.approx(figures)
    assert difference["difference"] == pytest.approx(figures[0] - figures[1])
    assert "scores" not in first["rows"][0]


def test_evaluate_function(tiny: Path, data: Path) -> None:
    messages: list[str] = []
    report = evaluate_model(tiny, "sts", data, precision="fp32", device="cpu", report=messages.append)
    assert (report.task, report.model, [row.data for row in report.rows]) == ("sts", f"{tiny} (fp32)", ["small-test"])
    assert "sts: small-test" in messages
    model = open_model(str(tiny), precision="fp32", device="cpu")
    again = evaluate_model(model, "sts", files=[data / "sts/small-test.tsv"])
    assert again.rows == report.rows
    with raises(UsageError, "task", "nli"):
        evaluate_model(model, "nli", data)  # type: ignore[arg-type]
