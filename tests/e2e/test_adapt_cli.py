"""`es-sbert adapt` on a real engine: a model that learned something is better, and one that did not is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.bundle.local_registry import read_registry
from tests.e2e.cli_support import Cli
from tests.e2e.test_train_to_search import ANSWERS, QUESTIONS
from tests.unit.checkpoints import write_checkpoint
from tests.unit.training.support import STILL, cut_at


def write_documents(path: Path) -> None:
    """Titles of two words, and texts that say the same in other words; some texts begin with their title."""
    pairs = [(first, second) for first in range(16) for second in range(16) if first != second]
    random.Random(0).shuffle(pairs)
    documents = []
    for number, (first, second) in enumerate(pairs):
        title = f"{QUESTIONS[first]} {QUESTIONS[second]}"
        text = f"{ANSWERS[first]}. {ANSWERS[second]}."
        documents.append({"id": f"d{number}", "title": title, "text": f"{title}\n{text}" if number % 3 else text})
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.long
def test_adapt_compares_registers_and_refuses(
    tmp_path: Path, own_cache: None, registry: Path, cli: Cli, es9_url: str, fresh_index: Callable[[str], str]
) -> None:
    index, documents = fresh_index(es9_url), tmp_path / "documents.jsonl"
    write_documents(documents)
    base = write_checkpoint(tmp_path / "base", hidden=64, layers=1, config=STILL)
    where = ("--url", es9_url)
    loaded = cli(
        "ingest", *where, "--index", index, "--model", base, "--id-field", "id",
        "--text-template", "{title}. {text}", documents,
    )  # fmt: skip
    assert loaded.code == 0, loaded.err
    training = ("--epochs", "25", "--learning-rate", "3e-3", "--held-out", "40", "--device", "cpu")

    into = ("-o", tmp_path / "tuned", "--name", "ours")
    unfit = cli("adapt", *where, index, *into, *training, "--title-field", "headline")
    assert unfit.code == 2
    assert "no document of the sample has text in headline" in unfit.err
    assert "Use one of the fields with text: title, text" in unfit.err
    with cut_at(60):
        cli("adapt", *where, index, *into, *training)
    done = cli("adapt", *where, index, *into, *training, "--resume", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["title_field"], result["body_fields"], result["verdict"]) == ("title", ["text"], "better")
    assert (result["queries"], result["documents"]) == (40, 240)
    ndcg = result["metrics"]["ndcg@10"]
    assert ndcg["low"] > 0
    assert ndcg["tuned"] > 2 * ndcg["stock"]
    # The titles in front of the texts would have made the task trivial.
    trained = [json.loads(line) for line in (tmp_path / "tuned/adapt/train.jsonl").read_text().splitlines()]
    assert all(row["query"] not in row["text"] and row["text"] != row["negative1"] for row in trained)
    corpus = [json.loads(line) for line in (tmp_path / "tuned/adapt/documents.jsonl").read_text().splitlines()]
    held_out = {document["text"] for document in corpus[:40]}  # they are in random order
    assert not held_out & {row[column] for row in trained for column in ("text", "negative1")}
    assert [model.name for model in read_registry()] == ["ours"]

    again = cli("adapt", *where, index, *into, *training, "--resume")
    assert again.code == 0, again.err
    assert f"es-sbert index migrate {index} --model ours --replace-index" in again.out
    other = cli("adapt", *where, index, *into, *training, "--seed", "1", "--resume")
    assert other.code == 2
    assert "started with other settings: seed" in other.err

    # A training that changes nothing.
    useless = ("--learning-rate", "1e-12", "--held-out", "40", "--device", "cpu", "--pairs", "sentence")
    refused = cli("adapt", *where, index, "-o", tmp_path / "useless", "--name", "useless", *useless)
    assert refused.code == 1, refused.err
    assert "cannot be distinguished from the one that it started from. It was deleted." in refused.out
    assert not (tmp_path / "useless/model").exists()
    assert [model.name for model in read_registry()] == ["ours"]

    # Labeled documents are read though they are not in the sample.
    judged = tmp_path / "judged.jsonl"
    labels = [{"query": f"what of {number}", "ids": [f"d{number}"]} for number in range(100, 140)]
    judged.write_text("\n".join(map(json.dumps, [*labels, {"query": "unknown", "ids": ["gone"]}])), encoding="utf-8")
    few = ("--documents", "70", "--queries", judged, "--learning-rate", "1e-12", "--device", "cpu", "--json")
    labeled = cli("adapt", *where, index, "-o", tmp_path / "labeled", "--name", "labeled", *few)
    assert labeled.code == 1, labeled.err
    assert (
        "queries: 40 of 41 queries can be used, with 40 of 41 relevant documents; the others are not in" in labeled.err
    )
    assert json.loads(labeled.out)["queries"] == 40
