"""What is refused before a run begins, because nothing could be learned from it."""

from pathlib import Path
from typing import Any

import pytest

from es_sbert.errors import SourceError
from es_sbert.training.recipe import load_recipe
from es_sbert.training.training_run import read_stages
from tests.unit.training.support import recipe, write_recipe

ROWS = {"regression": "score", "cosent": "score", "softmax": "class"}


def settings(kind: str, *files: str) -> dict[str, Any]:
    objective = {"kind": kind} | ({"classes": ["0", "1"]} if kind == "softmax" else {})
    columns = {"sentence1": "a", "sentence2": "b", ROWS[kind]: "label"}
    return recipe(
        Path("nowhere"), objective=objective, dev=None, data=[{"path": name, "columns": columns} for name in files]
    )


@pytest.mark.parametrize("kind", ROWS)
def test_constant_labels_are_rejected(kind: str, tmp_path: Path) -> None:
    for name, label in (("one.csv", 1), ("other.csv", 0)):
        (tmp_path / name).write_text(f"a,b,label\nx,y,{label}\nv,w,{label}\n")
    alone = load_recipe(str(write_recipe(tmp_path, settings(kind, "one.csv"))))
    with pytest.raises(SourceError, match=r"all labels of .*one\.csv are the same") as caught:
        read_stages(alone, tmp_path)
    assert "in-batch" in caught.value.remedy
    together = load_recipe(str(write_recipe(tmp_path, settings(kind, "one.csv", "other.csv"))))
    assert [len(each) for each in read_stages(together, tmp_path)[0].examples] == [2, 2]
