"""Read the documents of a load: the records of its sources, and the documents made from them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from es_sbert.batched import slice_by_size
from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import (
    EmbeddingTargets,
    absent_fields,
    document_hash,
    target_text_fields,
    target_texts,
)
from es_sbert.index.text_template import MISSING, TextFieldError, find_field
from es_sbert.index.whole_documents import WholeDocument
from es_sbert.ingest.checkpoint import LoadCheckpoint, SeenRecord, SeenStatus
from es_sbert.ingest.ledger import DocumentOutcome, OutcomeRecorder
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.sources.document_source import (
    METADATA_ID,
    ByteCounter,
    DocumentSource,
    InvalidId,
    Origin,
    ReadSettings,
    Record,
    RejectedRecord,
    document_id,
    document_routing,
    metadata_id_field,
    read_records,
)
from es_sbert.io.json_text import remove_members
from es_sbert.messages import setting


class RecordStream:
    """The records of all sources, read once: a pipe yields them only once.

    Args:
        control: Stops the reading.

    Attributes:
        counter: Bytes read from the sources.
    """

    def __init__(self, sources: Sequence[DocumentSource], settings: ReadSettings, control: LoadControl) -> None:
        self.counter = ByteCounter()
        self._records: Generator[Record | RejectedRecord] = read_records(
            sources, settings, self.counter, control.stop_reading
        )
        self._peeked: list[Record | RejectedRecord] = []

    @property
    def peeked(self) -> list[dict[str, Any]]:
        """The objects among the first records; none once the stream is read."""
        return [record.fields for record in self._peeked if isinstance(record, Record)]

    @property
    def has_unused_ids(self) -> bool:
        """Whether all of the first records have a field `id` and no other id."""
        return bool(self._peeked) and all(
            isinstance(each, Record) and each.id is None and "id" in each.fields for each in self._peeked
        )

    def peek(self) -> Iterator[Record | RejectedRecord]:
        """Yield the first records, as many as the caller reads; iterating over the stream yields them again."""
        yield from self._peeked
        for record in self._records:
            self._peeked.append(record)
            yield record

    def __iter__(self) -> Iterator[Record | RejectedRecord]:
        peeked, self._peeked = self._peeked, []
        return chain(peeked, self._records)

    def close(self) -> None:
        """Close the source."""
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
        written: Time of a dead letter; a newer version in the index wins. None if it is not a dead letter.
        stale: For a document of the index, the numbers of the targets without a current vector.
        routing: The custom routing value.
        whole: The whole document of the index, if a partial update would change other fields of it.
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
    whole: WholeDocument | None = None

    @property
    def key(self) -> DocumentKey:
        """Id and routing."""
        return self.id, self.routing

    @property
    def hit(self) -> Json:
        """Id, routing and version of a document of the index, as a hit of a search has them."""
        assert self.version is not None, "documents of files have no version"
        number, term = self.version
        return {"_id": self.id, "_routing": self.routing, "_seq_no": number, "_primary_term": term}

    @property
    def size(self) -> int:
        """Approximate bytes in memory: the texts are part of the source."""
        return 2 * len(self.source) + 512

    def rejected(self, reason: str) -> RejectedRecord:
        """Create the dead letter of the document; that of a document from the index holds only a part of it."""
        rejected = RejectedRecord(self.origin, reason, document=self.source, id=self.id, routing=self.routing)
        return rejected if self.version is None else replace(rejected, partial=True, seq_no=self.version[0])


@dataclass(frozen=True)
class DocumentRules:
    """The rules that turn records into documents.

    Attributes:
        targets: The targets whose texts are read.
        id_field: Field of the id; None uses the hash of the content.
        routing: The routing of all documents: that of the alias.
        routing_field: Field of the routing of each document; None for no field.
        metadata_fields: See `EngineInfo.metadata_fields`.
        join_fields: Join fields of the index: a document with a parent there needs a routing.
    """

    targets: EmbeddingTargets
    id_field: str | None
    routing: str | None = None
    routing_field: str | None = None
    metadata_fields: frozenset[str] = frozenset()
    join_fields: tuple[str, ...] = ()

    @cached_property
    def text_fields(self) -> tuple[str, ...]:
        """Fields of the texts that the load fills."""
        return target_text_fields(self.targets)

    @cached_property
    def reserved(self) -> tuple[str, ...]:
        """Fields that the load writes itself, and that records may not have."""
        return tuple(name for target in self.targets for name in (target.field, target.meta_field))

    @cached_property
    def removed(self) -> frozenset[str]:
        """Metadata fields that a document brings as its id and its routing: they do not become part of its source."""
        heads = {name.partition(".")[0] for name in (self.id_field, self.routing_field) if name is not None}
        return self.metadata_fields & heads & {METADATA_ID, _ROUTING}

    def own_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a document that are not metadata fields."""
        return {name: value for name, value in fields.items() if name.partition(".")[0] not in self.metadata_fields}

    def metadata_names(self, fields: Mapping[str, Any]) -> list[str]:
        """The metadata fields that a document has, except those that are removed."""
        # Nearly all documents have no such field.
        names = [
            head for name in fields if name[:1] == "_" and (head := name.partition(".")[0]) in self.metadata_fields
        ]
        return [name for name in dict.fromkeys(names) if name not in self.removed]

    def metadata_remedy(self, name: str, value: Any) -> str:
        """The remedy for a metadata field, as the end of a sentence.

        Args:
            value: Its value in a document; `MISSING` if its name has a dot.
        """
        if name == METADATA_ID and self.id_field is None:
            return f"for the id of the document, set {setting('id_field', metadata_id_field(value))}"
        if name == _ROUTING and self.routing_field is None:
            return f"for the routing of the document, set {setting('routing_field', name)}"
        if name == "_source":
            return "load its content as the document"
        return "remove it from the documents"


