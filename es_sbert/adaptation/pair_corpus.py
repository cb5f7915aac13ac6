"""Make pairs from documents: a query, and a text that does not contain it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from es_sbert.adaptation.field_choice import FieldChoice
from es_sbert.diagnostics.index_calibration import first_sentence_end
from es_sbert.index.document_sample import SampledDocument
from es_sbert.index.text_template import TextTemplate
from es_sbert.runtime.chunker import Span
from es_sbert.training.hard_negatives import normalized_text
from es_sbert.training.passage_pairs import choose_neighbors

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
        query: The title, the first sentence of the text, a passage of it, or a generated query; None if the document
            makes no pair.
        text: The text without the query; for a passage, the text that follows it.
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


# The kind of query, see `PairDocument`. `generated` leaves all documents without a query, for a generator.
PairSource = Literal["title", "sentence", "passage", "generated"]
SplitPassages = Callable[[Sequence[str]], list[list[Span]]]


def build_corpus(
    documents: Iterable[SampledDocument],
    choice: FieldChoice,
    embedded: TextTemplate,
    source: PairSource,
    passages: SplitPassages | None = None,
) -> PairCorpus:
    """Make pairs of documents. The text of a pair never contains its query, except for short titles.

    Args:
        documents: With the fields of the choice and of the template.
        choice: The fields of query and text.
        embedded: The text that the index embeds.
        source: Kind of the queries.
        passages: Splits texts into passages, for the source `passage`.
    """
    body = embedded.of_fields(choice.body)
    title = None if choice.title is None else embedded.of_fields([choice.title])
    kept, left_out = [], Counter[str]()
    found = [(document, document_text(body, document)) for document in documents]
    with_text = [(document, text) for document, text in found if text]
    left_out["without text"] = len(found) - len(with_text)
    spans: list[list[Span]] = [[] for _ in with_text]
    if passages is not None:
        spans = passages([text for _, text in with_text])
    for (document, text), text_spans in zip(with_text, spans, strict=True):
        full_text, reason = document_text(embedded, document), ""
        if source == "generated":
            query = None
        elif source == "passage":
            query, text = split_passage(text, text_spans, document.key[0])
            reason = "with a text of one passage"
        elif title is None:
            query, text = split_sentence(text)
            reason = "with a text of one sentence"
        else:
            query, text, reason = _titled(document_text(title, document), text)
        if query is None and reason:
            left_out[reason] += 1
        kept.append(PairDocument(document.key[0], query, text, full_text or text))
    return PairCorpus(tuple(kept), dict(+left_out))


def add_generated_queries(corpus: PairCorpus, queries: Mapping[str, str]) -> PairCorpus:
    """Add generated queries to documents; count documents without one, or whose text contains it word for word.

    Args:
        corpus: Documents without queries.
        queries: Id → query, empty for none.
    """
    documents, left_out, remaining = [], Counter(corpus.left_out), dict(queries)
    for document in corpus.documents:
        # Documents with different routings can share an id; only the first one gets the query.
        query = remaining.pop(document.id, None)
        if query == "":
            left_out["without a generated query"] += 1
        elif query is not None and is_copied(query, document.text):
            left_out["whose text has the generated query word for word"] += 1
            query = None
        documents.append(replace(document, query=query or None))
    return PairCorpus(tuple(documents), dict(left_out))


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


def split_passage(text: str, spans: Sequence[Span], identifier: str) -> tuple[str | None, str]:
    """Choose a passage of a text; return it and the text that follows. None and the text if there is only one passage.

    Args:
        text: The text.
        spans: Its passages, which do not overlap.
        identifier: Id of the document. It determines the chosen passage, so that not all are first passages.
    """
    draw = int.from_bytes(hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).digest()[:8])
    chosen = choose_neighbors(text, spans, draw)
    if chosen is None:
        return None, text
    (start, end), (following, _) = chosen
    return " ".join(text[start:end].split()), text[following:].strip()


# First sentences are suitable as queries if at least this share of texts has one, and this share of them differs.
_MIN_SENTENCES, _MIN_DISTINCT = 0.5, 0.5


def sentence_problem(texts: Sequence[str]) -> str | None:
    """Explain why the first sentences of texts are unsuitable as queries; None if they are suitable."""
    found = [query for query, _ in map(split_sentence, texts) if query is not None]
    if len(found) < _MIN_SENTENCES * len(texts):
        return f"only {len(found) / len(texts):.0%} of the texts have a first sentence with text after it"
    distinct = len(set(map(normalized_text, found))) / len(found) if found else 1
    return f"only {distinct:.0%} of them are distinct" if distinct < _MIN_DISTINCT else None
