"""Pairs of neighboring passages: of one text, without shared text, and the same in a resumed run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.training.passage_pairs import add_passage_pairs, choose_neighbors, passage_splitter
from es_sbert.training.recipe import PassagesSpec, load_recipe
from es_sbert.training.training_examples import Examples
from tests.unit.training.support import read_json, recipe, train_here, write_recipe

WORDS = ["cats", "dogs", "rain", "music", "trains", "bread", "stars", "books"]
LONG = [
    " ".join(
        f"Sentence {number} of text {text} is about {WORDS[(number + text) % 8]} and more." for number in range(12)
    )
    for text in range(24)
]
SPEC = PassagesSpec(tokens=32)


def examples(texts: list[str]) -> Examples:
    return Examples("texts", Path("texts.jsonl"), (texts,), None, np.arange(1, len(texts) + 1))


def test_passages_follow_each_other_and_share_no_text(tmp_path: Path, model: Path) -> None:
    texts = ["Too short.", *LONG]
    found = add_passage_pairs(examples(texts), SPEC, str(model), tmp_path / "p.npy", lambda message: None)
    assert found.lines.tolist() == list(range(2, 26))
    starts = set()
    for line, anchor, positive in zip(found.lines.tolist(), *found.texts, strict=True):
        text = texts[line - 1]
        start = text.index(anchor)
        assert text[start + len(anchor) :].lstrip().startswith(positive)
        assert text.count(anchor) == text.count(positive) == 1
        assert anchor.endswith(".")
        starts.add(start)
    assert len(starts) > 2  # not the first one of each text


def test_passages_are_kept_for_a_resumed_run(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "p.npy"
    first = add_passage_pairs(examples(LONG), SPEC, str(model), cache, lambda message: None)
    again = add_passage_pairs(examples(LONG), SPEC, "a model that is gone", cache, lambda message: None)
    assert again.texts == first.texts
    other = PassagesSpec(tokens=32, seed=2)
    drawn = add_passage_pairs(examples(LONG), other, str(model), tmp_path / "q.npy", lambda message: None)
    assert drawn.texts != first.texts


def test_texts_of_one_passage_are_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(SourceError, match="no text has two passages of up to 32 tokens"):
        add_passage_pairs(examples(["One.", "Two."]), SPEC, str(model), tmp_path / "p.npy", lambda message: None)


def test_overlapping_repeated_and_tiny_passages_are_not_chosen() -> None:
    text = "one two three. four five six. ok. seven eight nine. one two three."
    spans = [(0, 14), (15, 29), (30, 33), (34, 51), (52, 66)]
    # The first is repeated at the end, and the third says too little, as the second passage too.
    assert {choose_neighbors(text, spans, draw) for draw in range(8)} == {((34, 51), (52, 66))}
    overlapping = [(0, 29), (15, 51), (34, 66)]
    assert choose_neighbors(text, overlapping, 0) is None
    assert choose_neighbors(text, spans[:1], 0) is None
    assert choose_neighbors("猫は満足しています。犬は走っています。", [(0, 10), (10, 20)], 0) is None
    unspaced = "猫はいつも満足しています。犬は公園を走っています。"
    assert choose_neighbors(unspaced, [(0, 13), (13, 25)], 0) == ((0, 13), (13, 25))


def test_plain_transformers_split_too(tmp_path: Path, model: Path) -> None:
    plain = model.with_name(model.name + "-transformer")
    assert passage_splitter(plain, "plain", 32)(LONG[:2]) == passage_splitter(model, "model", 32)(LONG[:2])


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_run_trains_on_passages_with_mined_negatives(folder: Path, model: Path) -> None:
    (folder / "texts.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in LONG))
    data = {
        "path": "texts.jsonl", "columns": {"text": "body"}, "passages": {"tokens": 32},
        "hard_negatives": {"model": str(model), "margin": 0.0}, "prompts": {"anchor": "query", "negative": "document"},
    }  # fmt: skip
    settings = recipe(model, data=[data], objective={"kind": "in-batch"}, dev=None)
    settings["model"]["prompts"] = {"query": "find: ", "document": "text: "}
    settings["export"] = {"precisions": []}
    train_here(write_recipe(folder, settings), folder / "out")
    (stage,) = read_json(folder / "out/training.json")["stages"]
    assert stage["examples"] == 24
    assert stage["steps"] >= 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"objective": {"kind": "triplet"}}, "passages make pairs"),
        ({"columns": {"anchor": "a", "positive": "b"}}, "passages need a single column"),
        ({"passages": {"tokens": 8}}, "greater than or equal to 16"),
    ],
)
def test_passages_of_other_data_are_refused(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    data = {"path": "t.jsonl", "columns": {"text": "body"}, "passages": {}} | changes
    settings = recipe(Path("base"), data=[data], objective={"kind": "in-batch"}, dev=None)
    with pytest.raises(RecipeInvalid, match=reason):
        load_recipe(str(write_recipe(tmp_path, settings)))
