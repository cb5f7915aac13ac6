"""Columns that a file should have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from es_sbert.errors import SourceError


class MissingColumns(SourceError):
    """A file lacks columns.

    Attributes:
        path: The file.
        missing: Those asked for that it has not.
        names: Those that it has.
    """

    def __init__(self, path: Path, missing: Sequence[str], names: Sequence[str]) -> None:
        super().__init__(
            f"{path} has no column {', '.join(missing)}", f"Name one of its columns: {', '.join(names) or 'none'}."
        )
        self.path = path
        self.missing = missing
        self.names = names

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.missing, self.names)


def check_columns(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Check that a file has the columns wanted.

    Args:
        path: The file.
        wanted: Columns asked for.
        names: Columns that it has.

    Raises:
        MissingColumns: one is missing; the message names those that there are.
    """
    missing = [column for column in dict.fromkeys(wanted) if column not in names]
    if missing:
        raise MissingColumns(path, missing, names)
