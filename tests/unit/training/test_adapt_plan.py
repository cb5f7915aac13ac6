"""The recipe of an adaptation, and the fields that are looked at."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import CheckpointInvalid, UsageError
from es_sbert.evaluation.judgement_files import LabeledQuery
from es_sbert.settings import AdaptSettings
from es_sbert.training.adapt import Adaptation
from es_sbert.training.adapt_plan import AdaptInputs, AdaptPlan, FieldChoice, training_recipe
from es_sbert.training.run_folder import hash_model
from tests.raised import raises, raises_as_recorded
from tests.unit.checkpoints import write_checkpoint


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ({}, {}),
        (
            {"query": "query: ", "passage": "passage: "},
            {"anchor": "query", "positive": "passage", "negative": "passage"},
        ),
        # Searches and loads take the first name that there is, like sentence-transformers, even if its prompt is empty.
        ({"query": "query: ", "document": "", "passage": "passage: "}, {"anchor": "query"}),
    ],
)
def test_training_uses_the_prompts_of_search(tmp_path: Path, prompts: dict[str, str], expected: dict[str, str]) -> None:
    model = write_checkpoint(tmp_path / "model", hidden=16, heads=2, layers=1)
    # sentence-transformers adds empty prompts for queries and documents to those that it is given.
    (model / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    plan = AdaptPlan(str(model), "model", "hash", FieldChoice("title", ("body",)), "{body}")
    (stage,) = training_recipe(AdaptSettings(index="docs", name="docs-tuned", negatives=2), plan).stages
    assert stage.data[0].prompts == expected
    searched = read_sentence_model(model)
    trained = {role: prompts.get(expected.get(role, ""), "") for role in ("anchor", "positive", "negative")}
    document = searched.prompt("document")
    assert trained == {"anchor": searched.prompt("query"), "positive": document, "negative": document}
    assert stage.dev is not None
    assert stage.dev.prompts == {"anchor": "query", "positive": "document"}
    assert stage.data[0].columns == {"anchor": "query", "positive": "text", "negative": ("negative1", "negative2")}


def test_run_is_not_resumed_with_other_queries_nor_begun_twice(tmp_path: Path) -> None:
    one, other = [LabeledQuery("a", ("1",))], [LabeledQuery("a", ("2",))]
    inputs = [AdaptInputs(), AdaptInputs([]), AdaptInputs(one), AdaptInputs(other), AdaptInputs(None, one)]
    assert len({each.digest() for each in inputs}) == len(inputs)
    with raises(CheckpointInvalid, "resume"):
        adaptation(tmp_path).begin(resume=True)
    adaptation(tmp_path).begin(resume=False)
    with raises(UsageError, "output"):
        adaptation(tmp_path).begin(resume=False)
    with raises_as_recorded(CheckpointInvalid):
        adaptation(tmp_path, AdaptInputs(one)).begin(resume=True)


def adaptation(folder: Path, inputs: AdaptInputs | None = None) -> Adaptation:
    """A run that asks no engine."""
    settings, options = AdaptSettings(index="docs", name="docs-tuned"), {"device": "cpu", "threads": None}
    return Adaptation(Mock(), settings, inputs or AdaptInputs(), folder, **options, report=print, retrying=Mock())


def test_resumed_run_uses_its_plan(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", hidden=16, heads=2, layers=1)
    plan = AdaptPlan(str(model), "model", hash_model(model), FieldChoice("title", ("body",)), "{body}")
    run = adaptation(tmp_path / "run")
    run.work.mkdir(parents=True)
    (run.work / "plan.json").write_text(json.dumps(asdict(plan)))
    assert run.plan(Mock()) == plan
