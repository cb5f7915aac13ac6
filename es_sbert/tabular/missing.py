"""Columns that a file should have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from es_sbert.errors import SourceError


def missing_columns(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Check that a file has the columns wanted.

    Args:
        path: The file.
        wanted: Columns asked for.
        names: Columns that it has.

    Raises:
        SourceError: one is missing; the message names those that there are.
    """
    missing = [column for column in dict.fromkeys(wanted) if column not in names]
    if missing:
        raise SourceError(
            f"{path} has no column {', '.join(missing)}", f"Name one of its columns: {', '.join(names) or 'none'}."
        )
