"""From a data set of a recipe to checked examples, before training starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.tabular import Problems, Table, read_table
from es_sbert.training.data.columns import Columns, assign_columns
from es_sbert.training.data.examples import Examples
from es_sbert.training.data.negatives import check_negatives
from es_sbert.training.data.shape import LabelKind, Shape
from es_sbert.training.recipe import DataSpec

_REMEDY = "Mend these rows or leave them out; `columns` in the recipe says which column is read as what."


def read_examples(spec: DataSpec, shape: Shape, data_folder: Path) -> Examples:
    """Read a data set of a recipe and check every row.

    Args:
        spec: The data set; a relative path counts from `data_folder`.
        shape: What its objective needs.
        data_folder: The data folder of the run.

    Returns:
        The examples, at least one. Scores are mapped linearly from the data's range to the objective's.

    Raises:
        RecipeInvalid: a role is unknown or has no column, or the range of scores is empty.
        SourceError: the file cannot be read, or rows have an empty side, an unknown class, a score that is no
            number or out of range, or a negative that is a right answer; with the file and the first such lines.
        UsageError: the library that reads the format is not installed.
    """
    name = spec.name or Path(spec.path).name
    unknown = sorted(set(spec.prompts) - set(shape.roles))
    if unknown:
        raise RecipeInvalid(
            f"{name}: there is no role {', '.join(unknown)} to put a prompt in front of",
            f"The roles of texts are: {', '.join(shape.roles)}.",
        )
    return read_shape(
        name,
        data_folder / spec.path,
        spec.columns,
        shape,
        score_range=spec.score_range,
        skip=spec.skip,
        limit=spec.limit,
    )


def read_shape(
    name: str,
    path: Path,
    columns: Mapping[str, str | tuple[str, ...]],
    shape: Shape,
    *,
    score_range: tuple[float, float] | None = None,
    skip: int = 0,
    limit: int | None = None,
) -> Examples:
    """Read the columns of a shape and check every row.

    Args:
        name: Of the data set, for messages.
        path: File or folder.
        columns: Role → column; several for the last role of a shape that repeats it.
        shape: What is needed.
        score_range: Lowest and highest gold score of the data; None: those of the shape, if it has any.
        skip: Leave out the first so many rows (they are read and checked).
        limit: Take only so many.

    Raises:
        RecipeInvalid, SourceError, UsageError: as for `read_examples`.
    """
    assigned = assign_columns(name, columns, shape)
    given = score_range or shape.score_range
    if given is not None and not given[0] < given[1]:
        raise RecipeInvalid(
            f"{name}: score_range {list(given)} is empty", "Give the lowest and the highest score, in this order."
        )
    table = read_table(path, assigned.all, limit=None if limit is None else skip + limit)
    problems = table.problems()
    texts = tuple(table.texts(column, problems) for column in assigned.texts)
    labels = _labels(table, assigned, shape, given, problems)
    problems.check(_REMEDY)
    if shape.label is LabelKind.NONE and "negative" in shape.roles:
        check_negatives(texts, table.lines, problems)
        problems.check("Leave these rows out, or give them other negatives.")
    examples = Examples(name=name, path=path, texts=texts, labels=labels, lines=table.lines).part(skip, limit)
    if not len(examples):
        raise SourceError(f"{path} has {len(texts[0])} examples, and skip: {skip} leaves none", "Lower skip.")
    return examples


def _labels(
    table: Table, columns: Columns, shape: Shape, given: tuple[float, float] | None, problems: Problems
) -> NDArray[np.float32] | NDArray[np.int64] | None:
    if columns.label is None:
        return None
    if shape.label is LabelKind.CLASS:
        return _classes(table, columns.label, shape.classes, problems)
    scores = table.floats(columns.label, problems)  # (rows,)
    if given is not None:
        low, high = given
        # A score that is no number is NaN here, noted already, and neither below nor above.
        for row in np.flatnonzero((scores < low) | (scores > high)):
            reason = f"{columns.label} is {scores[row]:g}, outside {low:g} to {high:g}"
            problems.add(int(table.lines[row]), f"{reason} (score_range in the recipe)")
        if shape.score_range is not None:
            bottom, top = shape.score_range
            scores = bottom + (scores - low) / (high - low) * (top - bottom)
    return scores.astype(np.float32)


def _classes(table: Table, column: str, classes: tuple[str, ...], problems: Problems) -> NDArray[np.int64]:
    """Numbers of the classes, *shape* ``(rows,)``; −1 where a label is none of them."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = np.array([numbers.get(_class_name(value), -1) for value in table.columns[column]], dtype=np.int64)
    for row in np.flatnonzero(found < 0):
        value = table.columns[column][row]
        problems.add(int(table.lines[row]), f"{column} is {value!r}, not one of {', '.join(classes)}")
    return found


def _class_name(value: object) -> str:
    # JSON, Parquet and datasets folders hold numbers where the classes are called 0, 1, 2; false and true are 0 and 1.
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, int) else ""
