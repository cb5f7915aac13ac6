"""Documents of a load: made from the records of a source, and written as lines of a bulk request."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    VectorFieldValue,
    absent_fields,
    append_members,
    document_hash,
    json_bytes,
    target_text_fields,
    target_texts,
    vector_members,
)
from es_sbert.index.text_template import MISSING, TextFieldError, find_field
from es_sbert.ingest.checkpoint import LoadCheckpoint, SeenRecord, SeenStatus
from es_sbert.ingest.ledger import DocumentOutcome, OutcomeRecorder
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.ingest.records import InvalidId, Origin, Record, RejectedRecord, document_id
from es_sbert.ingest.sources.document_source import ByteCounter, DocumentSource, ReadSettings, read_records


class RecordStream:
    """The records of all sources, read once: a pipe or a query yields them only once.

    Args:
        control: Stops the reading; the stream truncates the load if a source fails.

    Attributes:
        counter: Bytes read from the sources.
    """

    def __init__(self, sources: Sequence[DocumentSource], settings: ReadSettings, control: LoadControl) -> None:
        self.counter = ByteCounter()
        self._records: Generator[Record | RejectedRecord] = read_records(
            sources, settings, self.counter, control.stop, control.truncate
        )
        self._peeked: list[Record | RejectedRecord] = []

    @property
    def peeked(self) -> list[dict[str, Any]]:
        """The objects among the first records; none once the stream is read."""
        return [record.fields for record in self._peeked if isinstance(record, Record)]

    def peek(self) -> Iterator[Record | RejectedRecord]:
        """The first records, as many as the caller reads; iterating over the stream yields them again."""
        yield from self._peeked
        for record in self._records:
            self._peeked.append(record)
            yield record

    def __iter__(self) -> Iterator[Record | RejectedRecord]:
        peeked, self._peeked = self._peeked, []
        return chain(peeked, self._records)

    def close(self) -> None:
        """Close the source: its file, or its database connection."""
        self._records.close()


# Documents recorded in the checkpoint at a time: in a distributed load, each call goes to another machine.
_LOOKUP_DOCUMENTS = 1024
_LOOKUP_BYTES = 1 << 20


class Document(NamedTuple):
    """A document to be embedded and written.

    Attributes:
        origin: Its place in the source.
        id: Its id.
        texts: The text of each target; empty if there is none.
        source: The document as one line of JSON; of a document of the index, the fields that were read.
        document_hash: Hash of the whole document; None for documents of the index.
        version: `_seq_no` and `_primary_term` of the version that was read; None for documents of files.
        written: Of a dead letter: when it was written; a newer version in the index wins. None for now.
        stale: Of a document of the index: the targets, by number, that have no current vector.
        routing: The custom routing value.
    """

    origin: Origin
    id: str
    texts: tuple[str, ...]
    source: bytes
    document_hash: str | None
    version: tuple[int, int] | None = None
    written: str | None = None
    stale: tuple[int, ...] = ()
    routing: str | None = None

    @property
    def size(self) -> int:
        """Approximate bytes in memory: the texts are part of the source."""
        return 2 * len(self.source) + 512

    def rejected(self, reason: str) -> RejectedRecord:
        """The dead letter of the document; of an update it holds only a part."""
        return RejectedRecord(self.origin, reason, document=self.source, id=self.id, partial=self.version is not None)


@dataclass(frozen=True)
class DocumentRules:
    """How records become documents.

    Attributes:
        targets: The targets whose texts are read.
        id_field: Field of the id; None uses the hash of the content.
        reserved: Fields that the load writes itself, and that records may not have.
        routing: The routing of all documents: that of the alias.
    """

    targets: EmbeddingTargets
    id_field: str | None
    reserved: tuple[str, ...]
    routing: str | None = None

    @cached_property
    def text_fields(self) -> tuple[str, ...]:
        """Fields of the texts that the load fills."""
        return target_text_fields(self.targets)

    @classmethod
    def of(cls, targets: EmbeddingTargets, id_field: str | None, routing: str | None) -> DocumentRules:
        """Rules of a load with these targets."""
        reserved = tuple(name for target in targets for name in (target.field, target.meta_field))
        return cls(targets, id_field, reserved, routing)


def to_document(record: Record, rules: DocumentRules) -> Document | RejectedRecord:
    """The document of a record; its texts may be empty.

    A record that cannot be loaded is rejected with the reason.
    """
    content = document_hash(record.fields)
    identity = record.id or content
    known_id = record.id
    try:
        if rules.id_field is not None and record.id is None:
            identity = known_id = document_id(record.fields, rules.id_field)
        for field in rules.reserved:
            if find_field(record.fields, field) is not MISSING:
                reason = f"the document already has a field {field}, which this load would overwrite"
                return RejectedRecord(record.origin, reason, document=record.source, id=known_id)
        texts = target_texts(record.fields, rules.targets)
    except (InvalidId, TextFieldError) as error:
        return RejectedRecord(record.origin, str(error), document=record.source, id=known_id)
    return Document(
        record.origin, identity, texts, record.source, content, written=record.written, routing=rules.routing
    )


def read_documents(
    records: Iterable[Record | RejectedRecord],
    rules: DocumentRules,
    checkpoint: LoadCheckpoint,
    outcomes: OutcomeRecorder,
) -> Iterator[Document]:
    """Documents to load; the outcome of all others is recorded.

    A repeated document is skipped. The same id with another content is a dead letter: which of the two is meant cannot
    be known. Documents without text are included, because the index may hold an earlier version with text.
    """
    for group in document_windows(_valid_documents(records, rules, outcomes), _LOOKUP_DOCUMENTS, _LOOKUP_BYTES):
        seen = checkpoint.record_seen([SeenRecord(doc.id, doc.document_hash or "", doc.origin) for doc in group])
        for document, (status, first) in zip(group, seen, strict=True):
            match status:
                case SeenStatus.NEW:
                    yield document
                case SeenStatus.ACKNOWLEDGED:
                    outcomes.add(DocumentOutcome.UNCHANGED)
                case SeenStatus.REPEATED:
                    outcomes.add(DocumentOutcome.DUPLICATE)
                case SeenStatus.CONTRADICTED:
                    reason = f"the id {document.id} was read before, in {first}, with another content"
                    outcomes.record_dead_letter(document.rejected(reason))


def _valid_documents(
    records: Iterable[Record | RejectedRecord], rules: DocumentRules, outcomes: OutcomeRecorder
) -> Iterator[Document]:
    """Documents that can be loaded."""
    for record in records:
        outcomes.record_read()
        if isinstance(record, RejectedRecord):
            outcomes.record_rejected(record)
            continue
        if record.superseded:
            outcomes.add(DocumentOutcome.SUPERSEDED)
            continue
        document = to_document(record, rules)
        if isinstance(document, RejectedRecord):
            outcomes.record_rejected(document)
        else:
            outcomes.ledger.add_missing_fields(absent_fields(record.fields, rules.text_fields))
            yield document


def document_windows(documents: Iterable[Document], count: int, max_bytes: int) -> Iterator[list[Document]]:
    """Groups of at most `count` documents and roughly at most `max_bytes` (a larger document goes alone)."""
    group: list[Document] = []
    size = 0
    for document in documents:
        if group and (len(group) == count or size + document.size > max_bytes):
            yield group
            group, size = [], 0
        group.append(document)
        size += document.size
    if group:
        yield group


def cleared_fields(document: Document, targets: EmbeddingTargets) -> list[str]:
    """Vector fields to remove from a document of the index, because it lost their text."""
    return [targets[number].field for number in document.stale if not document.texts[number]]


@dataclass(frozen=True, slots=True)
class DocumentAction:
    """One action of a bulk request.

    Attributes:
        document: The document that it writes.
        body: The line of the action and the line of the document, each with a line feed.
        outcome: The outcome of the document if the engine takes the action.
        lost_tokens: Tokens of its text that the model does not read.
        embedded_at: `embedded_at` of its vector; empty if it gets none.
        fields: The vector fields that it writes.
        passages: Passages among the new vectors.
    """

    document: Document
    body: bytes
    outcome: DocumentOutcome
    lost_tokens: int
    embedded_at: str
    fields: tuple[VectorFieldValue, ...] = ()
    passages: int = 0


def index_action(document: Document, fields: Sequence[VectorFieldValue]) -> bytes:
    """Index the whole document: its own bytes, with the vectors and their metadata appended."""
    head = orjson.dumps({"index": _action_metadata(document)})
    return b"".join((head, b"\n", append_members(document.source, vector_members(fields)), b"\n"))


def update_action(document: Document, fields: Sequence[VectorFieldValue], cleared: Sequence[str]) -> bytes:
    """Update the vectors of a document of the index, unless it was written since it was read.

    Args:
        cleared: Vector fields whose text the document has lost; they and their metadata are removed.

    Raises:
        ValueError: the document was not read from an index.
    """
    if document.version is None:
        raise ValueError(f"{document.origin} has no version to update")
    sequence, term = document.version
    head = _action_metadata(document) | {"if_seq_no": sequence, "if_primary_term": term}
    partial = json_bytes(vector_members(fields, cleared))
    return b"".join((orjson.dumps({"update": head}), b'\n{"doc":', partial, b"}\n"))


def _action_metadata(document: Document) -> Json:
    head: Json = {"_id": document.id}
    return head if document.routing is None else head | {"routing": document.routing}


def split_in_half(actions: list[DocumentAction]) -> tuple[list[DocumentAction], list[DocumentAction]]:
    """Two groups of about the same number of bytes, neither of them empty.

    Args:
        actions: At least two.
    """
    total = sum(len(action.body) for action in actions)
    size = 0
    for count, action in enumerate(actions[:-1], 1):
        size += len(action.body)
        if 2 * size >= total:
            return actions[:count], actions[count:]
    return actions[:-1], actions[-1:]
