"""Queries from a file: texts alone, or texts with the documents that should be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from es_sbert.errors import SourceError
from es_sbert.tabular import read_table


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


@dataclass(frozen=True)
class LabelledQuery:
    """A text to search for, and what should be found.

    Attributes:
        text: The query.
        ids: Ids of the documents that are relevant to it, at least one, each once.
    """

    text: str
    ids: tuple[str, ...]


_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_LABELLED = 'Write one object a line: {"query": "a text", "ids": ["id of a relevant document", …]}.'


def read_labelled_queries(path: Path) -> list[LabelledQuery]:
    """Read `{"query": …, "ids": […]}` from JSON Lines, also compressed; other keys are ignored.

    Raises:
        SourceError: the file is missing or of another format, holds no query, or a line is not as it should be.
    """
    if not path.is_file():
        raise SourceError(f"{path} does not exist or is no file", "Check the path.")
    if not path.name.lower().endswith(_JSONL):
        raise SourceError(f"{path} is not named {', '.join(_JSONL)}", _LABELLED)
    table = read_table(path, ["query", "ids"])
    problems = table.problems()
    texts = table.texts("query", problems)
    queries = []
    for text, ids, line in zip(texts, table.columns["ids"], table.lines.tolist(), strict=True):
        reason = _ids_problem(ids)
        if reason is not None:
            problems.add(line, reason)
            continue
        queries.append(LabelledQuery(text, tuple(dict.fromkeys(map(str, ids)))))
    problems.check(_LABELLED)
    return queries


def _ids_problem(ids: object) -> str | None:
    """What is wrong with the ids of a query. Numbers are taken for the strings that engines make of them."""
    if ids is None:
        return "ids is missing"
    if not isinstance(ids, list):
        return "ids is not a list of document ids"
    if not ids:
        return "ids is empty"
    wrong = next((id for id in ids if isinstance(id, bool) or not isinstance(id, str | int) or id == ""), None)
    if wrong is not None or None in ids:
        return f"ids holds {wrong!r}, which is not a document id"
    return None
