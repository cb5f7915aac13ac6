"""Training and dev data: read, and checked row by row before training starts. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.modules import PromptKind
from es_sbert.errors import RecipeInvalid, SourceError
from es_sbert.io.tables import RowErrors, Table, read_table
from es_sbert.training.recipe import DataSpec, DevSpec, MarginDistillationSpec, ObjectiveSpec, StageSpec


class LabelKind(StrEnum):
    """Kind of the label of an example."""

    NONE = "none"
    SCORE = "score"  # float: a similarity, or a teacher's margin
    CLASS = "class"  # integer: the number of a class
    VECTOR = "vector"  # a teacher's sentence vector


@dataclass(frozen=True)
class ExampleSchema:
    """The columns and labels that an objective needs.

    Attributes:
        roles: Names of the text columns, in the order of the objective.
        label: The kind of label that the objective expects.
        repeats_last: Whether the last role may be mapped to any number of columns, none included.
        score_range: For `LabelKind.SCORE`: the range to which gold scores are mapped, or None for unchanged scores.
        classes: For `LabelKind.CLASS`: the names of the classes, in the order of their numbers.
        distinct: Whether a text must not occur twice in a batch (in-batch negatives).
        taught: Whether a teacher model makes the labels, so the data has none.
    """

    roles: tuple[str, ...]
    label: LabelKind = LabelKind.NONE
    repeats_last: bool = False
    score_range: tuple[float, float] | None = None
    classes: tuple[str, ...] = ()
    distinct: bool = False
    taught: bool = False

    def without_negatives(self) -> ExampleSchema:
        """Return the schema without negatives, for data whose negatives are mined."""
        return replace(self, roles=tuple(role for role in self.roles if role != "negative"), repeats_last=False)


@dataclass(frozen=True)
class Examples:
    """One data set.

    Attributes:
        name: Name of the data set in the recipe.
        path: The file that it was read from.
        texts: One list for each text column of the objective, in the order of its roles, all of one length.
        labels: Scores ``(examples,)`` float32, classes ``(examples,)`` int64, vectors ``(examples, dimensions)``
            float32, or None.
        lines: ``(examples,)`` int64: the line (or, where the format has none, the row) of each example in its
            file, from 1.
    """

    name: str
    path: Path
    texts: tuple[list[str], ...]
    labels: NDArray[np.float32] | NDArray[np.int64] | None
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)


# Labels have a separate role; vectors come from a teacher, never from a file.
_LABEL_ROLES = {LabelKind.SCORE: "score", LabelKind.CLASS: "class"}


def assign_columns(
    name: str, columns: Mapping[str, str | tuple[str, ...]], shape: ExampleSchema
) -> tuple[list[str], str | None]:
    """Check a recipe's mapping of roles to columns against what an objective needs.

    Args:
        name: Name of the data set, for messages.
        columns: Role → column; several for the last role of a shape that repeats it.
        shape: Columns and labels that the objective needs.

    Returns:
        The columns of texts in the order of the objective's roles; the column of scores or classes, None if the data
        has none.

    Raises:
        RecipeInvalid: a role is unknown or lacks its column, or has several where one is needed.
    """
    label_role = None if shape.taught else _LABEL_ROLES.get(shape.label)
    roles = (*shape.roles, *([label_role] if label_role else []))
    optional = shape.roles[-1] if shape.repeats_last else None
    missing = [role for role in roles if role not in columns and role != optional]
    unknown = [role for role in columns if role not in roles]
    if missing or unknown:
        wrong = [f"no column for {', '.join(missing)}"] if missing else []
        wrong += [f"no such role as {', '.join(unknown)}"] if unknown else []
        needed = ", ".join(f"{role} (any number of columns)" if role == optional else role for role in roles)
        raise RecipeInvalid(f"{name}: {' and '.join(wrong)}", f"Its objective has these roles: {needed}.")
    several = [role for role, value in columns.items() if not isinstance(value, str) and role != optional]
    if several:
        raise RecipeInvalid(
            f"{name}: {', '.join(several)} has a list of columns", f"Set one column for {', '.join(several)}."
        )
    texts = [column for role in shape.roles for column in _as_tuple(columns.get(role, ()))]
    return texts, str(columns[label_role]) if label_role else None


def _as_tuple(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given


def check_negatives(texts: Sequence[Sequence[str]], lines: NDArray[np.int64], problems: RowErrors) -> None:
    """Reject false negatives: a negative must be neither the anchor nor a positive of the same anchor in any row.

    Texts that differ only in white space count as equal.

    Args:
        texts: Columns: anchors, positives, then any number of columns of negatives.
        lines: *Shape:* ``(rows,)``, for messages.
        problems: Collects the errors of the rows.
    """
    anchors, positives, *negatives = ([" ".join(text.split()) for text in column] for column in texts)
    positives_of: dict[tuple[str, str], int] = {}  # (anchor, positive) → its first line
    for line, pair in zip(lines.tolist(), zip(anchors, positives, strict=True), strict=True):
        positives_of.setdefault(pair, line)
    for column in negatives:
        for line, anchor, negative in zip(lines.tolist(), anchors, column, strict=True):
            if negative == anchor:
                problems.add(line, "the negative is the anchor itself")
            elif (first_line := positives_of.get((anchor, negative))) is not None:
                location = "" if first_line == line else f" of the same anchor in line {first_line}"
                problems.add(line, f"the negative is the positive{location}")


_ROWS_REMEDY = "Correct or remove these rows, or assign other columns in the recipe."


def read_examples(
    spec: DataSpec, shape: ExampleSchema, data_folder: Path, *, trained_roles: Sequence[str] | None = None
) -> Examples:
    """Read a data set of a recipe and check every row.

    Args:
        spec: The data set; a relative path counts from `data_folder`.
        shape: Columns and labels that its objective needs.
        data_folder: The data folder of the run.
        trained_roles: Roles for which the data may set prompts, if the texts of the objective are derived from other
            columns; by default those of `shape`.

    Returns:
        The examples, at least one. Scores are mapped linearly from the data's range to the objective's.

    Raises:
        RecipeInvalid: a role is unknown or has no column, or the range of scores is empty.
        SourceError: the file cannot be read, or rows have an empty side, an unknown class, a score that is not a number
            or out of range, or a false negative; the message names the file and the first such lines.
        UsageError: the library that reads the format is not installed.
    """
    name = spec.name or Path(spec.path).name
    roles = shape.roles if trained_roles is None else trained_roles
    unknown = sorted(set(spec.prompts) - set(roles))
    if unknown:
        raise RecipeInvalid(
            f"{name}: prompts for unknown roles: {', '.join(unknown)}",
            f"The roles of texts are: {', '.join(roles)}.",
        )
    return _read_rows(name, spec, shape, data_folder, spec.score_range or shape.score_range)


# The lowest and the highest score.
_Range = tuple[float, float]


def _read_rows(
    name: str, spec: DataSpec | DevSpec, shape: ExampleSchema, data_folder: Path, score_range: _Range | None = None
) -> Examples:
    """Read the columns of a shape and check every row, including rows that `skip` leaves out.

    `score_range` is the lowest and the highest gold score of the data, if that is known.
    """
    text_columns, label_column = assign_columns(name, spec.columns, shape)
    if score_range is not None and not score_range[0] < score_range[1]:
        raise RecipeInvalid(
            f"{name}: score_range {list(score_range)} is empty", "Set the lowest and the highest score, in this order."
        )
    path = data_folder / spec.path
    columns = dict.fromkeys([*text_columns, *([label_column] if label_column else [])])  # each is read once
    table = read_table(path, list(columns), limit=None if spec.limit is None else spec.skip + spec.limit)
    problems = table.problems()
    texts = tuple(table.texts(column, problems) for column in text_columns)
    labels = None if label_column is None else _labels(table, label_column, shape, score_range, problems)
    problems.check(_ROWS_REMEDY)
    if shape.label is LabelKind.NONE and "negative" in shape.roles:
        check_negatives(texts, table.lines, problems)
        problems.check("Remove these rows, or use other negatives.")
    kept = slice(spec.skip, None)  # the table ends with the last one
    labels = None if labels is None else labels[kept]
    examples = Examples(name, path, tuple(column[kept] for column in texts), labels, table.lines[kept])
    if not len(examples):
        raise SourceError(f"{path} has {len(texts[0])} examples, and skip: {spec.skip} leaves none", "Lower skip.")
    return examples


def _labels(
    table: Table, column: str, shape: ExampleSchema, score_range: _Range | None, problems: RowErrors
) -> NDArray[np.float32] | NDArray[np.int64]:
    if shape.label is LabelKind.CLASS:
        return _classes(table, column, shape.classes, problems)
    scores = table.floats(column, problems)  # (rows,)
    if score_range is not None:
        low, high = score_range
        # An invalid score is NaN here and was reported already.
        for row in np.flatnonzero((scores < low) | (scores > high)):
            reason = f"{column} is {scores[row]:g}, outside {low:g} to {high:g}"
            problems.add(int(table.lines[row]), f"{reason} (score_range in the recipe)")
        if shape.score_range is not None:
            bottom, top = shape.score_range
            scores = bottom + (scores - low) / (high - low) * (top - bottom)
    return scores.astype(np.float32)


def _classes(table: Table, column: str, classes: tuple[str, ...], problems: RowErrors) -> NDArray[np.int64]:
    """Convert labels to class numbers, *shape* ``(rows,)``; −1 for labels that are not a class."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = np.array([numbers.get(_class_name(value), -1) for value in table.columns[column]], dtype=np.int64)
    for row in np.flatnonzero(found < 0):
        value = table.columns[column][row]
        problems.add(int(table.lines[row]), f"{column} is {value!r}, not one of {', '.join(classes)}")
    return found


