"""A data set of a recipe becomes checked examples; whatever is wrong is said before training starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.training.recipe import CoSentSpec, DataSpec, StageSpec
from es_sbert.training.training_examples import ExampleSchema, LabelKind, read_examples, read_stage
from tests.raised import raises_as_recorded

PAIRS = ("sentence1", "sentence2")
SCORES = ExampleSchema(PAIRS, LabelKind.SCORE, score_range=(0.0, 1.0))
CLASSES = ExampleSchema(PAIRS, LabelKind.CLASS, classes=("no", "yes"))
NEGATIVES = ExampleSchema(("anchor", "positive", "negative"), repeats_last=True, distinct=True)
TEXT_COLUMNS: dict[str, Any] = {"sentence1": "a", "sentence2": "b"}


def spec(columns: dict[str, Any], path: str = "t.tsv", **more: Any) -> DataSpec:
    return DataSpec(path=path, columns=columns, **more)


def write(folder: Path, *rows: str, name: str = "t.tsv") -> None:
    (folder / name).write_text("\n".join(rows) + "\n")


def test_examples_have_texts_and_their_lines(tmp_path: Path) -> None:
    write(tmp_path, "a\tb\tl", "w\tx\tyes", "y\tz\tno")
    examples = read_examples(spec({**TEXT_COLUMNS, "class": "l"}, name="mine"), CLASSES, tmp_path)
    assert (examples.name, examples.texts) == ("mine", (["w", "y"], ["x", "z"]))
    assert (examples.path, examples.lines.tolist()) == (tmp_path / "t.tsv", [2, 3])
    assert read_examples(spec({**TEXT_COLUMNS, "class": "l"}), CLASSES, tmp_path).name == "t.tsv"


@pytest.mark.parametrize(
    ("values", "schema", "options", "labels"),
    [
        (["0", "5", "2.5"], SCORES, {"score_range": (0, 5)}, [0.0, 1.0, 0.5]),
        (["0", "5", "2.5"], replace(SCORES, score_range=(-1.0, 1.0)), {"score_range": (0, 5)}, [-1.0, 1.0, 0.0]),
        (["-7.5"], replace(SCORES, score_range=None), {}, [-7.5]),  # without a range they are unchanged
        (["yes", "no"], CLASSES, {"limit": 1}, [1]),
        *((values, replace(CLASSES, classes=("0", "1")), {}, [0, 1]) for values in (["0", "1"], [0, 1], [False, True])),
    ],
)
def test_labels_are_scaled_or_numbered(
    values: list[object], schema: ExampleSchema, options: dict[str, Any], labels: list[float], tmp_path: Path
) -> None:
    write(tmp_path, *(json.dumps({"a": "x", "b": "y", "l": value}) for value in values), name="t.jsonl")
    role = "class" if schema.label is LabelKind.CLASS else "score"
    found = read_examples(spec({**TEXT_COLUMNS, role: "l"}, "t.jsonl", **options), schema, tmp_path).labels
    assert found is not None
    assert found.dtype == (np.int64 if role == "class" else np.float32)
    assert found.tolist() == labels


@pytest.mark.parametrize(("negatives", "texts"), [(None, 2), ("n", 3), (("n",), 3), (("n", "m"), 4), ((), 2)])
def test_last_role_accepts_several_columns(negatives: str | tuple[str, ...] | None, texts: int, tmp_path: Path) -> None:
    write(tmp_path, "a\tp\tn\tm", "1\t2\t3\t4")
    columns: dict[str, Any] = {"anchor": "a", "positive": "p"} | ({} if negatives is None else {"negative": negatives})
    examples = read_examples(spec(columns), NEGATIVES, tmp_path)
    assert examples.texts == (["1"], ["2"], ["3"], ["4"])[:texts]
    assert examples.labels is None


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (spec({"sentence1": "a", "score": "s"}), SCORES),
        (spec(TEXT_COLUMNS), SCORES),
        (spec({"anchor": ("a", "b"), "positive": "p"}), NEGATIVES),
        (spec(TEXT_COLUMNS, prompts={"anchor": "query"}), SCORES),
        (spec({**TEXT_COLUMNS, "score": "s"}, score_range=(5, 0)), SCORES),
        (spec({**TEXT_COLUMNS, "class": "b"}, skip=1), CLASSES),
    ],
)
def test_invalid_data_set_is_rejected(data: DataSpec, shape: ExampleSchema, tmp_path: Path) -> None:
    write(tmp_path, "a\tb", "x\tyes")
    with raises_as_recorded((RecipeInvalid, SourceError)):
        read_examples(data, shape, tmp_path)


def test_stage_whose_data_sets_share_a_name_or_a_single_label_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, "a\tb\ts", "w\tx\t1", "y\tz\t1")
    data = spec({**TEXT_COLUMNS, "score": "s"})
    for datasets in ((data, data), (data,)):
        stage = StageSpec(data=datasets, objective=CoSentSpec(kind="cosent"))
        with raises_as_recorded((RecipeInvalid, SourceError)):
            read_stage(stage, tmp_path, [SCORES] * len(datasets))


@pytest.mark.parametrize(
    ("score", "bounds"),
    [
        ("high", (0, 5)),
        ("5.01", (0, 5)),
        ("4.5", None),  # the range of the objective
    ],
)
def test_invalid_score_is_rejected(score: str, bounds: tuple[float, float] | None, tmp_path: Path) -> None:
    write(tmp_path, "a\tb\ts", "w\tx\t1", f"y\tz\t{score}")
    with raises_as_recorded(SourceError):
        read_examples(spec({**TEXT_COLUMNS, "score": "s"}, score_range=bounds), SCORES, tmp_path)


def test_all_problems_are_reported_in_one_message(tmp_path: Path) -> None:
    write(tmp_path, "a\tb\tl", "w\tx\tyes", " \tz\tno", "y\tz\tmaybe", "u\t\tYes", "y\tz\t1", "y\tz\t2", "y\tz\t3")
    with raises_as_recorded(SourceError):
        read_examples(spec({**TEXT_COLUMNS, "class": "l"}), CLASSES, tmp_path)


@pytest.mark.parametrize("rows", [["q\tyes\tyes"], ["q\tyes\tno", "q \tfine\t yes"], ["q\tyes\tno", "q\tfine\tq"]])
def test_negative_equal_to_a_positive_is_rejected(rows: list[str], tmp_path: Path) -> None:
    write(tmp_path, "a\tp\tn", *rows)
    columns = {"anchor": "a", "positive": "p", "negative": "n"}
    with raises_as_recorded(SourceError):
        read_examples(spec(columns), NEGATIVES, tmp_path)
    # A teacher's margin between a text and itself is 0, and no contradiction.
    margins = ExampleSchema(("anchor", "positive", "negative"), LabelKind.SCORE, taught=True)
    assert len(read_examples(spec(columns), margins, tmp_path)) == len(rows)
