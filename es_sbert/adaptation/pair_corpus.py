"""Documents as pairs of a query and a text that does not contain it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from es_sbert.adaptation.field_choice import FieldChoice
from es_sbert.diagnostics.index_calibration import first_sentence_end
from es_sbert.index.document_sample import SampledDocument
from es_sbert.index.text_template import TextFieldError, TextTemplate, field_text
from es_sbert.training.hard_negatives import normalized_text

# A title of so many words that the text repeats word for word is a copy: finding it needs no understanding. Shorter
# ones are often names, which texts do repeat, and which people do search for.
_COPIED_WORDS = 4
# What follows a title that was put in front of a text.
_AFTER_HEADING = r"(?:\s*(?:[.:|–—-]+\s+|\n)|\s*$)"


@dataclass(frozen=True)
class PairDocument:
    """A document of the index.

    Attributes:
        id: Its `_id`.
        query: The title, or the first sentence of the text; None if the document makes no pair.
        text: The text without the query.
        full_text: The text that the index embeds.
    """

    id: str
    query: str | None
    text: str
    full_text: str


@dataclass(frozen=True)
class PairCorpus:
    """The documents that pairs are made of and that queries are ranked against.

    Attributes:
        documents: In random order.
        left_out: Reason → number of documents that make no pair, or are not in the corpus at all.
    """

    documents: tuple[PairDocument, ...]
    left_out: dict[str, int]


def build_corpus(documents: Iterable[SampledDocument], choice: FieldChoice, embedded: TextTemplate) -> PairCorpus:
    """Make pairs of documents. The text of a pair never starts with its query.

    Args:
        documents: With the fields of the choice and of the template.
        choice: Which fields are query and text.
        embedded: The text that the index embeds.
    """
    body = TextTemplate.from_fields(choice.body)
    kept, left_out = [], Counter[str]()
    for document in documents:
        text, full_text = _text(body, document), _text(embedded, document)
        if not text:
            left_out["without text"] += 1
            continue
        if choice.title is None:
            query, text = split_sentence(text)
            reason = "with a text of one sentence"
        else:
            query, text, reason = _titled(field_text(document.source, choice.title), text)
        if query is None:
            left_out[reason] += 1
        kept.append(PairDocument(document.key[0], query, text, full_text or text))
    return PairCorpus(tuple(kept), dict(left_out))


def _text(template: TextTemplate, document: SampledDocument) -> str:
    try:
        return (template.text_of(document.source) or "").strip()
    except TextFieldError:
        return ""


def _titled(title: str | None, text: str) -> tuple[str | None, str, str]:
    """Query, text, and the reason if there is no query."""
    title = " ".join((title or "").split())
    if not title:
        return None, text, "without a title"
    rest = strip_heading(title, text)
    if not rest:
        return None, text, "whose text is only the title"
    if is_copied(title, rest):
        return None, rest, "whose text repeats the title word for word"
    return title, rest, ""


def strip_heading(title: str, text: str) -> str:
    """The text without the title in front of it, which would give the answer away.

    Only a heading is removed, which a line feed or a sign such as a full stop separates from the text; a sentence that
    begins with the words of the title stays.
    """
    words = r"\s+".join(map(re.escape, title.split()))
    return re.sub(rf"\A\s*{words}{_AFTER_HEADING}", "", text, count=1, flags=re.IGNORECASE).strip()


def is_copied(title: str, text: str) -> bool:
    """Whether a text contains a title of several words, word for word."""
    return len(title.split()) >= _COPIED_WORDS and normalized_text(title).rstrip(".?!") in normalized_text(text)


def split_sentence(text: str) -> tuple[str | None, str]:
    """The first sentence, and the text after it; None and the text where there is only one sentence."""
    end = first_sentence_end(text)
    if end is None:
        return None, text
    query, rest = " ".join(text[:end].split()), text[end:].strip()
    return (None, rest) if is_copied(query, rest) else (query, rest)
