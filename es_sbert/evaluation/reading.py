"""What the readers of data sets share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError
from es_sbert.tabular import MissingColumns, Table, read_table

_SEED = 0


def sample(count: int, limit: int | None) -> NDArray[np.int64]:
    """Rows to keep, rising, *shape* ``(rows,)``: all of `count`, or `limit` of them drawn by a fixed seed.

    Drawn and not cut off at the end: many files are sorted by label or topic.
    """
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(_SEED).choice(count, size=limit, replace=False)
    return np.sort(drawn).astype(np.int64)


def read_roles(path: Path, roles: Sequence[str], columns: Mapping[str, str]) -> Table:
    """Read a file's columns by what they are for.

    Args:
        path: As for `read_table`.
        roles: What is needed: the names that columns have by default.
        columns: Role → column, where it has another name.

    Returns:
        The table with the roles as names of its columns.

    Raises:
        SourceError: as `read_table`.
    """
    names = {role: columns.get(role, role) for role in roles}
    try:
        table = read_table(path, list(names.values()))
    except MissingColumns as error:
        missing = next(role for role, name in names.items() if name == error.missing[0])
        raise SourceError(
            error.message, f"Name the column to be read as {missing}: --columns {missing}=COLUMN, one of "
            f"{', '.join(error.names) or 'none'}.",
        ) from None  # fmt: skip
    return replace(table, columns={role: table.columns[name] for role, name in names.items()})


def has_roles(path: Path, roles: Sequence[str], columns: Mapping[str, str]) -> bool:
    """Whether a file can be read and has all of these columns in at least one row.

    Args:
        roles, columns: As for `read_roles`.
    """
    try:
        read_roles(path, roles, columns)
    except SourceError:
        # Where it is the file that is wrong and not the column, the read that follows says so.
        return False
    return True


def check_labels(table: Table, column: str, allowed: Sequence[str]) -> None:
    """Refuse any other label.

    Raises:
        SourceError: with the lines.
    """
    problems = table.problems()
    for value, line in zip(table.columns[column], table.lines.tolist(), strict=True):
        if isinstance(value, bool) or str(value) not in allowed:
            problems.add(line, f"{column} is {value!r}")
    problems.check(f"Use {', '.join(allowed)}.")


def texts_at(table: Table, column: str, rows: NDArray[np.int64]) -> list[str]:
    """Some rows of a column of texts.

    Raises:
        SourceError: a row of the file, kept or not, has no text.
    """
    texts = table.texts(column)
    return [texts[row] for row in rows]
