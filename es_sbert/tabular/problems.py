"""What is wrong with the rows of one file, gathered into one message."""

from __future__ import annotations

from pathlib import Path

from es_sbert.errors import SourceError

_SHOWN = 5


class Problems:
    """Bad rows of a file: the first few in full, the rest as a count, so that one run shows what to mend.

    Args:
        path: The file.
        unit: What rows are counted in: `line`, or `row` where the format has no lines.
    """

    def __init__(self, path: Path, unit: str = "line") -> None:
        self._path = path
        self._unit = unit
        self._found: list[tuple[int, str]] = []

    def add(self, number: int, reason: str) -> None:
        """Note one problem.

        Args:
            number: The line or row, from 1.
            reason: What is wrong with it.
        """
        self._found.append((number, reason))

    def check(self, remedy: str) -> None:
        """Pass if nothing was noted.

        Raises:
            SourceError: something was; in the order of the file.
        """
        if not self._found:
            return
        found = sorted(self._found, key=lambda problem: problem[0])
        lines = [f"{self._path}, {self._unit} {number}: {reason}" for number, reason in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"… and {len(found) - _SHOWN:,} more")
        raise SourceError("\n".join(lines), remedy)
