"""`TextCollection`: texts with their embeddings, read from files and embedded, or read from an index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_sbert.arguments import check_arguments
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connected
from es_sbert.engines.engine import DocumentKey, document_key
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import retry_for
from es_sbert.index.document_vectors import doc_value_request, hit_vectors, read_document_meta
from es_sbert.index.mapping import document_meta_field, named_vectors_query, vector_path
from es_sbert.index.text_template import (
    MISSING,
    TextTemplate,
    find_field,
)
from es_sbert.index.vector_field import VectorField, require_index, vector_field_from_state
from es_sbert.ingest.read_texts import SkippedDocuments, read_file_texts
from es_sbert.io.file_formats import FileOptions
from es_sbert.settings import Seconds
from es_sbert.vectors import Vectors

if TYPE_CHECKING:
    from es_sbert.engines.connect import EngineOrClient

# Number of documents of the index to read in one request; with their vectors they take a few megabytes.
_PAGE = 500

OnProgress = Callable[[int, int], None]


class DocumentVersion(NamedTuple):
    """The version of a document in an index.

    Usage:
        ```python
        collection = read_index("docs", "http://localhost:9200")
        print(collection.ids[0], collection.versions[0].sequence)
        ```

    Attributes:
        routing: The custom routing value, or None.
        sequence, term: The `_seq_no` and the `_primary_term`.
    """

    routing: str | None
    sequence: int
    term: int


@dataclass(frozen=True, repr=False)
class TextCollection:
    """Texts with their embeddings.

    Usage:
        ```python
        collection = read_index("docs", "http://localhost:9200")
        print(len(collection), collection.texts[0], collection.vectors.shape)
        ```

    Attributes:
        ids: Id of each text, or `FILE:LINE`.
        texts: The texts; empty strings if the mapping does not say what was embedded.
        vectors: Embeddings; those of a text are consecutive. *Shape:* ``(vectors, dimensions)``.
        starts: Row of each text's first vector. *Shape:* ``(texts,)``.
        skipped: Documents that were left out.
        values: Values of the further requested fields, for each text; empty if the texts come from files.
        versions: Version of each document of an index; empty if the texts come from files.
        model: Name of the model that made the vectors.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    vectors: Vectors
    starts: NDArray[np.int64]
    skipped: SkippedDocuments
    values: Sequence[Json] = ()
    versions: Sequence[DocumentVersion] = ()
    model: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> list[DocumentKey]:
        """Id and routing of each document of an index."""
        return [(name, version.routing) for name, version in zip(self.ids, self.versions, strict=True)]

    def sorted_by_id(self) -> TextCollection:
        """Return the collection in the order of its ids."""
        places = sorted(range(len(self)), key=self.ids.__getitem__)
        by_text = np.split(self.vectors, self.starts[1:])
        chosen = [by_text[place] for place in places]
        vectors = np.concatenate(chosen) if chosen else self.vectors
        starts = starts_from_counts([len(own) for own in chosen])
        ids, texts = [self.ids[place] for place in places], [self.texts[place] for place in places]
        values, versions = [self.values[place] for place in places], [self.versions[place] for place in places]
        return TextCollection(ids, texts, vectors, starts, self.skipped, values, versions, self.model)


