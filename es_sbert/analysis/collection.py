"""Texts with their embeddings: read from files and embedded, or read from an index that holds the vectors already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Engine, Json
from es_sbert.errors import SourceError
from es_sbert.index.ensure import read_vector_field
from es_sbert.index.field_names import document_names, fields_hint
from es_sbert.index.layout import vector_path, vectors_by_name
from es_sbert.index.meta import document_meta_field, meta_object
from es_sbert.index.text import MISSING, NoText, TextTemplate, find_field
from es_sbert.index.vectors import stored_vectors
from es_sbert.ingest.ids import BadId, document_id
from es_sbert.ingest.records import Record, Reject
from es_sbert.ingest.sources.find import find_sources
from es_sbert.ingest.sources.formats import Format
from es_sbert.ingest.sources.read import read_records
from es_sbert.ingest.sources.source import ByteCounter, ReadSettings, WantedColumns
from es_sbert.printable import printable

# Documents of the index that are read in one request; with their vectors they take some megabytes.
_PAGE = 500
_MAX_RECORD_BYTES = 16 << 20


@dataclass
class Skipped:
    """Documents that were left out, by the reason.

    Attributes:
        counts: Reason → documents.
        first: Reason → the first of them, by id or `FILE:LINE`.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Leave a document out."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.first.setdefault(reason, name)

    def lines(self) -> list[str]:
        """What to say about them, one reason a line."""
        return [f"{count:,} left out: {reason} (first: {self.first[reason]})" for reason, count in self.counts.items()]


