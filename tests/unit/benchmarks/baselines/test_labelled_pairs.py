"""Pairs with classes, read from tables."""

from pathlib import Path

import pytest

from benchmarks.baselines.bilstm import read_classified_pairs
from es_sbert.errors import SourceError

COLUMNS = ("premise", "hypothesis", "label")


def test_reads_pairs_and_classes(tmp_path: Path) -> None:
    path = tmp_path / "nli.tsv"
    path.write_text("premise\thypothesis\tlabel\na\tb\tneutral\nc\td\tentailment\n")
    pairs = read_classified_pairs(path, COLUMNS)
    assert (pairs.first, pairs.second, pairs.classes) == (["a", "c"], ["b", "d"], ("entailment", "neutral"))
    assert pairs.labels.tolist() == [1, 0]
    assert len(pairs) == 2
    assert read_classified_pairs(path, COLUMNS, ("neutral", "x", "entailment")).labels.tolist() == [0, 2]


def test_numeric_classes(tmp_path: Path) -> None:
    path = tmp_path / "nli.jsonl"
    path.write_text(
        '{"premise": "a", "hypothesis": "b", "label": 1}\n{"premise": "a", "hypothesis": "b", "label": 0}\n'
    )
    pairs = read_classified_pairs(path, COLUMNS)
    assert (pairs.classes, pairs.labels.tolist()) == (("0", "1"), [1, 0])


def test_every_bad_row_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "nli.jsonl"
    path.write_text(
        '{"premise": "a", "hypothesis": "b", "label": "yes"}\n'
        '{"premise": "a", "hypothesis": "b", "label": "maybe"}\n'
        '{"premise": " ", "hypothesis": "b", "label": "no"}\n'
        '{"premise": "a", "hypothesis": "b"}\n'
    )
    with pytest.raises(SourceError) as error:
        read_classified_pairs(path, COLUMNS, ("no", "yes"))
    assert error.value.message.splitlines() == [
        f"{path}, line 2: label is 'maybe', none of no, yes",
        f"{path}, line 3: premise is empty",
        f"{path}, line 4: label is missing",
    ]


def test_missing_column_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "nli.tsv"
    path.write_text("premise\thypothesis\na\tb\n")
    with pytest.raises(SourceError, match="no column label"):
        read_classified_pairs(path, COLUMNS)