def read_files(
    files: Sequence[str],
    encoder: Encoder,
    *,
    template: TextTemplate,
    id_field: str | None = None,
    options: FileOptions | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> TextCollection:
    """Read the texts of files and embed them; identical texts are embedded once.

    Args:
        files: Paths, patterns, addresses or `-`, in any format that `es-sbert ingest` reads.
        encoder: The encoder; its prompt for documents is used.
        template: Template of the text to embed.
        id_field: Field of the id; None names texts by file and line.
        options: Options for reading the files; None detects their formats by their names.
        on_progress: Called with the number of embedded texts, and of all texts.

    Raises:
        SourceError: a file cannot be read, or no record has the fields of the text.
    """
    read = read_file_texts(files, template=template, id_field=id_field, options=options)
    texts = read.texts
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct, done = np.empty((len(rows), encoder.info.dimensions), np.float32), 0
    for part in encoder.encode_stream(list(rows), "document"):
        begin, done = done, done + len(part.vectors)
        distinct[begin:done] = part.vectors
        on_progress(done, len(rows))
    vectors = distinct[[rows[text] for text in texts]] if len(rows) < len(texts) else distinct
    starts, model = np.arange(len(texts)), encoder.info.model
    return TextCollection(read.ids, texts, vectors, starts, read.skipped, model=model)


@check_arguments
def read_index(
    index: str,
    engine: EngineOrClient = None,
    vector_field: str = DEFAULT_VECTOR_FIELD,
    *,
    filter: Json | None = None,
    fields: Sequence[str] = (),
    on_progress: OnProgress = lambda done, total: None,
    retry_seconds: Seconds = 0.0,
) -> TextCollection:
    """Read the vectors of an index and the texts that they were made from, sorted by id.

    Usage:
        ```python
        collection = read_index("docs", "http://localhost:9200", fields=["title"])
        print(collection.values[0]["title"])
        ```

    Documents without a vector, or with a vector of a model other than the
    field's, are left out and counted.

    Args:
        index: Index or alias. The filter of an alias applies.
        engine: As for `SemanticIndex`.
        vector_field: Field that holds the vectors.
        filter: Query that every document must match; None reads all.
        fields: Further fields of each document to keep.
        on_progress: Called with the number of documents read, and of all documents.
        retry_seconds: Seconds for which requests are retried if the engine is overloaded or does not respond.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the vector field does not exist, its vectors cannot be read, or the index was replaced while it
            was read.
        EngineError: the engine failed.
    """
    retrying = retry_for(retry_seconds)
    with connected(engine, retry_seconds) as opened:
        state = retrying(lambda: require_index(opened, index))
        field = vector_field_from_state(opened, state, vector_field)
        reader, extra = TextCollectionBuilder(field, fields), doc_value_request(opened.info.engine_type, [field])
        query, size = reader.query(filter), min(_PAGE, state.result_window)
        total, done = retrying(lambda: opened.count(index, query)), 0
        for _, hits, is_rewritten in scan_index(
            opened,
            index,
            query=query,
            source_includes=reader.includes,
            page=size,
            vectors=True,
            extra=extra,
            retrying=retrying,
        ):
            reader.add(reader.without_added(hits) if is_rewritten else hits)
            done += len(hits)
            on_progress(done, max(done, total))
    # Engines return documents in any order.
    return reader.collection().sorted_by_id()


class TextCollectionBuilder:
    """Turns hits of an index into a collection.

    Args:
        vector: The field that holds the vectors.
        fields: Further fields of each document to keep.

    Attributes:
        text_fields: Fields of the text that was embedded; empty if the mapping does not say.
        includes: Parts of `_source` that hits must contain.
        skipped: Documents that were left out so far.
        vector_count: Number of vectors so far.
    """

    def __init__(self, vector: VectorField, fields: Sequence[str] = ()) -> None:
        self._vector = vector
        self._template = None if vector.meta.text is None else TextTemplate.parse(vector.meta.text)
        self._meta_field = document_meta_field(vector.name)
        self._fields = fields
        self.text_fields = () if self._template is None else self._template.fields
        parts = [vector.name, vector_path(vector.name, vector.meta), self._meta_field, *self.text_fields, *fields]
        self.includes = list(dict.fromkeys(parts))
        self.skipped = SkippedDocuments()
        self.vector_count = 0
        self._ids: list[str] = []
        self._texts: list[str] = []
        self._values: list[Json] = []
        self._versions: list[DocumentVersion] = []
        self._counts: list[int] = []
        self._vectors: list[Vectors] = []

    def query(self, filter: Json | None = None) -> Json:
        """Build a query for documents that match a filter; `matched_queries` of a hit says whether it has a vector."""
        query: Json = named_vectors_query([(self._vector.name, self._vector.meta)])
        if filter is not None:
            query["bool"]["filter"] = [filter]
        return query

    def add(self, hits: Iterable[Json]) -> None:
        """Add hits of `query`. Those without a usable vector are counted in `skipped`."""
        for hit in hits:
            source: Json = hit.get("_source") or {}
            if not hit.get("matched_queries"):
                self.skipped.add(no_vector_reason(self._vector), hit["_id"])
                continue
            meta = read_document_meta(source, self._meta_field)
            if meta is not None and meta.fingerprint != self._vector.meta.fingerprint:
                self.skipped.add(other_model_reason(self._vector), hit["_id"])
                continue
            vectors = np.stack([vector for _, _, vector in hit_vectors(hit, self._vector)])
            if not (np.isfinite(vectors).all() and vectors.any(axis=1).all()):
                self.skipped.add("its vector is zero or holds a value that is not finite", hit["_id"])
                continue
            self._ids.append(hit["_id"])
            self._texts.append(self.text_of(hit))
            self._values.append(pick_fields(source, self._fields))
            self._versions.append(document_version(hit))
            self._counts.append(len(vectors))
            self._vectors.append(vectors)
            self.vector_count += len(vectors)

    def without_added(self, hits: Iterable[Json]) -> list[Json]:
        """Keep the hits of documents that have not been added yet."""
        added = set(zip(self._ids, (version.routing for version in self._versions), strict=True))
        return [hit for hit in hits if document_key(hit) not in added]

    def text_of(self, hit: Json) -> str:
        """Return the embedded text of a hit; empty if the mapping does not say which text was embedded."""
        return "" if self._template is None else self._template.readable_text(hit.get("_source") or {})

    def collection(self) -> TextCollection:
        """Return the collection of all added hits."""
        none = np.empty((0, self._vector.meta.dimensions), np.float32)
        vectors = np.concatenate(self._vectors) if self._vectors else none
        starts, columns = starts_from_counts(self._counts), (self._values, self._versions)
        return TextCollection(self._ids, self._texts, vectors, starts, self.skipped, *columns, self._vector.meta.model)


def starts_from_counts(counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Compute the row of each text's first vector from the number of vectors per text. *Shape:* ``(texts,)``."""
    return np.cumsum([0, *counts])[:-1].astype(np.int64)


def document_version(hit: Json) -> DocumentVersion:
    """Read the version of a document from a hit."""
    return DocumentVersion(hit.get("_routing"), hit["_seq_no"], hit["_primary_term"])


def no_vector_reason(vector: VectorField) -> str:
    """The reason to leave out a document without a vector."""
    return f"it has no vector in {vector.name}"


def other_model_reason(vector: VectorField) -> str:
    """The reason to leave out a document with a vector of another model."""
    return f"its vector is from a model other than {vector.meta.model}"


def pick_fields(source: dict[str, Any], fields: Sequence[str]) -> Json:
    """Read the values of those fields that a document has; null is left out."""
    found = {field: find_field(source, field) for field in fields}
    return {field: value for field, value in found.items() if value is not MISSING and value is not None}
