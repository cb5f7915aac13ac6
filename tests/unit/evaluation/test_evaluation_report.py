"""Reports as tables and JSON, and model cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import es_sbert
from es_sbert.errors import BundleInvalid, OutputError
from es_sbert.evaluation.evaluation_report import (
    EvaluationReport,
    ReportRow,
    TrainingRecord,
    markdown_tables,
    model_card,
    read_training_record,
    text_table,
    versions,
    write_card,
)
from es_sbert.evaluation.task_data import EvaluationTask

STS = EvaluationReport(
    EvaluationTask.STS,
    "m (int8)",
    (
        ReportRow("stsb-test", "all", 1379, "pairs", {"spearman_cosine": 85.3456, "pearson_cosine": 8.0}),
        ReportRow("s|t", "x", 7, "pairs", {"spearman_cosine": -3.0, "pearson_cosine": 0.0}),
    ),
    {"backend": "auto", "limit": None},
    {"es-sbert": "1.2"},
)
TRANSFER = EvaluationReport(
    EvaluationTask.TRANSFER,
    "m (int8)",
    (
        ReportRow("MR", "10 folds", 60, "examples", {"accuracy": 81.0}),
        ReportRow("MRPC", "test", 20, "examples", {"accuracy": 70.0, "f1": 60.0}),
    ),
    {},
    {"es-sbert": "1.2"},
)
RECORD = {
    "recipe": {"name": "tuned", "description": "A model for tests.", "seed": 7, "stages": [{"epochs": 4}]},
    "data": {"sts/train.tsv": "ab" * 32},
    "stages": [{"name": "stage", "examples": 5749, "steps": 1440, "start_dev": 80.5, "best_dev": 88.1234,
                "best_step": 1080, "seconds": 1.0, "examples_per_second": 2.0, "course": []},
               {"name": "second", "examples": 10, "steps": 2, "best_dev": None, "best_step": None}],
    "versions": {"torch": "2.9"},
}  # fmt: skip


def test_text_table() -> None:
    assert text_table(STS).splitlines() == [
        "sts: m (int8)",
        "data       part  pairs  ρ cosine  r cosine",
        "stsb-test  all   1,379     85.35      8.00",
        "s|t        x         7     -3.00      0.00",
    ]


def test_rows_with_different_figures_get_separate_tables() -> None:
    lines = text_table(TRANSFER).splitlines()
    assert [line.split()[0] for line in lines] == ["transfer:", "data", "MR", "data", "MRPC"]
    assert lines[3].split()[-2:] == ["accuracy", "f1"]
    assert markdown_tables(TRANSFER).count("| --- |") == 2


def test_thresholds_keep_four_digits() -> None:
    row = ReportRow("d", "all", 2, "pairs", {"f1": 80.0, "f1_threshold": 0.78934})
    assert text_table(EvaluationReport(EvaluationTask.DUPLICATES, "m", (row,))).splitlines()[-1].split() == [
        "d",
        "all",
        "2",
        "80.00",
        "0.7893",
    ]


def test_markdown_escapes_bars() -> None:
    assert markdown_tables(STS).splitlines() == [
        "| data | part | pairs | ρ cosine | r cosine |",
        "| --- | --- | ---: | ---: | ---: |",
        "| stsb-test | all | 1,379 | 85.35 | 8.00 |",
        "| s\\|t | x | 7 | -3.00 | 0.00 |",
    ]


def test_report_as_json() -> None:
    value = json.loads(STS.as_json())
    assert value["task"] == "sts"
    assert value["rows"][0]["figures"]["spearman_cosine"] == 85.3456
    assert value["settings"] == {"backend": "auto", "limit": None}
    assert b"\n" not in STS.as_json()


def test_figures_by_name() -> None:
    assert STS.figure("stsb-test", "spearman_cosine") == 85.3456
    assert STS.figure("s|t", "pearson_cosine", "x") == 0.0
    for data, name, part in (("other", "pearson_cosine", None), ("s|t", "f1", None), ("s|t", "pearson_cosine", "y")):
        with pytest.raises(KeyError):
            STS.figure(data, name, part)


def test_versions_of_installed_packages() -> None:
    found = versions()
    assert {"python", "es-sbert", "numpy", "scipy"} <= set(found)
    assert all(found.values())


@pytest.mark.usefixtures("without_metadata")
def test_versions_in_a_checkout_include_its_own() -> None:
    assert versions()["es-sbert"] == es_sbert.__version__


def test_model_card_has_metadata_and_training(tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(json.dumps(RECORD))
    card = model_card("tuned", [STS, TRANSFER], read_training_record(tmp_path))
    _, front, body = card.split("---\n", 2)
    settings = yaml.safe_load(front)
    assert settings["library_name"] == "sentence-transformers"
    assert settings["pipeline_tag"] == "sentence-similarity"
    (entry,) = settings["model-index"]
    assert [result["task"]["type"] for result in entry["results"]] == [
        "semantic-similarity",
        "semantic-similarity",
        "text-classification",
        "text-classification",
    ]
    assert entry["results"][0]["dataset"]["name"] == "stsb-test"
    assert entry["results"][1]["dataset"]["name"] == "s|t (x)"
    assert entry["results"][0]["metrics"][0] == {"type": "spearman_cosine", "name": "ρ cosine", "value": 85.3456}
    assert "# tuned\n\nA model for tests.\n" in body
    assert "Measured: m (int8) (backend auto)." in body
    assert "| stsb-test | all | 1,379 | 85.35 | 8.00 |" in body
    recipe = body.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(recipe) == RECORD["recipe"]
    assert "| stage | 5,749 | 1,440 | 80.50 | 88.12 | 1,080 |" in body
    assert "| second | 10 | 2 | – | – | – |" in body
    assert f"| sts/train.tsv | `{'ab' * 32}` |" in body
    assert "Trained with torch 2.9." in body
    assert card.endswith("Measured with es-sbert 1.2.\n")


def test_card_of_an_unevaluated_model_describes_training() -> None:
    card = model_card("tuned", (), TrainingRecord.model_validate(RECORD))
    _, front, body = card.split("---\n", 2)
    assert "model-index" not in yaml.safe_load(front)
    assert "## Results" not in body
    assert "| stage | 5,749 | 1,440 | 80.50 | 88.12 | 1,080 |" in body


def test_card_without_a_training_record(tmp_path: Path) -> None:
    assert read_training_record(tmp_path) is None
    card = model_card("m", [STS])
    assert "## Training" not in card
    assert "\n\n\n" not in card


def test_card_is_readable_by_huggingface_hub(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    write_card(tmp_path / "README.md", model_card("m", [STS, TRANSFER]))
    read = ModelCard.load(tmp_path / "README.md")
    assert read.data.library_name == "sentence-transformers"
    results = read.data.eval_results
    assert results is not None
    assert {result.dataset_name for result in results} == {"stsb-test", "s|t (x)", "MR (10 folds)", "MRPC (test)"}
    assert results[0].metric_value == 85.3456


@pytest.mark.parametrize("text", ["{", "[]", '{"data": {}}', '{"recipe": 1}', '{"recipe": {}, "stages": [{}]}'])
def test_broken_training_record_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(BundleInvalid, match=r"training\.json cannot be read"):
        read_training_record(tmp_path)


def test_unwritable_card_raises_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_card(tmp_path / "nowhere" / "README.md", "card")
