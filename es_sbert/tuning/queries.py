"""Texts to search for, from a file."""

from __future__ import annotations

from pathlib import Path

from es_sbert.errors import SourceError


def read_queries(path: Path) -> list[str]:
    """One text a line, UTF-8; empty lines are left out.

    Raises:
        SourceError: the file cannot be read, is not text, or holds no query.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path and its permissions.") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text", "Write one query a line, in UTF-8.") from error
    queries = [line.strip() for line in lines if line.strip()]
    if not queries:
        raise SourceError(f"{path} holds no query", "Write one query a line.")
    return queries
