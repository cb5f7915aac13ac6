"""Compare a sample of stored vectors with a model, and find the text that they were made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

import numpy as np

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.adopt_field import AdoptableField
from es_sbert.index.document_sample import random_hits
from es_sbert.index.document_vectors import read_vector, row_cosines
from es_sbert.index.mapping import document_meta_field
from es_sbert.index.text_template import TextFieldError, TextTemplate, document_field_names, field_text, find_field
from es_sbert.vectors import Vectors


class ComparedDocument(NamedTuple):
    """A document whose vector was compared.

    Attributes:
        key: Its id and routing.
        cosine: Cosine of the stored vector and the model's; 0 if one of them is zero or not finite.
        is_truncated: Whether its text is longer than the model reads.
    """

    key: DocumentKey
    cosine: float
    is_truncated: bool

    def as_json(self) -> Json:
        document_id, routing = self.key
        named: Json = {"id": document_id} if routing is None else {"id": document_id, "routing": routing}
        return named | {"cosine": round(self.cosine, 6), "truncated": self.is_truncated}


@dataclass(frozen=True)
class SampleCheck:
    """The agreement of the vectors of a sample with a model.

    Attributes:
        documents: The compared documents, at least one.
        min_cosine: Lowest cosine at which a vector counts as the model's.
        share: Share of the documents that must have such a vector.
        without_text: Sampled documents with a vector whose text is empty or missing.
        unreadable: Sampled documents whose text is not a string.
        max_tokens: Maximum number of tokens that the model reads of a text.
    """

    documents: Sequence[ComparedDocument]
    min_cosine: float
    share: float
    without_text: int = 0
    unreadable: int = 0
    max_tokens: int = 0

    @cached_property
    def failing(self) -> list[ComparedDocument]:
        """Documents whose vector is not the model's, the most distant first."""
        return sorted((one for one in self.documents if one.cosine < self.min_cosine), key=lambda one: one.cosine)

    @property
    def matching_share(self) -> float:
        """Share of the documents whose vector is the model's."""
        return 1.0 - len(self.failing) / len(self.documents)

    @property
    def is_accepted(self) -> bool:
        """Whether enough documents have a vector of the model."""
        return len(self.documents) - len(self.failing) >= self.share * len(self.documents)

    @property
    def lowest(self) -> float:
        """The lowest cosine."""
        return min(one.cosine for one in self.documents)

    @property
    def median(self) -> float:
        """The median cosine."""
        return float(np.median([one.cosine for one in self.documents]))

    @property
    def fails_only_where_truncated(self) -> bool:
        """Whether only truncated texts fail, because their vectors were made with another maximum of tokens."""
        whole = [one for one in self.documents if not one.is_truncated]
        return bool(self.failing) and bool(whole) and all(one.is_truncated for one in self.failing)

    def as_json(self) -> Json:
        return {
            "compared": len(self.documents),
            "matching": len(self.documents) - len(self.failing),
            "share": round(self.matching_share, 6),
            "required_share": self.share,
            "min_cosine": self.min_cosine,
            "lowest_cosine": round(self.lowest, 6),
            "median_cosine": round(self.median, 6),
            "without_text": self.without_text,
            "unreadable": self.unreadable,
            "failing": [one.as_json() for one in self.failing],
        }


PAGE = 500


@dataclass(frozen=True)
class TextDocument:
    """A document that has a text.

    Attributes:
        hit: The hit as the engine returned it, with `_seq_no` and `_primary_term`.
        text: The text that its vector should have been made from.
    """

    hit: Json
    text: str

    @property
    def key(self) -> DocumentKey:
        return document_key(self.hit)


@dataclass
class TextPage:
    """Hits, grouped by whether they have a text.

    Attributes:
        documents: The hits that have a text.
        without_text: Number of hits without a text.
        unreadable: Number of hits with a value other than a string in a field of the text.
    """

    documents: list[TextDocument] = field(default_factory=list)
    without_text: int = 0
    unreadable: int = 0

    @classmethod
    def from_hits(cls, hits: Iterable[Json], template: TextTemplate) -> TextPage:
        """Read the text of each hit."""
        page = cls()
        for hit in hits:
            try:
                text = template.text_of(hit.get("_source") or {})
            except TextFieldError:
                page.unreadable += 1
                continue
            if not text or text.isspace():
                page.without_text += 1
            else:
                page.documents.append(TextDocument(hit, text))
        return page


def without_metadata_query(vector_field: str) -> Json:
    """Query for documents that have a vector but no metadata for it, and are therefore still to be adopted."""
    named = {"exists": {"field": f"{document_meta_field(vector_field)}.fingerprint"}}
    return {"bool": {"filter": [{"exists": {"field": vector_field}}], "must_not": [named]}}


def read_sample(engine: Engine, adoptable: AdoptableField, query: Json, count: int, seed: int) -> TextPage:
    """Read a random sample of documents with their vectors.

    A seed gives the same documents as long as the index does not change.

    Args:
        query: Query for the documents to choose from; each has a vector.
        count: Number of documents, limited by the `index.max_result_window` of the index.

    Raises:
        EngineError: the engine failed.
    """
    source = engine.info.source_with_vectors([adoptable.name, *adoptable.template.fields])
    most = min(count, adoptable.state.result_window)
    hits = random_hits(engine, adoptable.state.name, query, most, seed, source=source)
    return TextPage.from_hits(hits, adoptable.template)


