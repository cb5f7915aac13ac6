"""Read judgement lists, which say how relevant documents of an index are to queries.

| file | content |
|---|---|
| `.csv`, `.tsv`, `.jsonl` (also .gz, .zst), `.parquet` | one judgement per row: query, document, grade |
| `.jsonl` (also .gz, .zst), `.parquet` | one query per row (see `index calibrate`): query, ids of relevant documents |
| `.json` | the body of Elasticsearch's and OpenSearch's `_rank_eval`: `requests` with `ratings` |

Columns have the names of `_ALIASES`, in upper or lower case. Quepid exports `query,docid,rating` or
`Query Text,Doc ID,Rating`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from es_sbert.errors import SourceError
from es_sbert.evaluation.task_data import RetrievalCollection, sample_rows
from es_sbert.io.tables import MissingColumns, RowErrors, Table, read_table

_ROLES = ("query", "document", "grade")
# Role → possible names of its column, in lower case with underscores; the first that a file has is used.
_ALIASES = {
    "query": ("query", "query_text"),
    "document": ("document", "document_id", "docid", "doc_id", "_id", "id"),
    "grade": ("grade", "rating", "relevance", "score", "label"),
}
_IDS_REMEDY = 'Write one query per row with the ids of its relevant documents: {"query": "a text", "ids": ["1", …]}.'
_REMEDY = "Write one judgement per row, with the columns query, document (its _id) and grade (a whole number)."

Judgements = dict[str, dict[str, int]]  # text of the query → id of the document → grade


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
    judgements = _read_rank_eval(path) if path.suffix.lower() == ".json" else _read_rows(path)
    judged = [query for query, grades in judgements.items() if any(grade > 0 for grade in grades.values())]
    if not judged:
        raise SourceError(f"{path} has no relevant document", "Grade relevant documents above 0.")
    kept = [judged[row] for row in sample_rows(len(judged), limit)]
    return RetrievalCollection(
        path.name.partition(".")[0],
        documents={},
        queries={query: query for query in kept},
        judgements={query: judgements[query] for query in kept},
    )


def _read_rows(path: Path) -> Judgements:
    table = _read_columns(path)
    if "ids" in table.columns:
        return _read_ids(table)
    problems = table.problems()
    found: Judgements = {}
    columns = (table.columns[role] for role in _ROLES)
    for query, document, grade, line in zip(*columns, table.lines.tolist(), strict=True):
        if grade is None or grade == "":
            continue
        reason = _add_judgement(found, query, document, grade)
        if reason is not None:
            problems.add(line, reason)
    problems.check(_REMEDY)
    return found


def _read_ids(table: Table) -> Judgements:
    """Read lists of relevant documents, each with grade 1."""
    problems = table.problems()
    found: Judgements = {}
    for query, ids, line in zip(table.columns["query"], table.columns["ids"], table.lines.tolist(), strict=True):
        if not isinstance(ids, list) or not ids:
            problems.add(line, f"ids is not a list of document ids: {ids!r}")
            continue
        for document in ids:
            reason = _add_judgement(found, query, document, 1)
            if reason is not None:
                problems.add(line, reason)
                break
    problems.check(_IDS_REMEDY)
    return found


def _read_columns(path: Path) -> Table:
    """Read the table, with the roles as names of its columns, or with the columns `query` and `ids`."""
    try:
        return read_table(path, _ROLES)
    except MissingColumns as error:
        if {"query", "ids"}.issubset(error.names):
            return read_table(path, ["query", "ids"])
        names = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in reversed(error.names)}
        columns = {
            role: next((names[alias] for alias in aliases if alias in names), None)
            for role, aliases in _ALIASES.items()
        }
        missing = [role for role, column in columns.items() if column is None]
        if missing:
            raise SourceError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(error.names) or 'none'}", _REMEDY
            ) from None
        table = read_table(path, [column for column in columns.values() if column is not None])
        renamed = {role: table.columns[column] for role, column in columns.items() if column is not None}
        return Table(path, renamed, table.lines, table.unit)


def _add_judgement(found: Judgements, query: object, document: object, grade: object) -> str | None:
    """Add one judgement; return the problem with it, if there is one."""
    if not isinstance(query, str) or not query.strip():
        return f"query is not a text: {query!r}"
    # JSON may hold numbers as ids, which engines convert to strings.
    if isinstance(document, bool) or not isinstance(document, str | int) or document == "":
        return f"document is not an id: {document!r}"
    number = _whole_number(grade)
    if number is None:
        return f"grade is not a whole number: {grade!r}"
    given = found.setdefault(query.strip(), {}).setdefault(str(document), number)
    return None if given == number else f"{document!r} already has the grade {given} for {query!r}"


def _whole_number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except ValueError:  # the caller refuses the line
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None


def _read_rank_eval(path: Path) -> Judgements:
    """Read the `requests` of a `_rank_eval` body. The text of a query is found in `params` or in the request."""
    try:
        body = orjson.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check the path.") from error
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{path} is not valid JSON: {error}", "For JSON Lines, name the file .jsonl.") from error
    requests = body.get("requests") if isinstance(body, dict) else None
    if not isinstance(requests, list) or not requests:
        raise SourceError(f"{path} must have a list of requests, as in the body of _rank_eval", _REMEDY)
    found: Judgements = {}
    problems = RowErrors(path, "request")
    for number, request in enumerate(requests, start=1):
        for reason in _read_request(request, found):
            problems.add(number, reason)
    problems.check('Each request needs a single text to search for, and ratings: [{"_id": "1", "rating": 2}, …].')
    return found


def _read_request(request: Any, found: Judgements) -> Iterator[str]:
    """Add the ratings of a request; yield the problems with it."""
    if not isinstance(request, dict) or not isinstance(request.get("ratings"), list):
        yield "there is no list of ratings"
        return
    texts = _query_texts(request)
    if len(texts) != 1:
        yield "there is no text to search for" if not texts else f"there are several texts: {', '.join(texts)}"
        return
    for rating in request["ratings"]:
        if not isinstance(rating, dict):
            yield f"a rating is not an object: {rating!r}"
            continue
        reason = _add_judgement(found, texts[0], rating.get("_id"), rating.get("rating"))
        if reason is not None:
            yield reason


# Clauses whose members are fields, with the text itself or an object.
_FIELD_CLAUSES = frozenset({"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix", "neural"})
_TEXT_MEMBERS = frozenset({"query", "model_text", "query_text"})
_UNSEARCHED = frozenset({"filter", "must_not", "aggs", "aggregations", "highlight", "sort", "_source"})


def _query_texts(request: dict[str, Any]) -> Sequence[str]:
    """Collect the texts that a request searches for, without duplicates."""
    params = request.get("params")
    if isinstance(params, dict):
        texts = [value for value in params.values() if isinstance(value, str)]
    else:
        texts = list(_texts_in(request.get("request")))
    return list(dict.fromkeys(texts))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _texts_in(each)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name in _TEXT_MEMBERS and isinstance(inner, str):
                yield inner
            elif name in _FIELD_CLAUSES and isinstance(inner, dict):
                for field in inner.values():
                    yield from [field] if isinstance(field, str) else _texts_in(field)
            elif name not in _UNSEARCHED:
                yield from _texts_in(inner)
