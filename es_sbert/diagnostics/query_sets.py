"""Queries for recall and calibration: read from a file, or made from documents.

A pseudo-query is a sentence of a document, and the rest of the document is what it should find: the inverse cloze
task (Lee, Chang and Toutanova 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering"). The
sentence is removed from the document, because real queries rarely repeat a sentence of the document they look for.
docs/results.md compares the cosines with those of labelled queries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from es_sbert.errors import SourceError
from es_sbert.index.text_template import TextTemplate
from es_sbert.io.tables import read_table


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


_JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_LABELLED_REMEDY = 'Write one object a line: {"query": "a text", "ids": ["id of a relevant document", …]}.'


def read_labelled_queries(path: Path) -> list[LabelledQuery]:
    """Read `{"query": …, "ids": […]}` from JSON Lines, also compressed; other keys are ignored.

    Raises:
        SourceError: the file is missing or of another format, holds no query, or a line is not as it should be.
    """
    if not path.is_file():
        raise SourceError(f"{path} does not exist or is no file", "Check the path.")
    if not path.name.lower().endswith(_JSONL_SUFFIXES):
        raise SourceError(f"{path} is not named {', '.join(_JSONL_SUFFIXES)}", _LABELLED_REMEDY)
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
    problems.check(_LABELLED_REMEDY)
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


# The end of a sentence: a full stop and what closes after it, before white space; of scripts without spaces, their own
# full stop. A line ends one too: fields of a text are joined by line feeds, and titles have no full stop.
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]»]*\s+|[。！？｡]+[」』”’）]*\s*|\s*\n\s*")
_MIN_SENTENCE_WORDS = 3
_MIN_UNSPACED_CHARACTERS = 8


class QueryKind(StrEnum):
    """What of a document a pseudo-query is."""

    SENTENCE = "first sentence"
    FIELD = "first field"
    HALF = "first half of the words"


@dataclass(frozen=True)
class PseudoQuery:
    """A part of a document as a query.

    Attributes:
        text: The query, never the whole text of the document.
        kind: What it is.
        end: First character of the document's text behind it; 0 for a field, which may be anywhere in the text.
        rest: The document's text without it; None of one sentence, whose halves mean nothing to each other: there the
            query is compared with the whole.
    """

    text: str
    kind: QueryKind
    end: int
    rest: str | None


def make_pseudo_query(template: TextTemplate, document: Mapping[str, Any], text: str) -> PseudoQuery | None:
    """A query that the document should be found by.

    Its first sentence, where its text has several. Of a text of one sentence, its first field where the template has
    several, or else the first half of its words.

    Args:
        text: Of the document by the template.

    Returns:
        The query; None where the text is too short for one.
    """
    end = first_sentence_end(text)
    if end is not None:
        return PseudoQuery(text[:end].strip(), QueryKind.SENTENCE, end, text[end:].strip())
    if len(template.fields) > 1:
        field = (TextTemplate.from_fields(template.fields[:1]).text_of(document) or "").strip()
        rest = text.replace(field, "", 1).strip()
        if field and any(map(str.isalnum, rest)):
            return PseudoQuery(field, QueryKind.FIELD, 0, rest)
    half = first_half(text)
    return None if half is None else PseudoQuery(half, QueryKind.HALF, len(half), None)


def first_sentence_end(text: str) -> int | None:
    """First character behind the first sentence of at least three words; None where no text follows it."""
    for end in _SENTENCE_END.finditer(text):
        sentence = text[: end.end()].strip()
        if not any(map(str.isalnum, text[end.end() :])):
            return None
        if len(sentence.split()) >= _MIN_SENTENCE_WORDS or _is_unspaced(sentence):
            return end.end()
    return None


def first_half(text: str) -> str | None:
    """The first half of the words, rounded up; of a text without spaces, of its characters. None of a single word."""
    words = text.split()
    if len(words) > 1:
        return " ".join(words[: (len(words) + 1) // 2])
    return text.strip()[: len(text.strip()) // 2] if _is_unspaced(text) else None


def _is_unspaced(text: str) -> bool:
    """Whether a text is long enough for a query in a script that puts no spaces between words."""
    return not text.isascii() and len(text.strip()) >= _MIN_UNSPACED_CHARACTERS and len(text.split()) == 1