def _class_name(value: object) -> str:
    # JSON and Parquet hold numbers where the classes are called 0, 1, 2; false and true are 0 and 1.
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, int) else ""


_DEV_SCHEMAS = {
    "sts": ExampleSchema(("sentence1", "sentence2"), LabelKind.SCORE),
    "triplet": ExampleSchema(("anchor", "positive", "negative")),
    "pairs": ExampleSchema(("anchor", "positive")),
    "duplicates": ExampleSchema(("sentence1", "sentence2"), LabelKind.CLASS, classes=("0", "1")),
    "vectors": ExampleSchema(("text",)),
}


@dataclass(frozen=True)
class DevData:
    """Texts and gold labels of a dev set.

    Attributes:
        task: The dev task.
        texts: One list for each role of the task, all of one length.
        gold: Scores (`sts`, float32) or classes (`duplicates`, int64) of *shape* ``(examples,)``; vectors of the
            teacher (`vectors`, float32) of *shape* ``(examples, dimensions)``, None before it has embedded the texts;
            None for the tasks whose columns define the right text.
        kinds: The model's prompt for the texts of each role; empty for none.
    """

    task: Literal["sts", "triplet", "pairs", "duplicates", "vectors"]
    texts: tuple[list[str], ...]
    gold: NDArray[np.float32] | NDArray[np.int64] | None
    kinds: tuple[PromptKind | None, ...] = ()

    def __len__(self) -> int:
        return len(self.texts[0])


