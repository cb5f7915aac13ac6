"""Make pairs from documents: a query, and a text that does not contain it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from es_sbert.adaptation.field_choice import FieldChoice
from es_sbert.diagnostics.index_calibration import first_sentence_end
from es_sbert.index.document_sample import SampledDocument
from es_sbert.index.text_template import TextTemplate
from es_sbert.training.hard_negatives import normalized_text

# If a text repeats a title of at least this many words, the document makes no pair: it would be too easy to find.
# Shorter titles are often names, which texts repeat and people search for.
_COPIED_WORDS = 4
# Separators between a text and a title in front of it.
_AFTER_HEADING = r"(?:\s*(?:[.:|–—-]+\s+|\n)|\s*$)"


@dataclass(frozen=True)
class PairDocument:
    """A document of the index.

    Attributes:
        id: Its `_id`.
        query: The title or the first sentence of the text; None if the document makes no pair.
        text: The text without the query.
        full_text: The text that the index embeds.
    """

    id: str
    query: str | None
    text: str
    full_text: str


@dataclass(frozen=True)
class PairCorpus:
    """The documents from which pairs are made and against which queries are ranked.

    Attributes:
        documents: In random order.
        left_out: Reason → number of documents that make no pair, or are not in the corpus at all.
    """

    documents: tuple[PairDocument, ...]
    left_out: dict[str, int]


def build_corpus(documents: Iterable[SampledDocument], choice: FieldChoice, embedded: TextTemplate) -> PairCorpus:
    """Make pairs of documents. The text of a pair never contains its query, except for short titles.

    Args:
        documents: With the fields of the choice and of the template.
        choice: The fields of query and text.
        embedded: The text that the index embeds.
    """
    body = embedded.of_fields(choice.body)
    title = None if choice.title is None else embedded.of_fields([choice.title])
    kept, left_out = [], Counter[str]()
    for document in documents:
        if not (text := document_text(body, document)):
            left_out["without text"] += 1
            continue
        if title is None:
            query, text = split_sentence(text)
            reason = "with a text of one sentence"
        else:
            query, text, reason = _titled(document_text(title, document), text)
        if query is None:
            left_out[reason] += 1
        kept.append(PairDocument(document.key[0], query, text, document_text(embedded, document) or text))
    return PairCorpus(tuple(kept), dict(left_out))


def document_text(template: TextTemplate, document: SampledDocument) -> str:
    """Return the text of a document by a template; empty if the document has none."""
    return template.readable_text(document.source).strip()


def _titled(title: str, text: str) -> tuple[str | None, str, str]:
    """Return the query, the text, and the reason if there is no query."""
    title = " ".join(title.split())
    if not title:
        return None, text, "without a title"
    rest = strip_heading(title, text)
    if not rest:
        return None, text, "whose text is only the title"
    if is_copied(title, rest):
        return None, rest, "whose text repeats the title word for word"
    return title, rest, ""


def strip_heading(title: str, text: str) -> str:
    """Remove the title in front of a text, because it would give the answer away.

    The title is removed only if it is a heading, separated from the text by a line feed or a sign such as a full stop;
    a sentence that begins with the words of the title stays.
    """
    words = r"\s+".join(map(re.escape, title.split()))
    return re.sub(rf"\A\s*{words}{_AFTER_HEADING}", "", text, count=1, flags=re.IGNORECASE).strip()


def is_copied(title: str, text: str) -> bool:
    """Whether a text contains a title of several words, word for word."""
    return len(title.split()) >= _COPIED_WORDS and normalized_text(title).rstrip(".?!") in normalized_text(text)


def split_sentence(text: str) -> tuple[str | None, str]:
    """Split a text into the first sentence and the text after it; None and the text if there is only one sentence."""
    end = first_sentence_end(text)
    if end is None:
        return None, text
    query, rest = " ".join(text[:end].split()), text[end:].strip()
    return (None, rest) if is_copied(query, rest) else (query, rest)


# First sentences are suitable as queries if at least this share of texts has one, and this share of them differs.
_MIN_SENTENCES, _MIN_DISTINCT = 0.5, 0.5


def sentence_problem(texts: Sequence[str]) -> str | None:
    """Explain why the first sentences of texts are unsuitable as queries; None if they are suitable."""
    found = [query for query, _ in map(split_sentence, texts) if query is not None]
    if len(found) < _MIN_SENTENCES * len(texts):
        return f"only {len(found) / len(texts):.0%} of the texts have a first sentence with text after it"
    distinct = len(set(map(normalized_text, found))) / len(found) if found else 1
    return f"only {distinct:.0%} of them are distinct" if distinct < _MIN_DISTINCT else None
