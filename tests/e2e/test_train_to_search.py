"""From a recipe to a hit: a model trained here answers searches on a real engine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from es_sbert.bundle.local_registry import read_registry
from tests.e2e.cli_support import Cli
from tests.unit.checkpoints import write_checkpoint
from tests.unit.training.support import STILL

# What is asked shares no word with what is answered: only training can bring them together.
QUESTIONS = ["river", "winter", "music", "bread", "planet", "doctor", "garden", "engine", "forest", "market",
             "school", "island", "window", "letter", "silver", "dragon"]  # fmt: skip
ANSWERS = ["the water flows", "cold snow falls", "he plays guitar", "flour is baked", "it orbits a star",
           "she heals people", "flowers grow there", "it burns fuel", "many tall trees", "people buy things",
           "children learn here", "land within the sea", "glass in a wall", "words on paper", "a shining metal",
           "a beast of tales"]  # fmt: skip

LEADS = ("what is", "tell me about", "explain", "why")


def write_pairs(path: Path) -> None:
    """Each question in four wordings, all the same for all, so that the wording says nothing about the answer."""
    shuffled = [
        (f"{lead} {question}", answer) for question, answer in zip(QUESTIONS, ANSWERS, strict=True) for lead in LEADS
    ]
    random.Random(0).shuffle(shuffled)
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in shuffled]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.slow
def test_train_from_recipe_to_search_hits(
    tmp_path: Path, own_cache: None, cli: Cli, es9_url: str, fresh_index: Callable[[str], str]
) -> None:
    write_pairs(tmp_path / "pairs.jsonl")
    columns = {"anchor": "question", "positive": "answer"}
    recipe = {
        "name": "answers",
        "model": {"base": str(write_checkpoint(tmp_path / "base", hidden=64, layers=1, config=STILL))},
        "stages": [
            {
                "data": [{"path": "pairs.jsonl", "columns": columns}],
                "objective": {"kind": "in-batch"},
                "epochs": 25,
                "batch": 16,
                "learning_rate": 3e-3,
            }
        ],
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    documents = [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(ANSWERS)]
    (tmp_path / "answers.jsonl").write_text("\n".join(documents) + "\n", encoding="utf-8")

    def found_by(model: Path) -> int:
        """How many questions have their answer as first hit."""
        index = fresh_index(es9_url)
        where = ("--url", es9_url, "--index", index, "--model", model)
        loaded = cli("ingest", *where, "--id-field", "id", tmp_path / "answers.jsonl")
        assert loaded.code == 0, loaded.err
        right = 0
        for number, question in enumerate(QUESTIONS):
            # A wording that training has not seen.
            answer = cli("search", *where, "-k", "1", "--json", f"what about {question}")
            assert answer.code == 0, answer.err
            right += json.loads(answer.out.splitlines()[0])["id"] == str(number)
        return right

    done = cli("train", tmp_path / "recipe.yaml", "-o", tmp_path / "tuned", "--device", "cpu")
    assert done.code == 0, done.err
    assert [model.name for model in read_registry()] == ["answers"]
    assert found_by(tmp_path / "base") <= 4
    assert found_by(tmp_path / "tuned") >= 14
