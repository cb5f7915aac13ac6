"""Make pairs from documents (a query, and a text that does not contain it), and split them.

The parts are pairs to train on, those that choose the checkpoint, and held-out queries.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from es_sbert.diagnostics.index_calibration import first_sentence_end
from es_sbert.errors import SourceError
from es_sbert.evaluation.judgement_files import LabeledQuery
from es_sbert.index.document_sample import SampledDocument
from es_sbert.index.text_template import TextTemplate
from es_sbert.messages import pluralize, setting
from es_sbert.training.example_augmentation import normalized_text

# If a text repeats a title of at least this many words, the document makes no pair: it would be too easy to find.
# Shorter titles are often names, which texts repeat and people search for.
_COPIED_WORDS = 4
# Separators between a text and a title in front of it.
_AFTER_HEADING = r"(?:\s*(?:[.:|–—-]+\s+|\n)|\s*$)"


@dataclass(frozen=True)
class FieldChoice:
    """The fields of pairs.

    Attributes:
        title: The field whose text is the query; None makes the first sentence of the body the query.
        body: The fields of the text, at least one.
    """

    title: str | None
    body: tuple[str, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields."""
        return self.body if self.title is None else (self.title, *self.body)


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


def build_corpus(
    documents: Iterable[SampledDocument], choice: FieldChoice, embedded: TextTemplate
) -> tuple[list[PairDocument], Counter[str]]:
    """Make pairs of documents. The text of a pair never contains its query, except for short titles.

    Args:
        documents: With the fields of the choice and of the template.
        choice: The fields of query and text.
        embedded: The text that the index embeds.

    Returns:
        The documents; reason → number of documents that make no pair, or are not among them.
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
    return kept, left_out


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


# Minimum number of pairs and queries: with fewer, a model would hardly change, and an interval would be meaningless.
MIN_TRAINED, MIN_HELD_OUT = 50, 20
# Minimum share of common shingles of near-duplicates.
NEAR_DUPLICATE = 0.5
# If words are longer than this on average, the script has no spaces between words.
_LONGEST_WORDS = 20
# Maximum share of pairs to hold out. Share and maximum number of the remaining pairs used to choose the checkpoint.
_MAX_HELD_OUT_SHARE, _DEV_SHARE, _MAX_DEV_PAIRS = 0.2, 0.1, 500


@dataclass(frozen=True)
class QueryPair:
    """A query and a document that is relevant to it.

    Attributes:
        query: The query.
        row: Row of the document in the corpus.
    """

    query: str
    row: int


@dataclass(frozen=True)
class HeldOutQuery:
    """A query for the evaluation.

    Attributes:
        text: The query.
        rows: Rows of all documents that are relevant to it.
    """

    text: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class QuerySplit:
    """The parts of the pairs: no part contains a query or text of another one.

    Attributes:
        train, dev: Pairs.
        held_out: Queries to evaluate models with.
        dropped: Pairs that were dropped because their query or their text occurs in another part, or nearly does.
        excluded: Rows of the held-out documents and of their near-duplicates: nothing is trained on them.
    """

    train: tuple[QueryPair, ...]
    dev: tuple[QueryPair, ...]
    held_out: tuple[HeldOutQuery, ...]
    dropped: int
    excluded: frozenset[int]


def split_queries(
    documents: Sequence[PairDocument],
    *,
    held_out: int,
    most_trained: int,
    labeled: Sequence[LabeledQuery] | None = None,
    extra: Iterable[QueryPair] = (),
) -> QuerySplit:
    """Split the pairs by document into parts for training, development and evaluation.

    Args:
        documents: The corpus, in random order.
        held_out: Number of held-out queries; at most a fifth of the pairs.
        most_trained: Maximum number of pairs to train on.
        labeled: Queries to evaluate with, instead of queries of held-out documents. The documents whose `_id` is in
            `ids` are relevant.
        extra: Additional pairs to train on, such as those of a search log.

    Returns:
        The parts. Pairs whose query or text occurs in another part, or nearly does, are dropped.

    Raises:
        SourceError: there are too few pairs or queries.
    """
    pairs = [QueryPair(document.query, row) for row, document in enumerate(documents) if document.query is not None]
    if labeled is None:
        count = min(held_out, int(len(pairs) * _MAX_HELD_OUT_SHARE))
        chosen, pairs = pairs[:count], pairs[count:]
        evaluated = _with_equal_documents(chosen, documents)
        held_out_rows = {row for query in evaluated for row in query.rows}
        excluded = held_out_rows | near_duplicates([document.text for document in documents], held_out_rows)
    else:
        evaluated, excluded = _labeled_queries(labeled, documents), set()
    extra = list(extra)
    extra_rows = {pair.row for pair in extra}  # their documents are trained on
    dev = [pair for pair in pairs if pair.row not in extra_rows][: min(_MAX_DEV_PAIRS, int(len(pairs) * _DEV_SHARE))]
    chosen_dev = set(dev)
    train = [*extra, *(pair for pair in pairs if pair not in chosen_dev)]
    texts = [documents[row].text for row in excluded]
    taken = {normalized_text(text) for text in [*texts, *(query.text for query in evaluated)]}
    kept_dev = _without(dev, taken, documents)
    taken |= {normalized_text(text) for pair in kept_dev for text in (pair.query, documents[pair.row].text)}
    kept_train = _without(train, taken, documents)
    dropped = len(dev) - len(kept_dev) + len(train) - len(kept_train)
    split = QuerySplit(tuple(kept_train[:most_trained]), tuple(kept_dev), evaluated, dropped, frozenset(excluded))
    _check_enough(split)
    return split


def _without(pairs: Iterable[QueryPair], taken: set[str], documents: Sequence[PairDocument]) -> list[QueryPair]:
    """Return the pairs of which neither the query nor the text is taken yet."""
    return [
        pair
        for pair in pairs
        if normalized_text(pair.query) not in taken and normalized_text(documents[pair.row].text) not in taken
    ]


def _with_equal_documents(pairs: Sequence[QueryPair], documents: Sequence[PairDocument]) -> tuple[HeldOutQuery, ...]:
    """Group pairs by query: each query with all documents that have this query, or a text equal to one of theirs."""
    by_query: dict[str, list[int]] = {}
    by_text: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        by_text.setdefault(normalized_text(document.text), []).append(row)
        if document.query is not None:
            by_query.setdefault(normalized_text(document.query), []).append(row)
    queries: dict[str, HeldOutQuery] = {}
    for pair in pairs:
        key = normalized_text(pair.query)
        rows = {equal for row in by_query[key] for equal in by_text[normalized_text(documents[row].text)]}
        queries.setdefault(key, HeldOutQuery(pair.query, tuple(sorted(rows))))
    return tuple(queries.values())


def _labeled_queries(labeled: Sequence[LabeledQuery], documents: Sequence[PairDocument]) -> tuple[HeldOutQuery, ...]:
    """Select the queries that have a relevant document in the corpus."""
    rows: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        rows.setdefault(document.id, []).append(row)
    found = (HeldOutQuery(query.text, tuple(row for id in query.ids for row in rows.get(id, ()))) for query in labeled)
    return tuple(query for query in found if query.rows)


def labeled_pairs(labeled: Sequence[LabeledQuery], documents: Sequence[PairDocument]) -> list[QueryPair]:
    """Make pairs from labeled queries, one for each relevant document that is in the corpus."""
    return [QueryPair(query.text, row) for query in _labeled_queries(labeled, documents) for row in query.rows]


def labeled_summary(labeled: Sequence[LabeledQuery], documents: Sequence[PairDocument]) -> str:
    """Count the labeled queries with a relevant document in the corpus, and the relevant documents that are in it."""
    ids = {id for query in labeled for id in query.ids}
    found = ids & {document.id for document in documents}
    usable = len(_labeled_queries(labeled, documents))
    others = "; the others are not in the index, do not match the filter, or have no text" if found != ids else ""
    return (
        f"{usable:,} of {pluralize(len(labeled), 'query', 'queries')} can be used, with {len(found):,} of "
        f"{pluralize(len(ids), 'relevant document')}{others}"
    )


def near_duplicates(texts: Sequence[str], held_out: Collection[int]) -> frozenset[int]:
    """Find the texts that are near-duplicates of a held-out text: an earlier version of it, for example.

    Two texts are near-duplicates if they share half of their shingles (Jaccard similarity; Broder 1997). This does not
    depend on a model, whose cosines may all be high.

    Args:
        texts: All texts.
        held_out: Rows of the held-out texts; the result does not contain them.
    """
    holders: dict[object, list[int]] = {}
    sizes: dict[int, int] = {}
    for row in held_out:
        shingles = _shingles(texts[row])
        sizes[row] = len(shingles)
        for shingle in shingles:
            holders.setdefault(shingle, []).append(row)
    found = set()
    for row, text in enumerate(texts):
        if row in sizes:
            continue
        shingles = _shingles(text)
        shared = Counter(other for shingle in shingles for other in holders.get(shingle, ()))
        if any(count >= NEAR_DUPLICATE * (len(shingles) + sizes[other] - count) for other, count in shared.items()):
            found.add(row)
    return frozenset(found)


def _shingles(text: str) -> set[object]:
    """Return all sequences of three words of a text; of five characters in scripts without spaces between words."""
    text = normalized_text(text)
    words = text.split()
    units, length = (words, 3) if len(words) * _LONGEST_WORDS >= len(text) else (list(text), 5)
    return {tuple(units[start : start + length]) for start in range(max(1, len(units) - length + 1))}


def _check_enough(split: QuerySplit) -> None:
    for part, count, least in (
        ("pairs to train on", len(split.train), MIN_TRAINED),
        ("held-out queries", len(split.held_out), MIN_HELD_OUT),
        ("pairs to choose the checkpoint", len(split.dev), 2),
    ):
        if count < least:
            raise SourceError(
                f"there are {count:,} {part}, but at least {least} are needed",
                f"Adapt to an index with more documents, choose other fields ({setting('title_field')}, "
                f"{setting('body_fields')}, {setting('pairs')}), or raise {setting('documents')}.",
            )
