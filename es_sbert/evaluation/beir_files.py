"""Read test collections in the layout of BEIR (Thakur et al. 2021, arXiv 2104.08663), as JSON Lines or Parquet.

| layout of a folder | collections |
|---|---|
| `corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv` | one: BEIR's own |
| `corpus/train-00000-of-00001.parquet`, `queries/…`, `qrels/…` | one: a data set of the hub, such as NanoMSMARCO |
| `corpus/NAME-00000-of-00001.parquet`, `queries/NAME-…`, `qrels/NAME-…` | one for each NAME: NanoBEIR in one data set |

Columns are `_id`, `title`, `text`; `_id`, `text`; and `query-id`, `corpus-id`, `score`. A missing `title` is empty, and
a missing `score` is 1. JSONL, CSV and TSV may be compressed (.gz, .zst).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError
from es_sbert.io.tables import MissingColumns, RowErrors, Table, read_table

_LAYOUT = "A test collection is corpus.jsonl, queries.jsonl and qrels/test.tsv; each may also be Parquet."
# Name of a file of a part; it may include the number of the file if the part has several.
_FILE_NAME = re.compile(r"(.+?)(?:-\d+-of-\d+)?\.(?:parquet|(?:jsonl|csv|tsv)(?:\.gz|\.zst)?)")


@dataclass(frozen=True)
class RetrievalCollection:
    """A test collection.

    Attributes:
        documents: Id → text, with the title in front; empty for judgements of the documents of an index.
        queries: Id → text; only judged queries.
        judgements: Query → document → grade; 0 is not relevant.
        empty: Ids of documents without text. They are not in `documents` and count as not found.
    """

    name: str
    documents: dict[str, str]
    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]
    empty: tuple[str, ...] = ()

    def own(self, query: str) -> str | None:
        """Id of the document that is the query itself and therefore never relevant; None if there is none.

        Equal ids are not enough: the document must contain the query, because some collections number both alike.
        """
        text, document = self.queries[query].strip(), self.documents.get(query)
        return query if document is not None and text and text in document else None


_SAMPLE_SEED = 0


def sample_rows(count: int, limit: int | None) -> NDArray[np.int64]:
    """Choose the rows to keep, ascending, *shape* ``(rows,)``: all of `count`, or `limit` drawn with a fixed seed.

    The first rows would not be a fair sample, because many files are sorted by label or topic.
    """
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(_SAMPLE_SEED).choice(count, size=limit, replace=False)
    return np.sort(drawn).astype(np.int64)


@dataclass(frozen=True)
class CollectionFiles:
    """The files of a collection.

    Attributes:
        folder: The folder that holds them.
        name: Name of the collection.
        corpus, queries, judgements: One file or several.
    """

    folder: Path
    name: str
    corpus: Sequence[Path]
    queries: Sequence[Path]
    judgements: Sequence[Path]


def is_beir_folder(folder: Path) -> bool:
    """Whether a folder holds a corpus."""
    return folder.is_dir() and bool(_files_by_name(folder, "corpus"))


def find_collections(folder: Path) -> list[CollectionFiles]:
    """Find the collections of a folder that holds a corpus, sorted by name.

    Raises:
        SourceError: queries or judgements are missing or ambiguous.
    """
    corpus, queries, judgements = (_files_by_name(folder, part) for part in ("corpus", "queries", "qrels"))
    if len(corpus) > 1:
        for part, found in (("queries", queries), ("qrels", judgements)):
            missing = sorted(corpus.keys() - found.keys())
            if missing:
                raise SourceError(f"{folder / part} has no file for {', '.join(missing)}", _LAYOUT)
        return [CollectionFiles(folder, name, corpus[name], queries[name], judgements[name]) for name in sorted(corpus)]
    name = folder.resolve().name
    (documents,) = corpus.values()
    if len(queries) != 1:
        raise SourceError(f"{folder} has no queries.jsonl" if not queries else _several(folder, queries), _LAYOUT)
    if not judgements:
        raise SourceError(f"{folder} has no qrels/test.tsv", _LAYOUT)
    if len(judgements) > 1 and "test" not in judgements:
        raise SourceError(_several(folder, judgements), "Keep one split, or name the one to use qrels/test.tsv.")
    graded = judgements["test"] if "test" in judgements else next(iter(judgements.values()))
    return [CollectionFiles(folder, name, documents, next(iter(queries.values())), graded)]


def read_beir_folder(folder: Path, *, limit: int | None = None) -> RetrievalCollection:
    """Read the only collection of a folder; see `read_collection`.

    Raises:
        SourceError: see `find_collections` and `read_collection`; or the folder does not hold exactly one collection.
    """
    found = find_collections(folder) if is_beir_folder(folder) else []
    if len(found) != 1:
        raise SourceError(f"{folder} holds {len(found)} test collections, not one", _LAYOUT)
    return read_collection(found[0], limit=limit)


def read_collection(files: CollectionFiles, *, limit: int | None = None) -> RetrievalCollection:
    """Read a collection; queries without a relevant document are left out.

    Judged documents that are not in the corpus count as not found, as in trec_eval. So do documents with neither title
    nor text.

    Args:
        files: The files of the collection.
        limit: Maximum number of queries, drawn with a fixed seed. All documents are kept.

    Raises:
        SourceError: a file is invalid (with its line), an id is duplicated, a judged query does not exist, or no query
            is judged.
    """
    texts = _read_documents(files.corpus)
    documents = {identifier: text for identifier, text in texts.items() if text}
    if not documents:
        raise SourceError(f"all documents of {files.folder} are empty", "A document needs a title or a text.")
    queries = _read_queries(files.queries)
    judgements = _read_judgements(files.judgements, queries)
    judged = [query for query in queries if any(grade > 0 for grade in judgements.get(query, {}).values())]
    if not judged:
        raise SourceError(f"{files.folder / 'qrels'} has no relevant document", "Grade relevant documents above 0.")
    kept = [judged[row] for row in sample_rows(len(judged), limit)]
    return RetrievalCollection(
        files.name,
        documents,
        {query: queries[query] for query in kept},
        {query: judgements[query] for query in kept},
        tuple(name for name, text in texts.items() if not text),
    )


def _files_by_name(folder: Path, part: str) -> dict[str, list[Path]]:
    """Find the files of a part, by their name without number and suffix; `""` for a file with the name of the part.

    Raises:
        SourceError: the folder cannot be read.
    """
    try:
        found: dict[str, list[Path]] = {}
        for path in sorted(folder.iterdir()):
            match = _FILE_NAME.fullmatch(path.name)
            if match is not None and match[1] == part and path.is_file():
                found.setdefault("", []).append(path)
        inside = folder / part
        for path in sorted(inside.iterdir()) if inside.is_dir() and not found else ():
            match = _FILE_NAME.fullmatch(path.name)
            if match is not None and path.is_file():
                found.setdefault(match[1], []).append(path)
    except OSError as error:
        raise SourceError(f"{folder} cannot be read: {error.strerror}", "Check its permissions.") from error
    return found


def _several(folder: Path, files: dict[str, list[Path]]) -> str:
    names = ", ".join(str(paths[0].relative_to(folder)) for paths in files.values())
    return f"{folder} must hold only one of these: {names}"


def _read_documents(paths: Sequence[Path]) -> dict[str, str]:
    """Read documents: id → title and text, both of which may be empty."""
    joined: dict[str, str] = {}
    seen: dict[str, tuple[Path, int]] = {}
    for path in paths:
        table = _read_beir_table(path, ["_id", "text"], "title")
        ids, problems = _read_ids(table, seen)
        parts = [table.columns[name] for name in ("title", "text") if name in table.columns]
        for identifier, line, *texts in zip(ids, table.lines.tolist(), *parts, strict=True):
            if not all(isinstance(text, str | None) for text in texts):
                problems.add(line, "title or text is not a string")
                continue
            joined[identifier] = " ".join(filter(None, ((text or "").strip() for text in texts)))
        problems.check("Every document needs a unique id; its title and text must be strings.")
    return joined


def _read_queries(paths: Sequence[Path]) -> dict[str, str]:
    queries: dict[str, str] = {}
    seen: dict[str, tuple[Path, int]] = {}
    for path in paths:
        table = _read_beir_table(path, ["_id", "text"], "title")
        ids, problems = _read_ids(table, seen)
        texts = table.texts("text", problems)
        problems.check("Every query needs a unique id and a text.")
        queries |= dict(zip(ids, texts, strict=True))
    return queries


def _read_ids(table: Table, seen: dict[str, tuple[Path, int]]) -> tuple[list[str], RowErrors]:
    """Read the ids of a table, and collect the problems with them.

    Args:
        table: A file.
        seen: Id → file and line where it first occurs; the ids of this file are added.
    """
    problems = table.problems()
    ids = table.texts("_id", problems)
    for identifier, line in zip(ids, table.lines.tolist(), strict=True):
        path, first = seen.setdefault(identifier, (table.path, line))
        if (path, first) != (table.path, line):
            place = f"{table.unit} {first}" + ("" if path == table.path else f" of {path}")
            problems.add(line, f"_id {identifier!r} is already in {place}")
    return ids, problems


def _read_judgements(paths: Sequence[Path], queries: dict[str, str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for path in paths:
        table = _read_beir_table(path, ["query-id", "corpus-id"], "score")
        problems = table.problems()
        grades = table.floats("score", problems).tolist() if "score" in table.columns else [1.0] * len(table)
        queried, judged = table.texts("query-id", problems), table.texts("corpus-id", problems)
        for query, document, grade, line in zip(queried, judged, grades, table.lines.tolist(), strict=True):
            if query not in queries:
                problems.add(line, f"there is no query {query!r}")
            elif math.isfinite(grade) and grade != int(grade):  # `floats` reports invalid numbers
                problems.add(line, f"score is {grade}, not a whole number")
            elif math.isfinite(grade) and found.setdefault(query, {}).setdefault(document, int(grade)) != int(grade):
                problems.add(line, f"{document!r} already has the grade {found[query][document]} for {query!r}")
        problems.check("Each row needs a query of queries.jsonl, a document, and their only grade, a whole number.")
    return found


def _read_beir_table(path: Path, required: list[str], optional: str) -> Table:
    """Read the required columns of a file, and the optional one if the file has it."""
    try:
        with suppress(MissingColumns):  # then the file is read without the optional column
            return read_table(path, [*required, optional])
        return read_table(path, required)
    except MissingColumns as error:
        raise SourceError(
            error.message, f"A test collection needs BEIR's column names: rename the columns to {', '.join(required)}."
        ) from None
