"""Read judgement lists, which say how relevant documents of an index are to queries.

| file | content |
|---|---|
| `.csv`, `.tsv`, `.jsonl` (also .gz, .zst), `.parquet` | one judgement per row: query, document, grade |
| `.jsonl` (also .gz, .zst), `.parquet` | one query per row: query, ids of relevant documents |

Columns have the names of `_ALIASES`, in upper or lower case. Quepid exports `query,docid,rating` or
`Query Text,Doc ID,Rating`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from es_sbert.arguments import as_texts, wrong_argument
from es_sbert.errors import SourceError, about_setting
from es_sbert.evaluation.beir_files import RetrievalCollection, sample_rows
from es_sbert.io.tables import MissingColumns, Table, read_table

# Role → possible names of its column, in lower case with underscores; the first that a file has is used.
_ALIASES = {
    "query": ("query", "query_text"),
    "document": ("document", "document_id", "docid", "doc_id", "_id", "id"),
    "grade": ("grade", "rating", "relevance", "score", "label"),
}
_REMEDY = (
    "Write one judgement per row, with the columns query, document (its _id) and grade (a whole number); or one query "
    'per row with the ids of its relevant documents: {"query": "a text", "ids": ["1", …]}.'
)
_RANK_EVAL_REMEDY = (
    "Name JSON Lines .jsonl. Of a body with the text in params.query, make them with: "
    "`jq -c '.requests[] | .params.query as $query | .ratings[] | {query: $query, document: ._id, grade: .rating}'`"
)

# Number of the row, query, document, grade; nothing is checked yet.
_Judgement = tuple[int, Any, Any, Any]


@dataclass(frozen=True)
class LabeledQuery:
    """A text to search for, and its relevant documents.

    Usage:
        ```python
        queries = [LabeledQuery("storms", ("doc2",))]
        print(calibrate_index("docs", "http://localhost:9200", queries=queries).rows)
        ```

    Attributes:
        text: The query.
        ids: Ids of the documents that are relevant to it, at least one, each once.
    """

    text: str
    ids: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise wrong_argument("text", self.text, "a str")
        as_texts(self.ids, "ids")  # ("doc2") is a str


def labeled_queries(name: str, given: Any) -> Any:
    """Return the labeled queries of an argument, a file or a list.

    Raises:
        See `read_judgements`.
    """
    if not isinstance(given, str | Path):
        return given
    with about_setting(name, given, SourceError):
        return read_labeled_queries(Path(given))


def read_labeled_queries(path: Path) -> list[LabeledQuery]:
    """Read queries with their relevant documents: a query per row, by `query` and `ids`, or else a judgement list.

    Raises:
        See `read_judgements`.
    """
    with suppress(MissingColumns):  # then it is a judgement list
        return _listed_queries(_read_table(path, ["query", "ids"]))
    judged = read_judgements(path).judgements.items()
    return [LabeledQuery(query, tuple(id for id, grade in grades.items() if grade > 0)) for query, grades in judged]


def read_judgements(path: Path, *, limit: int | None = None) -> RetrievalCollection:
    """Read a judgement list as a collection without documents; a query is its own id.

    Rows without a grade are not judged. Queries without a relevant document (a grade above 0) are left out.

    Args:
        path: The file.
        limit: Maximum number of queries, drawn with a fixed seed.

    Raises:
        SourceError: the file is missing or invalid (with its line), or no query has a relevant document.
        UsageError: the library that reads the format is not installed.
    """
    table = _read_columns(path)
    problems = table.problems()
    found: dict[str, dict[str, int]] = {}
    for number, query, document, grade in _table_rows(table):
        reason = _add_judgement(found, query, document, grade)
        if reason is not None:
            problems.add(number, reason)
    problems.check(_REMEDY)
    judged = [query for query, grades in found.items() if any(grade > 0 for grade in grades.values())]
    if not judged:
        raise SourceError(f"{path} has no relevant document", "Grade relevant documents above 0.")
    kept = [judged[row] for row in sample_rows(len(judged), limit)]
    return RetrievalCollection(
        path.name.partition(".")[0],
        documents={},
        queries={query: query for query in kept},
        judgements={query: found[query] for query in kept},
    )


def _read_columns(path: Path) -> Table:
    """Read the table, with the roles as names of its columns, or with the columns `query` and `ids`."""
    try:
        return _read_table(path, list(_ALIASES))
    except MissingColumns as error:
        if {"query", "ids"}.issubset(error.names):
            return _read_table(path, ["query", "ids"])
        names = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in reversed(error.names)}
        columns = {
            role: names[alias] for role, aliases in _ALIASES.items() for alias in reversed(aliases) if alias in names
        }
        missing = [role for role in _ALIASES if role not in columns]
        if missing:
            raise SourceError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(error.names) or 'none'}", _REMEDY
            ) from None
        table = _read_table(path, list(columns.values()))
        return Table(path, {role: table.columns[name] for role, name in columns.items()}, table.lines, table.unit)


def _read_table(path: Path, columns: list[str]) -> Table:
    if path.suffix.lower() == ".json":
        raise SourceError(f"{path} is not a table; bodies of _rank_eval are no longer read", _RANK_EVAL_REMEDY)
    # `read_table` would explain the data folder, which does not apply to judgements.
    if not path.exists():
        raise SourceError(f"{path} does not exist", "Check the path.")
    return read_table(path, columns)


def _table_rows(table: Table) -> Iterator[_Judgement]:
    if "ids" in table.columns:
        for number, query in zip(table.lines.tolist(), _listed_queries(table), strict=True):
            for document in query.ids:
                yield number, query.text, document, 1
        return
    for row in zip(table.lines.tolist(), *(table.columns[role] for role in _ALIASES), strict=True):
        if row[3] not in (None, ""):
            yield row


def _listed_queries(table: Table) -> list[LabeledQuery]:
    """Return the queries of a table with the columns `query` and `ids`, one of each row."""
    problems = table.problems()
    texts, lists = table.texts("query", problems), table.columns["ids"]
    for number, ids in zip(table.lines.tolist(), lists, strict=True):
        reason = _ids_problem(ids)
        if reason is not None:
            problems.add(number, reason)
    problems.check(_REMEDY)
    return [LabeledQuery(text, tuple(dict.fromkeys(map(str, ids)))) for text, ids in zip(texts, lists, strict=True)]


def _ids_problem(ids: object) -> str | None:
    if ids is None:
        return "ids is missing"
    if not isinstance(ids, list):
        return "ids is not a list of document ids"
    wrong = [id for id in ids if not _is_id(id)]
    return "ids is empty" if not ids else f"ids holds {wrong[0]!r}, which is not a document id" if wrong else None


def _is_id(value: object) -> bool:
    # JSON may hold numbers as ids, which engines convert to strings.
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _add_judgement(found: dict[str, dict[str, int]], query: Any, document: Any, grade: Any) -> str | None:
    """Add one judgement; return the problem with it, if there is one."""
    if not isinstance(query, str) or not query.strip():
        return f"query is not a single text: {query!r}"
    if not _is_id(document):
        return f"document is not an id: {document!r}"
    number = _whole_number(grade)
    if number is None:
        return f"grade is not a whole number: {grade!r}"
    given = found.setdefault(query.strip(), {}).setdefault(str(document), number)
    return None if given == number else f"{document!r} already has the grade {given} for {query!r}"


def _whole_number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except ValueError:  # the caller refuses the line
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None
