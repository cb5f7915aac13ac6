"""Documents with vectors that another program wrote, read from an index and compared with a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from es_sbert.adoption.comparison import ComparedDocument, row_cosines
from es_sbert.adoption.plain_field import AdoptableField
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import Vectors
from es_sbert.engines.hits import Key, key_of
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.layout import in_random_order
from es_sbert.index.meta import document_meta_field
from es_sbert.index.text import NoText, TextTemplate, find_field
from es_sbert.index.vectors import read_vector

PAGE = 500


@dataclass(frozen=True)
class TextDocument:
    """A document that has a text.

    Attributes:
        hit: As the engine gave it, with `_seq_no` and `_primary_term`.
        text: What its vector should have been made from.
    """

    hit: Json
    text: str

    @property
    def key(self) -> Key:
        return key_of(self.hit)


@dataclass
class Page:
    """Hits, by whether they have a text.

    Attributes:
        documents: Those that have one.
        without_text: How many have none.
        unreadable: How many have something else than a string in a field of the text.
    """

    documents: list[TextDocument] = field(default_factory=list)
    without_text: int = 0
    unreadable: int = 0

    @classmethod
    def of(cls, hits: Sequence[Json], template: TextTemplate) -> Page:
        """Take the text of each hit."""
        page = cls()
        for hit in hits:
            try:
                text = template.text_of(hit.get("_source") or {})
            except NoText:
                page.unreadable += 1
                continue
            if not text or text.isspace():
                page.without_text += 1
            else:
                page.documents.append(TextDocument(hit, text))
        return page

    def add(self, other: Page) -> None:
        """Take the documents and counts of another page too."""
        self.documents += other.documents
        self.without_text += other.without_text
        self.unreadable += other.unreadable


def without_metadata(vector_field: str) -> Json:
    """Query for documents that have a vector and no metadata of it: they are still to be adopted."""
    named = {"exists": {"field": f"{document_meta_field(vector_field)}.fingerprint"}}
    return {"bool": {"filter": [{"exists": {"field": vector_field}}], "must_not": [named]}}


def read_sample(engine: Engine, adoptable: AdoptableField, count: int, seed: int) -> Page:
    """Documents that are still to be adopted, at random, with their vectors.

    A seed gives the same documents as long as the index is at rest.

    Args:
        count: How many; an index returns no more than its `index.max_result_window`.

    Raises:
        EngineError: the engine failed.
    """
    query = in_random_order(without_metadata(adoptable.name), seed)
    source = engine.info.source_with_vectors([adoptable.name, *adoptable.template.fields])
    found = Page()
    seen: set[Key] = set()
    most = min(count, adoptable.state.result_window)
    for begin in range(0, most, PAGE):
        body: Json = {
            "query": query, "from": begin, "size": min(PAGE, most - begin), "_source": source,
            "seq_no_primary_term": True,
        }  # fmt: skip
        hits = engine.search(adoptable.state.name, body)["hits"]["hits"]
        # Where somebody writes to the index, a document may come in two pages.
        fresh = [hit for hit in hits if key_of(hit) not in seen]
        seen.update(map(key_of, fresh))
        found.add(Page.of(fresh, adoptable.template))
        if len(hits) < body["size"]:
            break
    return found


def vector_of(hit: Json, vector_field: str) -> Vectors:
    """The stored vector of a hit. *Shape:* ``(dimensions,)``.

    Raises:
        IndexMismatch: the engine finds a vector in the document and does not give it back.
    """
    value = find_field(hit["_source"], vector_field)
    if not isinstance(value, str | list):
        raise IndexMismatch(
            f"the document {hit['_id']!r} of {hit['_index']} has a vector in {vector_field} that `_source` does not "
            "hold, so that it cannot be compared",
            f"Embed the documents into a field of their own: `es-sbert ingest --index {hit['_index']} --vector-field "
            "OTHER --text-field FIELD`.",
        )
    return read_vector(value)


def compare(encoder: Encoder, documents: Sequence[TextDocument], vector_field: str) -> Iterator[ComparedDocument]:
    """Embed the texts, and compare the vectors with those that the documents have.

    Raises:
        IndexMismatch: the engine does not give a vector back.
    """
    if not documents:
        return
    encoded = encoder.encode([document.text for document in documents], "document")
    stored = np.stack([vector_of(document.hit, vector_field) for document in documents])
    cosines = row_cosines(stored, encoded.vectors)
    for document, cosine, truncated in zip(documents, cosines.tolist(), encoded.truncated.tolist(), strict=True):
        yield ComparedDocument(document.key, cosine, truncated)
