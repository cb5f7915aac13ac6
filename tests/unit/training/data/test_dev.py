"""Dev data by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.errors import SourceError
from es_sbert.training.recipe import DevSpec
from es_sbert.training.training_examples import read_dev
from tests.raised import raises_as_recorded

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


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("sts", "a\tb\tl\nw\tx\t2\ny\tz\t2.0\n"),
        ("duplicates", "a\tb\tl\nw\tx\t0\ny\tz\t0\n"),
        ("pairs", "a\tb\nw\tz\ny\tz\n"),
    ],
)
def test_uninformative_or_invalid_gold_labels_are_rejected(task: str, rows: str, tmp_path: Path) -> None:
    labels = {"sts": {**PAIRS, "score": "l"}, "duplicates": {**PAIRS, "class": "l"}}
    columns = labels.get(task, {"anchor": "a", "positive": "b"})
    with raises_as_recorded(SourceError):
        read_dev(dev(tmp_path, rows, task=task, columns=columns), tmp_path)
