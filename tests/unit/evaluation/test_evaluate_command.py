"""`es-sbert evaluate` as a user calls it, with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers  # noqa: F401  # its log handler keeps the stderr of its import, which must outlive a test

from es_sbert.cli.main import main
from es_sbert.evaluation import evaluate
from es_sbert.evaluation.evaluated_models import open_model
from es_sbert.evaluation.pair_metrics import Similarity, correlate, paired_similarity
from es_sbert.networks.siamese_encoder import open_siamese_encoder
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "sts"], "exactly one of --data and --file is required"),
        (["--task", "sts", "--data", ".", "--file", "x.tsv"], "exactly one of --data and --file is required"),
        (["--task", "sts", "--data", "nowhere"], "there is no folder nowhere"),
        (["--task", "sts", "--file", "nowhere.tsv"], "nowhere.tsv does not exist"),
        (["--task", "sts", "--data", ".", "--index", "docs"], "--index requires the task retrieval"),
        (["--task", "retrieval", "--file", "x"], "needs documents, queries and judgements"),
        (["--task", "sts", "--data", ".", "--compare", "x"], "--compare requires the task retrieval"),
        (["--task", "retrieval", "--judgements", "x.csv"], "--judgements requires --index"),
        (["--task", "retrieval", "--index", "a"], "--index requires either --judgements FILE or --data FOLDER"),
        (["--task", "retrieval", "--index", "a", "--data", ".", "--judgements", "x"], "--index requires either"),
        (["--task", "transfer", "--data", "."], "'transfer' is not one of"),
        (["--task", "retrieval", "--data", ".", "--index", "a", "--compare", "b"], "--compare cannot be combined"),
        (["--task", "retrieval", "--data", ".", *["--index", "a"] * 3], "at most two indices can be compared"),
        (["--task", "everything", "--data", "."], "'everything' is not one of"),
        (["--data", "."], "Missing option '--task'"),
    ],
)
def test_invalid_options_exit_with_code_2(
    arguments: list[str],
    message: str,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, tiny, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_broken_file_is_reported_before_the_model_loads(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "sts/small-test.tsv"
    path.write_text(path.read_text().replace("1.5", "much"))
    code, _, err = run(capsys, "no/such-model-at-all", "--task", "sts", "--data", data)
    assert code == 2
    assert "small-test.tsv, line 4: score is not a finite number: 'much'" in err


def test_several_collections_are_averaged(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        cat = {"corpus": [{"_id": "d", "text": "a cat"}], "queries": [{"_id": "q", "text": "cat"}]}
        write_collection(tmp_path / "retrieval" / name, **cat, judgements="q\td\t1\n")
    arguments = ("--task", "retrieval", *CPU)
    code, _, err = run(capsys, *arguments, "--data", tmp_path / "retrieval", "--index", "docs")
    assert code == 2
    assert "holds 0 test collections, not one" in err
    code, out, _ = run(capsys, tiny, *arguments, "--data", tmp_path)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[1] == [
        *("data", "part", "queries", "ndcg@10", "mrr@10", "map@100", "precision@10", "recall@10", "recall@100"),
        *("success@1", "unjudged@10"),
    ]
    assert [line[0] for line in lines[2:]] == ["one", "two", "average"]
    assert all(line[-8:] == ["100.00"] * 3 + ["10.00"] + ["100.00"] * 3 + ["0.00"] for line in lines[2:])
    assert lines[4][1:4] == ["2", "collections", "2"]


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
    assert [line.split()[0] for line in lines[9:]] == [
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


def test_documents_without_text_are_reported(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = [{"_id": str(number), "text": "" if number < 6 else "a cat sleeps"} for number in range(8)]
    queries, judgements = [{"_id": "q", "text": "the cat"}], "q\t1\t1\nq\t7\t1\n"
    folder = write_collection(tmp_path / "small", corpus=corpus, queries=queries, judgements=judgements)
    code, out, err = run(capsys, tiny, "--task", "retrieval", "--data", folder, "--device", "cpu", "--json")
    assert code == 0
    assert "Warning: 6 documents of small without title and text count as not found: 0, 1, 2, 3, 4, …" in err
    (row,) = json.loads(out)["rows"]
    assert row["figures"]["recall@100"] == 50.0


def test_evaluate_function(tiny: Path, data: Path) -> None:
    messages: list[str] = []
    report = evaluate(tiny, "sts", data, precision="fp32", device="cpu", report=messages.append)
    assert (report.task, report.model, [row.data for row in report.rows]) == ("sts", f"{tiny} (fp32)", ["small-test"])
    assert "sts: small-test" in messages
    model = open_model(str(tiny), precision="fp32", device="cpu")
    again = evaluate(model, "sts", files=[data / "sts/small-test.tsv"])
    assert again.rows == report.rows
