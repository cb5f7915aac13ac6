"""Records become documents: id, text and hashes taken, bad ones told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from es_sbert.index.meta import document_hash
from es_sbert.index.targets import Targets, lacking_fields, text_fields, texts_of
from es_sbert.index.text import MISSING, NoText, find_field
from es_sbert.ingest.ids import BadId, document_id
from es_sbert.ingest.memory import LoadMemory, Meeting, Met
from es_sbert.ingest.outcomes import Outcomes
from es_sbert.ingest.records import Origin, Record, Reject

# Documents that the load's memory is asked about at a time: where it stands on another machine, each question travels.
_MEETINGS = 1024
_MEETING_BYTES = 1 << 20


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


@dataclass(frozen=True)
class DocumentRules:
    """How documents are taken from records.

    Attributes:
        targets: Whose texts are taken.
        id_field: Field of the id; None takes the hash of the content.
        reserved: Fields that the load writes itself and that a source may therefore not hold.
        routing: Of all documents: that of the alias which is loaded.
    """

    targets: Targets
    id_field: str | None
    reserved: tuple[str, ...]
    routing: str | None = None

    @cached_property
    def text_fields(self) -> tuple[str, ...]:
        """Fields of the texts that the load fills."""
        return text_fields(self.targets)

    @classmethod
    def of(cls, targets: Targets, id_field: str | None, routing: str | None) -> DocumentRules:
        """Rules of a load with these targets."""
        reserved = tuple(name for target in targets for name in (target.field, target.meta_field))
        return cls(targets, id_field, reserved, routing)


def document_of(record: Record, rules: DocumentRules) -> Document | Reject:
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
                return Reject(record.origin, reason, document=record.source, id=known_id)
        texts = texts_of(record.fields, rules.targets)
    except (BadId, NoText) as error:
        return Reject(record.origin, str(error), document=record.source, id=known_id)
    return Document(
        record.origin, identity, texts, record.source, content, written=record.written, routing=rules.routing
    )


def read_documents(
    records: Iterable[Record | Reject], rules: DocumentRules, memory: LoadMemory, outcomes: Outcomes
) -> Iterator[Document]:
    """Documents worth loading; all others are entered in `outcomes` with the reason.

    A repetition of a document met before is skipped. The same id with another content is a dead letter: which of the
    two is meant cannot be known. Documents without text come too: the index may hold them with one.
    """
    for group in windows(_sound(records, rules, outcomes), _MEETINGS, _MEETING_BYTES):
        known = memory.meet([Meeting(doc.id, doc.document_hash or "", doc.origin) for doc in group])
        for document, (met, first) in zip(group, known, strict=True):
            match met:
                case Met.NEW:
                    yield document
                case Met.ACKNOWLEDGED:
                    outcomes.unchanged()
                case Met.REPEATED:
                    outcomes.duplicate()
                case Met.CONTRADICTED:
                    reason = f"the id {document.id} stands in {first} already, with another content"
                    outcomes.dead(document.origin, reason, document.source, document.id)


def _sound(records: Iterable[Record | Reject], rules: DocumentRules, outcomes: Outcomes) -> Iterator[Document]:
    """Documents that can be loaded."""
    for record in records:
        outcomes.read()
        if isinstance(record, Reject):
            outcomes.reject(record)
            continue
        if record.superseded:
            outcomes.superseded(1)
            continue
        document = document_of(record, rules)
        if isinstance(document, Reject):
            outcomes.reject(document)
        else:
            outcomes.lacking(lacking_fields(record.fields, rules.text_fields))
            yield document


def windows(documents: Iterable[Document], count: int, max_bytes: int) -> Iterator[list[Document]]:
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
