"""Dev data by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.training.recipe import DevSpec
from es_sbert.training.training_examples import read_dev

PAIRS = {"sentence1": "a", "sentence2": "b"}


def dev(folder: Path, rows: str, **settings: Any) -> DevSpec:
    (folder / "dev.tsv").write_text(rows)
    return DevSpec(path="dev.tsv", **settings)


def test_sts_scores_are_not_scaled(tmp_path: Path) -> None:
    spec = dev(tmp_path, "a\tb\ts\nw\tx\t4.5\ny\tz\t-1\n", task="sts", columns={**PAIRS, "score": "s"})
    data = read_dev(spec, tmp_path)
    assert data.task == "sts"
    assert data.texts == (["w", "y"], ["x", "z"])
    assert data.gold is not None
    assert data.gold.tolist() == [4.5, -1.0]
    assert len(data) == 2


def test_duplicates_gold_labels_are_integers(tmp_path: Path) -> None:
    spec = dev(tmp_path, "a\tb\td\nw\tx\t1\ny\tz\t0\n", task="duplicates", columns={**PAIRS, "class": "d"})
    gold = read_dev(spec, tmp_path).gold
    assert gold is not None
    assert gold.dtype == np.int64
    assert gold.tolist() == [1, 0]


def test_triplets_and_pairs_have_no_gold(tmp_path: Path) -> None:
    columns = {"anchor": "a", "positive": "p", "negative": "n"}
    data = read_dev(dev(tmp_path, "a\tp\tn\n1\t2\t3\n4\t5\t6\n", task="triplet", columns=columns, limit=1), tmp_path)
    assert data.texts == (["1"], ["2"], ["3"])
    assert data.gold is None
    del columns["negative"]
    pairs = dev(tmp_path, "a\tp\n1\t2\n3\t4\n", task="pairs", columns=columns)
    assert len(read_dev(pairs, tmp_path).texts) == 2
    assert read_dev(pairs, tmp_path).kinds == ()
    assert read_dev(pairs.model_copy(update={"prompts": {"positive": "document"}}), tmp_path).kinds == (
        None,
        "document",
    )


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("sts", "a\tb\tl\nw\tx\t2\ny\tz\t2.0\n", "all 2 gold labels are 2,"),
        ("sts", "a\tb\tl\nw\tx\t2\n", "all 1 gold labels are 2,"),
        ("sts", "a\tb\tl\nw\tx\thigh\n", "line 2: l is not a finite number"),
        ("duplicates", "a\tb\tl\nw\tx\t0\ny\tz\t0\n", "all 2 gold labels are 0,"),
        ("duplicates", "a\tb\tl\nw\tx\t2\n", "line 2: l is '2', not one of 0, 1"),
    ],
)
def test_uninformative_or_invalid_gold_labels_are_rejected(task: str, rows: str, message: str, tmp_path: Path) -> None:
    label = "class" if task == "duplicates" else "score"
    with pytest.raises(SourceError, match=message):
        read_dev(dev(tmp_path, rows, task=task, columns={**PAIRS, label: "l"}), tmp_path)


def test_missing_column_mapping_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalid, match=r"dev .dev.tsv.: no column for score"):
        read_dev(dev(tmp_path, "a\tb\n1\t2\n", task="sts", columns=PAIRS), tmp_path)


@pytest.mark.parametrize("rows", ["w\tx\n", "w\tx\ny\tx\n"])
def test_pairs_with_a_single_positive_are_rejected(rows: str, tmp_path: Path) -> None:
    spec = dev(tmp_path, f"a\tb\n{rows}", task="pairs", columns={"anchor": "a", "positive": "b"})
    with pytest.raises(SourceError, match="positives are the same text") as caught:
        read_dev(spec, tmp_path)
    assert "another dev set" in caught.value.remedy
