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
    """Records of all sources, read once: a pipe or a query gives them only once.

    Args:
        sources: What is read.
        settings: How.
        control: Says when to stop, and is told of a source that does not answer any more.

    Attributes:
        counter: How much of the sources was read.
    """

    def __init__(self, sources: Sequence[DocumentSource], settings: ReadSettings, control: LoadControl) -> None:
        self.counter = ByteCounter()
        self._records: Generator[Record | RejectedRecord] = read_records(
            sources, settings, self.counter, control.stop, control.truncate
        )
        self._peeked: list[Record | RejectedRecord] = []

    @property
    def peeked(self) -> list[dict[str, Any]]:
        """The objects among the first records that were looked at; none once the stream is read."""
        return [record.fields for record in self._peeked if isinstance(record, Record)]

    def peek(self) -> Iterator[Record | RejectedRecord]:
        """The first records, as many as are taken; iterating over the stream gives them again."""
        yield from self._peeked
        for record in self._records:
            self._peeked.append(record)
            yield record

    def __iter__(self) -> Iterator[Record | RejectedRecord]:
        peeked, self._peeked = self._peeked, []
        return chain(peeked, self._records)

    def close(self) -> None:
        """Let go of the source: its file, or its connection to a database."""
        self._records.close()


# Documents that the load's memory is asked about at a time: where it stands on another machine, each question travels.
_LOOKUP_DOCUMENTS = 1024
_LOOKUP_BYTES = 1 << 20


class Document(NamedTuple):
    """A document on its way to the engine.

    Attributes:
        origin: Where it stands in the source.
        id: Its id.
        texts: The text of each of the load's targets; empty where there is none.
        source: The document as JSON in one line (of a document of the index: the part that was read).
        document_hash: Hash of the whole document; None for documents embedded where they stand.
        version: `_seq_no` and `_primary_term` of the version that was read; None for documents of files.
        written: When it was the document's last word; a later one in the index stays. None: now.
        stale: Of a document of the index: the targets, by number, whose vector is not the one that belongs there.
        routing: What chooses its shard, where that is not the id.
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
        """Bytes that it holds in memory, roughly: the texts are part of the source."""
        return 2 * len(self.source) + 512

    def rejected(self, reason: str) -> RejectedRecord:
        """The dead letter of the document; of an update it holds only a part."""
        return RejectedRecord(self.origin, reason, document=self.source, id=self.id, partial=self.version is not None)


@dataclass(frozen=True)
class DocumentRules:
    """How documents are taken from records.

    Attributes:
        targets: Whose texts are taken.
        id_field: Field of the id; None takes the hash of the content.
        reserved: Fields that the load writes itself and that a source may therefore not hold.
        routing: Of all documents: that of the alias which is loaded.
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

    A document that cannot be loaded becomes a reject with the reason.
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
    """Vector fields that a document of the index loses, because it lost their text."""
    return [targets[number].field for number in document.stale if not document.texts[number]]


@dataclass(frozen=True, slots=True)
class DocumentAction:
    """One action of a bulk request.

    Attributes:
        document: What it writes.
        body: The action's line and the line of its document, each with a line feed.
        outcome: How the document ends when the engine takes the action.
        lost_tokens: Tokens of its text that the model does not read.
        embedded_at: `embedded_at` of its vector; empty where it gets none.
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
    """Write the whole document: its own bytes, the vectors and the objects beside them put at the end."""
    head = orjson.dumps({"index": _action_metadata(document)})
    return b"".join((head, b"\n", append_members(document.source, vector_members(fields)), b"\n"))


def update_action(document: Document, fields: Sequence[VectorFieldValue], cleared: Sequence[str]) -> bytes:
    """Change vectors of a document of the index, unless it was written since it was read.

    Args:
        cleared: Vector fields whose text the document has lost; they and the objects beside them are taken away.

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
