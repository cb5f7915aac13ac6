"""Compare a sample of stored vectors with a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.adopt_field import AdoptableField
from es_sbert.index.document_sample import random_hits
from es_sbert.index.document_vectors import read_vector, row_cosines
from es_sbert.index.mapping import document_meta_field
from es_sbert.index.text_template import TextFieldError, TextTemplate, find_field
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
