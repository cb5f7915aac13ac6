"""What a run needs before it begins: every file read and checked, every model found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from es_sbert.bundle.resolve import resolve_model
from es_sbert.errors import ModelNotFound, RecipeInvalid, SourceError
from es_sbert.exporters.check import read_gold_pairs
from es_sbert.training.data.dev import DevData, read_dev
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.read import read_examples
from es_sbert.training.objectives.build import objective_shape
from es_sbert.training.objectives.settings import MarginDistillation
from es_sbert.training.recipe import Recipe, Stage
from es_sbert.training.stage import StageData


def read_stages(recipe: Recipe, data_folder: Path) -> list[StageData]:
    """Read and check every file that a run will need, the gold pairs of its export too.

    Raises:
        SourceError: a file or a row is bad; with file and line.
        RecipeInvalid: roles or names that do not fit the objective.
    """
    if sts := gold_file(recipe, data_folder):
        read_gold_pairs(sts)  # the export reads them again: after hours of training it is late to find them missing
    return [_read_stage(stage, data_folder) for stage in recipe.stages]


def read_test(recipe: Recipe, data_folder: Path) -> DevData | None:
    """Read and check the recipe's test set, if it has one.

    Raises:
        SourceError, RecipeInvalid: as for dev sets.
    """
    return read_dev(recipe.test, data_folder) if recipe.test else None


def find_models(recipe: Recipe, *, all_needed: bool = True) -> dict[str, Path]:
    """The models that a run starts from, or learns from; hub ids are downloaded.

    Args:
        recipe: The run's recipe.
        all_needed: Whether each must be there. A run that goes on may need none of them any more.

    Returns:
        Name in the recipe → folder; those that are not there are left out.

    Raises:
        ModelNotFound: one is not to be found, and all are needed.
    """
    stated = [(stage.objective_of(data), data.neighbours) for stage in recipe.stages for data in stage.data]
    teachers = {getattr(objective, "teacher", None) for objective, _ in stated}
    finders = {neighbours.model for _, neighbours in stated if neighbours is not None}
    folders = {}
    for name in sorted({recipe.model.base} | finders | {name for name in teachers if name is not None}):
        try:
            folders[name] = resolve_model(name)
        except ModelNotFound:
            if all_needed:
                raise
    return folders


def gold_file(recipe: Recipe, data_folder: Path) -> Path | None:
    """The gold pairs that the parity gate of the export measures by, where the recipe names any."""
    return data_folder / recipe.export.sts if recipe.export.sts else None


def _read_stage(stage: Stage, data_folder: Path) -> StageData:
    """Read and check all data of a stage.

    Raises:
        SourceError: a file or a row is bad; with file and line.
        RecipeInvalid: roles or names that do not fit the objective.
    """
    objectives = tuple(map(stage.objective_of, stage.data))
    examples = [
        read_examples(data, objective_shape(objective), data_folder)
        for data, objective in zip(stage.data, objectives, strict=True)
    ]
    names = [each.name for each in examples]
    if len(set(names)) != len(names):
        raise RecipeInvalid(
            f"stage {stage.name}: data sets need different names, not {', '.join(names)}", "Give each a name."
        )
    for objective in dict.fromkeys(objectives):
        if not isinstance(objective, MarginDistillation):  # one margin for all is an aim like any other
            _check_labels([each for each, its in zip(examples, objectives, strict=True) if its == objective])
    return StageData(tuple(examples), objectives, read_dev(stage.dev, data_folder) if stage.dev else None)


def _check_labels(examples: Sequence[Examples]) -> None:
    """Refuse labels that are all the same: the best answer to them is one that does not look at the texts.

    Args:
        examples: Data sets of one objective.

    Raises:
        SourceError: there is nothing to tell apart.
    """
    labels = [each.labels for each in examples if each.labels is not None]
    found = np.unique(np.concatenate(labels)) if labels else None
    if found is not None and len(found) == 1:
        raise SourceError(
            f"all labels of {', '.join(str(each.path) for each in examples)} are the same: there is nothing to learn",
            "Add examples with other labels (a larger limit); for pairs that all belong together take the objective "
            "in-batch.",
        )