def read_dev(spec: DevSpec, data_folder: Path) -> DevData:
    """Read a stage's dev set and check every row.

    Args:
        spec: The dev set; a relative path counts from `data_folder`.
        data_folder: The data folder of the run.

    Raises:
        RecipeInvalid: a role of the task is unknown or has no column.
        SourceError: the file or a row is bad, as for training data, or all gold labels or positives are the same.
        UsageError: the library that reads the format is not installed.
    """
    path = data_folder / spec.path
    examples = _read_rows(f"dev ({path.name})", spec, _DEV_SCHEMAS[spec.task], data_folder)
    gold = examples.labels
    if gold is not None and np.all(gold == gold[0]):
        # Rank correlation and precision are then undefined, so no checkpoint would be the best.
        raise SourceError(
            f"{path}: all {len(examples)} gold labels are {gold[0]:g}, so every checkpoint would have the same score",
            "Use another dev set, or raise its limit.",
        )
    if spec.task == "pairs" and len(set(examples.texts[1])) == 1:
        raise SourceError(
            f"{path}: all {len(examples)} positives are the same text, which therefore always ranks first",
            "Use another dev set, or raise its limit.",
        )
    kinds = tuple(map(spec.prompts.get, _DEV_SCHEMAS[spec.task].roles)) if spec.prompts else ()
    return DevData(spec.task, examples.texts, gold, kinds)


@dataclass(frozen=True)
class StageData:
    """Training and dev data of a stage.

    Attributes:
        examples: The data sets.
        objectives: The objective of each.
        dev: The dev set, if there is one.
    """

    examples: tuple[Examples, ...]
    objectives: tuple[ObjectiveSpec, ...]
    dev: DevData | None


def read_stage(stage: StageSpec, data_folder: Path, schemas: Sequence[ExampleSchema]) -> StageData:
    """Read and check all data of a stage.

    Args:
        stage: The stage.
        data_folder: The data folder of the run.
        schemas: Columns and labels that the objective of each data set needs.

    Raises:
        SourceError: a file or a row is invalid; the message names file and line.
        RecipeInvalid: roles or names do not fit the objective.
    """
    examples = [
        read_examples(
            data, schema.without_negatives() if data.hard_negatives else schema, data_folder, trained_roles=schema.roles
        )
        for data, schema in zip(stage.data, schemas, strict=True)
    ]
    names = [dataset.name for dataset in examples]
    if len(set(names)) != len(names):
        raise RecipeInvalid(
            f"stage {stage.name}: data sets need different names, not {', '.join(names)}", "Set a name for each."
        )
    objectives = tuple(map(stage.objective_of, stage.data))
    for objective in dict.fromkeys(objectives):
        if not isinstance(objective, MarginDistillationSpec):  # a constant margin is a valid target
            _check_labels_differ([each for each, its in zip(examples, objectives, strict=True) if its == objective])
    return StageData(tuple(examples), objectives, read_dev(stage.dev, data_folder) if stage.dev else None)


def _check_labels_differ(datasets: Sequence[Examples]) -> None:
    """Refuse data sets of one objective whose labels are all the same: a constant would be the best model.

    Raises:
        SourceError: all labels are the same.
    """
    labels = [dataset.labels for dataset in datasets if dataset.labels is not None]
    if labels and len(np.unique(np.concatenate(labels))) == 1:
        raise SourceError(
            f"all labels of {', '.join(str(dataset.path) for dataset in datasets)} are the same: there is nothing to "
            "learn",
            "Add examples with other labels (a larger limit). For pairs that are all positives use the objective "
            "in-batch.",
        )