def _stored_vectors(documents: Sequence[TextDocument], vector_field: str) -> Vectors:
    """Read the stored vectors of documents. *Shape:* ``(documents, dimensions)``.

    Raises:
        IndexMismatch: a document has a vector that the engine does not return.
    """
    vectors = []
    for hit in (document.hit for document in documents):
        value = find_field(hit["_source"], vector_field)
        if not isinstance(value, str | list):
            raise IndexMismatch(
                f"the document {hit['_id']!r} of {hit['_index']} has a vector in {vector_field} that is missing from "
                "`_source`, so it cannot be compared",
                f"Embed the documents into another field: `es-sbert ingest --index {hit['_index']} --vector-field "
                "OTHER --text-field FIELD`.",
            )
        vectors.append(read_vector(value))
    return np.stack(vectors)


def compare_vectors(
    encoder: Encoder, documents: Sequence[TextDocument], vector_field: str
) -> Iterator[ComparedDocument]:
    """Embed the texts of documents and compare the vectors with the stored ones.

    Raises:
        IndexMismatch: the engine does not return a vector.
    """
    if not documents:
        return
    encoded = encoder.encode_details([document.text for document in documents], "document")
    cosines = row_cosines(_stored_vectors(documents, vector_field), encoded.vectors)
    for document, cosine, truncated in zip(documents, cosines.tolist(), encoded.truncated.tolist(), strict=True):
        yield ComparedDocument(document.key, cosine, truncated)


# Maximum numbers of documents and of text fields that are tried.
_VARIANT_DOCUMENTS = 8
_MAX_FIELDS = 5
# A text replaces an earlier one only if it matches better by this much, because rounding differs between batches.
_MIN_IMPROVEMENT = 1e-4
_SEPARATORS = (" ", "\n", ". ")


@dataclass(frozen=True)
class TextVariant:
    """A text, other than the given one, whose embeddings match the stored vectors.

    Attributes:
        template: Its template.
        prompt: The prompt in front of the text; None for the model's prompt for documents, which es-sbert uses.
        median: Median cosine of the vectors.
    """

    template: str
    prompt: str | None
    median: float

    def as_json(self) -> Json:
        return {"text": self.template, "prompt": self.prompt, "median_cosine": round(self.median, 6)}


def find_variant(engine: Engine, adoptable: AdoptableField, encoder: Encoder, check: SampleCheck) -> TextVariant | None:
    """Embed a few of the failing documents with other prompts, from single text fields and from pairs of fields.

    Returns:
        The text whose vectors match best; None if none reaches the check's minimum cosine.

    Raises:
        EngineError: the engine failed.
    """
    step = max(1, len(check.failing) // _VARIANT_DOCUMENTS)
    ids = [one.key[0] for one in check.failing[::step][:_VARIANT_DOCUMENTS]]
    found = multi_get(engine, adoptable.state.name, ids, source=engine.info.source_with_vectors())
    failing = {one.key for one in check.failing}
    hits = [hit for key, hit in found.items() if key in failing]
    hits = [hit for hit in hits if find_field(hit["_source"], adoptable.name) is not None]
    own = (adoptable.name, document_meta_field(adoptable.name))
    sources = [{name: value for name, value in hit["_source"].items() if name not in own} for hit in hits]
    best: TextVariant | None = None
    for template, kind in _candidate_texts(adoptable.template, sources, encoder):
        documents = TextPage.from_hits(hits, template).documents
        # Skip a text that only a few documents have: it says nothing about the others.
        if 2 * len(documents) < len(hits) or not documents:
            continue
        made = encoder.encode([document.text for document in documents], kind)
        stored = _stored_vectors(documents, adoptable.name)
        median = float(np.median(row_cosines(stored, made)))
        if median >= check.min_cosine and (best is None or median > best.median + _MIN_IMPROVEMENT):
            best = TextVariant(template.template, None if kind == "document" else encoder.prompt(kind), median)
    return best


def _candidate_texts(
    given: TextTemplate, sources: Sequence[Json], encoder: Encoder
) -> Iterator[tuple[TextTemplate, PromptKind | None]]:
    """Yield the texts to try: the given text with other prompts, single fields, and pairs of fields."""
    others: tuple[PromptKind | None, ...] = (None, "query")
    kinds: list[PromptKind | None] = ["document"]
    kinds += [kind for kind in others if encoder.prompt(kind) != encoder.prompt("document")]
    yield from ((given, kind) for kind in kinds[1:])
    names = [name for name in _string_fields(sources) if not set(name) & set("{}!:")][:_MAX_FIELDS]
    single = [TextTemplate.from_fields([name]) for name in names]
    yield from ((template, kind) for template in single if template.template != given.template for kind in kinds)
    pairs = permutations(names, 2)
    joined = (f"{{{one}}}{separator}{{{two}}}" for one, two in pairs for separator in _SEPARATORS)
    yield from ((TextTemplate.parse(text), "document") for text in joined if text != given.template)


def _string_fields(sources: Sequence[Json]) -> list[str]:
    """Fields with a text in at least half of the documents, the longest texts first."""
    lengths: dict[str, list[int]] = {}
    for source in sources:
        for name in document_field_names(source):
            text = field_text(source, name)
            if text is not None and text.strip():
                lengths.setdefault(name, []).append(len(text))
    common = [name for name, found in lengths.items() if 2 * len(found) >= len(sources)]
    return sorted(common, key=lambda name: -float(np.median(lengths[name])))