_ROUTING = "_routing"


def to_document(record: Record, rules: DocumentRules) -> Document | RejectedRecord:
    """Convert a record to a document, whose texts may be empty.

    A record that cannot be loaded is rejected with the reason.
    """
    fields, source = record.fields, record.source
    known_id, routing = record.id, rules.routing if record.routing is None else record.routing
    try:
        if rules.id_field is not None and record.id is None:
            known_id = document_id(record, rules.id_field)
        if rules.routing_field is not None and record.routing is None:
            routing = document_routing(record, rules.routing_field)
        if rules.removed:
            names = {name for name in fields if name.partition(".")[0] in rules.removed}
            fields = {name: value for name, value in fields.items() if name not in names}
            source = remove_members(source, names) if names else source
        _check_fields(fields, rules)
        if rules.join_fields and routing is None:
            _check_parents(fields, rules)
        texts = target_texts(fields, rules.targets)
    except (InvalidId, TextFieldError) as error:
        return RejectedRecord(record.origin, str(error), document=source, id=known_id, routing=routing)
    content = document_hash(fields)
    return Document(record.origin, known_id or content, texts, source, content, written=record.written, routing=routing)


def _check_fields(fields: Mapping[str, Any], rules: DocumentRules) -> None:
    """Reject fields that the load writes itself, and those that engines refuse in a document.

    Raises:
        InvalidId: the document has such a field.
    """
    for name in rules.reserved:
        if find_field(fields, name) is not MISSING:
            raise InvalidId(f"the document already has a field {name}, which this load would overwrite")
    for name in rules.metadata_names(fields):
        remedy = rules.metadata_remedy(name, fields.get(name, MISSING))
        raise InvalidId(
            f"the document has the field {name}, a metadata field that engines refuse in documents: {remedy}"
        )


def _check_parents(fields: Mapping[str, Any], rules: DocumentRules) -> None:
    """Reject a child without a routing, as engines do, because it must be in the shard of its parent.

    Raises:
        InvalidId: the document has a parent.
    """
    for name in rules.join_fields:
        parent = f"{name}.parent"
        if find_field(fields, parent) is not MISSING:
            raise InvalidId(
                f"the document has a parent in the join field {name} but no routing, which must be that of its parent: "
                f"set {setting('routing_field', parent)}"
            )


def read_documents(
    records: Iterable[Record | RejectedRecord],
    rules: DocumentRules,
    checkpoint: LoadCheckpoint,
    outcomes: OutcomeRecorder,
) -> Iterator[Document]:
    """Yield the documents to load; the outcome of all others is recorded.

    A repeated document is skipped. The same id with different content or routing is a dead letter, because it is
    unknown which of the two is right. Documents without text are included, because the index may hold an earlier
    version with text.
    """
    for group in document_windows(_valid_documents(records, rules, outcomes), _LOOKUP_DOCUMENTS, _LOOKUP_BYTES):
        seen = checkpoint.record_seen(
            [SeenRecord(doc.id, doc.document_hash or "", doc.origin, doc.routing) for doc in group]
        )
        for document, (status, first) in zip(group, seen, strict=True):
            match status:
                case SeenStatus.NEW:
                    yield document
                case SeenStatus.ACKNOWLEDGED:
                    outcomes.add(DocumentOutcome.UNCHANGED)
                case SeenStatus.REPEATED:
                    outcomes.add(DocumentOutcome.DUPLICATE)
                case SeenStatus.CONTRADICTED:
                    other = "different content" if rules.routing_field is None else "different content or routing"
                    reason = f"the id {document.id} was read before, in {first}, with {other}"
                    outcomes.record_dead_letter(document.rejected(reason))


def _valid_documents(
    records: Iterable[Record | RejectedRecord], rules: DocumentRules, outcomes: OutcomeRecorder
) -> Iterator[Document]:
    """Yield the documents that can be loaded; the outcome of all others is recorded."""
    for record in records:
        outcomes.record_read()
        if isinstance(record, RejectedRecord):
            outcomes.record_dead_letter(record, is_document=False)
            continue
        if record.superseded:
            outcomes.add(DocumentOutcome.SUPERSEDED)
            continue
        document = to_document(record, rules)
        if isinstance(document, RejectedRecord):
            outcomes.record_dead_letter(document, is_document=False)
        else:
            absent = absent_fields(record.fields, rules.text_fields)
            if absent:
                outcomes.ledger.add_missing_fields(absent)
            yield document


def document_windows(documents: Iterable[Document], count: int, max_bytes: int) -> Iterator[list[Document]]:
    """Group documents: at most `count`, and roughly at most `max_bytes`, unless a single document is larger."""
    return slice_by_size(documents, lambda document: document.size, max_bytes, count)


def cleared_fields(document: Document, targets: EmbeddingTargets) -> list[str]:
    """Vector fields to remove from a document of the index, because it lost their text."""
    return [targets[number].field for number in document.stale if not document.texts[number]]
