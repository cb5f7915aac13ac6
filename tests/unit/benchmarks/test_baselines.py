"""The paper's baselines: from a corpus to models that embed, and what a spec opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("gensim")

from benchmarks.baselines.__main__ import main
from tests.tiny import write_tiny_bert


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_senteval_and_argument_similarity(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    (tmp_path / "transfer").mkdir()
    (tmp_path / "argument").mkdir()
    texts = [f"the {noun} sleeps on the {other}" for noun in ("cat", "man") for other in ("mat", "guitar")] * 14
    labels = ["1" if "cat" in text else "0" for text in texts]
    rows = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "transfer/MR.tsv").write_text("\n".join(["text\tlabel", *rows, ""]))
    (tmp_path / "transfer/TREC-train.tsv").write_text("\n".join(["text\tlabel", *rows, ""]))
    (tmp_path / "transfer/TREC-test.tsv").write_text("\n".join(["text\tlabel", *rows[:9], ""]))
    report = json.loads(run("evaluate", f"average:{folder}", "--task", "transfer", "--data", tmp_path, "--json"))
    assert [(row["data"], row["part"], row["size"]) for row in report["rows"]] == [
        ("MR", "10 folds", 56),
        ("TREC", "test", 9),
    ]
    assert all(row["figures"]["accuracy"] == 100 for row in report["rows"])

    pairs = [f"topic {n % 8}\t{text}\t{texts[n * 3 % 56]}\t{('NS', 'SS', 'HS')[n % 3]}" for n, text in enumerate(texts)]
    header = "topic\tsentence_1\tsentence_2\tlabel"
    (tmp_path / "argument/ukp.tsv").write_text("\n".join([header, *pairs, ""]))
    report = json.loads(run("evaluate", f"cls:{folder}", "--task", "argument", "--data", tmp_path, "--json"))
    assert [row["size"] for row in report["rows"]] == [56] * 3
