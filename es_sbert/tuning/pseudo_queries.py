"""Pseudo-queries: parts of documents that stand in for queries where nobody has labelled any.

A sentence is a query, and the rest of its document is what it should find: the inverse cloze task (Lee, Chang and
Toutanova 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering"). The sentence is taken out of
the document, because real queries seldom repeat a sentence of what they are looking for. How close the cosines come to
those of labelled queries is in docs/results.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from es_sbert.index.text import TextTemplate

# The end of a sentence: a full stop and what closes after it, before white space; of scripts without spaces, their own
# full stop. A line ends one too: fields of a text are joined by line feeds, and titles have no full stop.
_END = re.compile(r"[.!?…]+[\"'”’)\]»]*\s+|[。！？｡]+[」』”’）]*\s*|\s*\n\s*")
_LEAST_WORDS = 3
_LEAST_CHARACTERS = 8


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


def pseudo_query(template: TextTemplate, document: Mapping[str, Any], text: str) -> PseudoQuery | None:
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
        field = (TextTemplate.of_fields(template.fields[:1]).text_of(document) or "").strip()
        rest = text.replace(field, "", 1).strip()
        if field and any(map(str.isalnum, rest)):
            return PseudoQuery(field, QueryKind.FIELD, 0, rest)
    half = first_half(text)
    return None if half is None else PseudoQuery(half, QueryKind.HALF, len(half), None)


def first_sentence_end(text: str) -> int | None:
    """First character behind the first sentence of at least three words; None where no text follows it."""
    for end in _END.finditer(text):
        sentence = text[: end.end()].strip()
        if not any(map(str.isalnum, text[end.end() :])):
            return None
        if len(sentence.split()) >= _LEAST_WORDS or _is_unspaced(sentence):
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
    return not text.isascii() and len(text.strip()) >= _LEAST_CHARACTERS and len(text.split()) == 1
