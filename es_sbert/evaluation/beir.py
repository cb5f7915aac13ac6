"""Test collections in the BEIR layout (Thakur et al. 2021, arXiv 2104.08663).

    corpus.jsonl     _id, text; title where there is one
    queries.jsonl    _id, text
    qrels/test.tsv   query-id, corpus-id, score

Each file may be compressed (.gz, .zst).
"""

from __future__ import annotations

import math
from pathlib import Path

from es_sbert.errors import SourceError
from es_sbert.evaluation.data import Collection
from es_sbert.evaluation.reading import has_roles, sample
from es_sbert.tabular import MissingColumns, Problems, Table, read_table

_SUFFIXES = ("", ".gz", ".zst")


def is_collection(folder: Path) -> bool:
    """Whether a folder holds a corpus."""
    return folder.is_dir() and any((folder / f"corpus.jsonl{suffix}").is_file() for suffix in _SUFFIXES)


def read_collection(folder: Path, *, limit: int | None = None) -> Collection:
    """Read a collection; queries that nobody judged are left out.

    Documents that were judged but are not in the corpus count as not found, as trec_eval has it. So do documents
    with neither title nor text.

    Args:
        folder: With the three files.
        limit: At most so many queries, drawn by a fixed seed; the documents stay all.

    Raises:
        SourceError: a file is missing or not as it should be (with its line), an id stands twice, a judged query
            does not exist, or no query is judged.
    """
    texts = _documents(folder)
    documents = {identifier: text for identifier, text in texts.items() if text}
    if not documents:
        raise SourceError(f"all documents of {folder} are empty", "Give documents a title or a text.")
    queries = _queries(folder)
    judgements = _judgements(folder, queries)
    judged = [query for query in queries if any(grade > 0 for grade in judgements.get(query, {}).values())]
    if not judged:
        raise SourceError(f"{folder / 'qrels'} marks no document as relevant", "Give grades above 0.")
    kept = [judged[row] for row in sample(len(judged), limit)]
    return Collection(
        folder.resolve().name, documents, {query: queries[query] for query in kept},
        {query: judgements[query] for query in kept}, tuple(name for name, text in texts.items() if not text),
    )  # fmt: skip


def _documents(folder: Path) -> dict[str, str]:
    """Id → title and text, of which both may be empty."""
    path = _file(folder, "corpus.jsonl")
    titled = has_roles(path, ["title"], {})
    table = _read(path, ["_id", "title", "text"] if titled else ["_id", "text"])
    ids, problems = _ids(table)
    titles = table.columns["title"] if titled else [""] * len(table)
    joined = {}
    for identifier, title, text, line in zip(ids, titles, table.columns["text"], table.lines.tolist(), strict=True):
        if not isinstance(title, str | None) or not isinstance(text, str | None):
            problems.add(line, "title or text is no text")
            continue
        joined[identifier] = " ".join(filter(None, ((title or "").strip(), (text or "").strip())))
    problems.check("Give every document a unique id, and strings as its title and text.")
    return joined


def _queries(folder: Path) -> dict[str, str]:
    table = _read(_file(folder, "queries.jsonl"), ["_id", "text"])
    ids, problems = _ids(table)
    texts = table.texts("text", problems)
    problems.check("Give every query an id of its own and a text.")
    return dict(zip(ids, texts, strict=True))


def _ids(table: Table) -> tuple[list[str], Problems]:
    """Ids, with what is wrong with them so far."""
    problems = table.problems()
    ids = table.texts("_id", problems)
    first: dict[str, int] = {}
    for identifier, line in zip(ids, table.lines.tolist(), strict=True):
        if first.setdefault(identifier, line) != line:
            problems.add(line, f"_id {identifier!r} stands in line {first[identifier]} already")
    return ids, problems


def _judgements(folder: Path, queries: dict[str, str]) -> dict[str, dict[str, int]]:
    table = _read(_file(folder, "qrels/test.tsv"), ["query-id", "corpus-id", "score"])
    problems = table.problems()
    grades = table.floats("score", problems)
    found: dict[str, dict[str, int]] = {}
    rows = zip(table.texts("query-id", problems), table.texts("corpus-id", problems), grades.tolist(),
               table.lines.tolist(), strict=True)  # fmt: skip
    for query, document, grade, line in rows:
        if query not in queries:
            problems.add(line, f"there is no query {query!r}")
        elif math.isfinite(grade) and grade != int(grade):  # `floats` has noted what is no number
            problems.add(line, f"score is {grade}, not a whole number")
        elif math.isfinite(grade) and found.setdefault(query, {}).setdefault(document, int(grade)) != int(grade):
            problems.add(line, f"{document!r} has had the grade {found[query][document]} for {query!r}")
    problems.check("Name queries of queries.jsonl, documents, and whole numbers as grades, one for each pair.")
    return found


def _read(path: Path, columns: list[str]) -> Table:
    try:
        return read_table(path, columns)
    except MissingColumns as error:
        raise SourceError(
            error.message, f"A test collection has the names of BEIR: rename its columns to {', '.join(columns)}."
        ) from None


def _file(folder: Path, name: str) -> Path:
    for suffix in _SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise SourceError(f"{folder} has no {name}", "A test collection is corpus.jsonl, queries.jsonl and qrels/test.tsv.")
