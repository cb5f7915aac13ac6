"""The model card of a trained model."""

from __future__ import annotations

from pathlib import Path

import yaml
from huggingface_hub import ModelCard

from es_sbert.training.training_run import model_card

RECORD = {
    "recipe": {"name": "tuned", "description": "A model for tests.", "seed": 7, "stages": [{"epochs": 4}]},
    "data": {"sts/train.tsv": "ab" * 32},
    "stages": [{"name": "stage", "examples": 5749, "steps": 1440, "start_dev": 80.5, "best_dev": 88.1234,
                "best_step": 1080, "seconds": 1.0, "examples_per_second": 2.0, "course": []},
               {"name": "second", "examples": 10, "steps": 2, "start_dev": None, "best_dev": None, "best_step": None}],
    "versions": {"torch": "2.9"},
}  # fmt: skip


def test_card_describes_the_training() -> None:
    _, front, body = model_card("tuned", RECORD).split("---\n", 2)
    settings = yaml.safe_load(front)
    assert settings["library_name"] == "sentence-transformers"
    assert settings["pipeline_tag"] == "sentence-similarity"
    assert "# tuned\n\nA model for tests.\n" in body
    training = yaml.safe_load(body.split("```yaml\n")[1].split("```")[0])
    assert "course" not in training["stages"][0]
    assert training | {"stages": None} == RECORD | {"stages": None}
    assert [stage["best_dev"] for stage in training["stages"]] == [88.1234, None]
    assert "\n\n\n" not in body


def test_card_is_readable_by_huggingface_hub(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(model_card("tuned", RECORD))
    assert ModelCard.load(tmp_path / "README.md").data.library_name == "sentence-transformers"
