"""Write the model card of a trained model: its metadata, recipe, data and scores, as Markdown.

The front matter follows https://huggingface.co/docs/hub/model-cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

_ABOUT = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction"],
}


def model_card(name: str, record: Mapping[str, Any]) -> str:
    """Format a model card.

    Args:
        name: The model's name.
        record: The training record: recipe, data, stages, test, versions.
    """
    recipe, test = record["recipe"], record["test"]
    stages = [
        (
            stage["name"],
            f"{stage['examples']:,}",
            f"{stage['steps']:,}",
            _score(stage["start_dev"]),
            _score(stage["best_dev"]),
            "–" if stage["best_step"] is None else f"{stage['best_step']:,}",
        )
        for stage in record["stages"]
    ]
    sections = [f"---\n{_yaml(_ABOUT)}---", f"# {name}", recipe.get("description", "")]
    sections.append(f"## Training\nTrained by `es-sbert train` with this recipe:\n\n```yaml\n{_yaml(recipe)}```")
    sections.append(
        _table(("stage", "examples", "steps", "dev score at the start", "best dev score", "at step"), stages)
    )
    if test is not None:
        start = "" if test["start"] is None else f"{test['start']:.2f} before the training, "
        sections.append(f"{test['name']}: {start}{test['trained']:.2f} after it.")
    data = [(file, f"`{sha256}`") for file, sha256 in record["data"].items()]
    sections.append("### Training data\n" + _table(("file", "SHA-256"), data))
    versions = (f"{package} {number}" for package, number in record["versions"].items())
    sections.append(f"Trained with {', '.join(versions)}.")
    return "\n\n".join(filter(None, sections)) + "\n"


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text


def _score(score: float | None) -> str:
    return "–" if score is None else f"{score:.2f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