@dataclass(frozen=True)
class TextCollection:
    """Texts with their embeddings.

    Attributes:
        ids: Of each text: its id, or `FILE:LINE`.
        texts: The texts; empty where the index does not say what was embedded.
        vectors: Embeddings, those of a text one after another. *Shape:* ``(vectors, dimensions)``.
        starts: Row of each text's first vector. *Shape:* ``(texts,)``.
        skipped: What was left out.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    vectors: Vectors
    starts: NDArray[np.int64]
    skipped: Skipped

    def __len__(self) -> int:
        return len(self.ids)

    def distinct(self) -> TextCollection:
        """The collection without texts that are identical to an earlier one. Texts that are not known all stay."""
        seen: set[str] = set()
        kept: list[int] = []
        for place, text in enumerate(self.texts):
            if text and text in seen:
                self.skipped.add("its text is identical to an earlier one", self.ids[place])
                continue
            seen.add(text)
            kept.append(place)
        return self._chosen(kept)

    def sorted_by_id(self) -> TextCollection:
        """The collection in the order of its ids."""
        return self._chosen(sorted(range(len(self)), key=self.ids.__getitem__))

    def _chosen(self, places: Sequence[int]) -> TextCollection:
        ends = np.append(self.starts[1:], len(self.vectors))  # (texts,)
        counts = (ends - self.starts)[list(places)]
        rows = [np.arange(self.starts[place], ends[place]) for place in places]
        vectors = self.vectors[np.concatenate(rows)] if rows else self.vectors[:0]
        starts = np.cumsum([0, *counts])[:-1].astype(np.int64)
        return TextCollection(
            [self.ids[place] for place in places],
            [self.texts[place] for place in places],
            vectors,
            starts,
            self.skipped,
        )


def read_files(files: Sequence[str], encoder: Encoder, *, template: TextTemplate, id_field: str | None = None,
               format: Format | None = None) -> TextCollection:  # fmt: skip
    """Read the texts of files and embed them; identical texts are embedded once.

    Args:
        files: Paths, patterns, addresses or `-`, of every format that `es-sbert ingest` reads.
        encoder: What embeds, with its prompt for documents.
        template: Which text of a record is embedded.
        id_field: Field of the id; None names texts by file and line.
        format: Format of all files; None tells it from their names.

    Raises:
        SourceError: a file cannot be read, or no record has the fields of the text.
    """
    sources = find_sources(files, format)
    for source in sources:
        source.check(_MAX_RECORD_BYTES, WantedColumns(template.fields, id_field))
    settings = ReadSettings(_MAX_RECORD_BYTES, template.fields[0], retry_seconds=0)
    lost: list[str] = []
    records = read_records(sources, settings, ByteCounter(), Event(), lost.append)
    ids, texts, skipped = _texts_of(records, template, id_field)
    if lost:
        raise SourceError(lost[0], "Check the source, and run the command again.")
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = encoder.encode(list(rows), "document").vectors  # (distinct texts, dimensions)
    vectors = distinct[[rows[text] for text in texts]] if texts else distinct
    return TextCollection(ids, texts, vectors, np.arange(len(texts)), skipped)


def _texts_of(records: Iterable[Record | Reject], template: TextTemplate,
              id_field: str | None) -> tuple[list[str], list[str], Skipped]:  # fmt: skip
    """Ids and texts of records."""
    ids: list[str] = []
    texts: list[str] = []
    skipped = Skipped()
    names: dict[str, None] = {}
    read, has_field = 0, False
    for record in records:
        read += 1
        name = printable(str(record.origin))
        if isinstance(record, Reject):
            skipped.add("the record cannot be read", f"{name}: {record.reason}")
            continue
        if not has_field:
            has_field = any(find_field(record.fields, field) is not MISSING for field in template.fields)
            names |= dict.fromkeys(document_names(record.fields))
        try:
            text = template.text_of(record.fields)
            text_id = name if id_field is None else document_id(record.fields, id_field)
        except (NoText, BadId) as error:
            skipped.add(str(error), name)
            continue
        if not text or text.isspace():
            skipped.add("it has no text", name)
            continue
        ids.append(text_id)
        texts.append(text)
    if names and not has_field:
        raise SourceError(
            f"none of the {read:,} records has the text field {' or '.join(template.fields)}",
            fields_hint(template.fields, list(names), "The records have"),
        )
    return ids, texts, skipped


def read_index(engine: Engine, index: str, vector_field: str, *, filter: Json | None = None) -> TextCollection:
    """Read the vectors of an index from one point in time, and the texts that they were made from, sorted by id.

    Documents without a vector, or with one of another model than the field's, are left out and counted.

    Args:
        index: Index or alias.
        vector_field: Field that holds the vectors.
        filter: Query that every document must match; None reads all.

    Raises:
        IndexMissing: no such index.
        IndexMismatch: no such vector field.
        EngineError: the engine failed.
    """
    vector = read_vector_field(engine, index, vector_field)
    template = None if vector.meta.text is None else TextTemplate.parse(vector.meta.text)
    meta_field = document_meta_field(vector.name)
    includes = [vector.name, vector_path(vector.name, vector.meta), meta_field]
    if template is not None:
        includes += template.fields
    query: Json = vectors_by_name([(vector.name, vector.meta)])
    if filter is not None:
        query["bool"]["filter"] = [filter]
    ids: list[str] = []
    texts: list[str] = []
    counts: list[int] = []
    vectors: list[Vectors] = []
    skipped = Skipped()
    for page in engine.scan(vector.index, query=query, source_includes=list(dict.fromkeys(includes)), page=_PAGE,
                            vectors=True):  # fmt: skip
        rows: list[Vectors] = []
        for hit in page:
            source: Json = hit.get("_source") or {}
            if not hit.get("matched_queries"):
                skipped.add(f"it has no vector in {vector.name}", hit["_id"])
                continue
            meta = meta_object(source, meta_field)
            if meta is not None and meta.get("fingerprint") != vector.meta.fingerprint:
                skipped.add(f"its vector is of another model than {vector.meta.model}", hit["_id"])
                continue
            own = [stored for _, _, stored in stored_vectors(find_field(source, vector.name), 0)]
            ids.append(hit["_id"])
            texts.append(_text_in(source, template))
            counts.append(len(own))
            rows += own
        if rows:
            vectors.append(np.stack(rows))
    starts = np.cumsum([0, *counts])[:-1].astype(np.int64)
    joined = np.concatenate(vectors) if vectors else np.empty((0, vector.meta.dimensions), np.float32)
    # Engines give documents in any order.
    return TextCollection(ids, texts, joined, starts, skipped).sorted_by_id()


def _text_in(source: dict[str, Any], template: TextTemplate | None) -> str:
    try:
        return "" if template is None else template.text_of(source) or ""
    except NoText:
        return ""
