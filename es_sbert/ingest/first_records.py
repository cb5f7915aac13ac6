"""The first records of a source, and the documents that a load would make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Any

from es_sbert.engines.engine_info import EngineInfo
from es_sbert.index.document_vectors import EmbeddingTarget, kept_targets
from es_sbert.index.mapping import VectorFieldMeta, vector_fields
from es_sbert.index.text_template import MISSING, document_field_names, find_field
from es_sbert.ingest.load_plan import LoadPlan, PlannedField
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.read_documents import Document, DocumentRules, to_document
from es_sbert.ingest.records import Record, RejectedRecord

# Maximum records of a source that are read to find a document that can be loaded and every field of the text. As a
# rule, the first record has all of them, and no more are read.
MOST_RECORDS = 1000
MOST_BYTES = 16 << 20
# Documents whose field names are listed in a message.
_NAMED_DOCUMENTS = 100
_BULK_ACTIONS = frozenset({"index", "create", "update", "delete"})
_BULK_PARAMETERS = frozenset({
    "_id", "_index", "_routing", "_source", "_type", "_version", "dynamic_templates", "if_primary_term", "if_seq_no",
    "list_executed_pipelines", "op_type", "parent", "pipeline", "require_alias", "require_data_stream",
    "retry_on_conflict", "routing", "version", "version_type",
})  # fmt: skip


@dataclass
class FirstRecords:
    """The first records of a source, and the documents that a load would make of them.

    Attributes:
        rules: Rules that turn records into documents.
        records: The records.
        documents: Documents that can be loaded, or have no text.
        rejects: Records that cannot be loaded, with the reason.
    """

    rules: DocumentRules
    records: list[Record | RejectedRecord] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    rejects: list[RejectedRecord] = field(default_factory=list)
    _present: set[str] = field(default_factory=set)
    _has_routing: bool = False

    def add(self, record: Record | RejectedRecord) -> None:
        """Examine the next record."""
        self.records.append(record)
        if isinstance(record, RejectedRecord):
            self.rejects.append(record)
            return
        self._present |= {name for name in self.missing if find_field(record.fields, name) is not MISSING}
        routing_field = self.rules.routing_field
        self._has_routing |= routing_field is not None and find_field(record.fields, routing_field) is not MISSING
        document = to_document(record, self.rules)
        if isinstance(document, RejectedRecord):
            self.rejects.append(document)
        else:
            self.documents.append(document)

    @property
    def missing(self) -> list[str]:
        """Fields of the texts that no record has; null counts as present."""
        return [name for name in self.rules.text_fields if name not in self._present]

    @property
    def may_lack_routing(self) -> bool:
        """Whether later records may be children in a join field, whose routing is not given."""
        rules = self.rules
        return bool(rules.join_fields) and rules.routing is None and rules.routing_field is None

    @property
    def lacks_routing(self) -> bool:
        """Whether there is a field of the routing that no record has; null counts as present."""
        return self.rules.routing_field is not None and not self._has_routing

    @property
    def has_text(self) -> bool:
        """Whether one of the documents has a text to embed."""
        filled = [target.filled for target in self.rules.targets]
        return any(any(compress(document.texts, filled)) for document in self.documents)

    def documents_as_json(self) -> Iterator[dict[str, Any]]:
        """The fields of the records that are objects."""
        return (record.fields for record in self.records if isinstance(record, Record))

    def field_names(self) -> list[str]:
        """Names of the fields that the first documents have, in their order."""
        documents = islice(self.documents_as_json(), _NAMED_DOCUMENTS)
        return list(dict.fromkeys(name for fields in documents for name in document_field_names(fields)))


def planned_document_rules(plan: LoadPlan, info: EngineInfo) -> DocumentRules:
    """The rules that turn records into documents, as known before a model is loaded."""
    state = plan.state
    targets = tuple(EmbeddingTarget(field.field, field.template, _provisional_meta(field)) for field in plan.fields)
    if state is not None:
        targets += kept_targets(vector_fields(state.mappings, state.name), [target.field for target in targets])
    return plan.document_rules(targets, info, state)


def _provisional_meta(field: PlannedField) -> VectorFieldMeta:
    return field.stored or VectorFieldMeta(
        fingerprint="", model="", dimensions=0, index_type="", passages=field.chunk_rules
    )


def read_first_records(
    plan: LoadPlan, info: EngineInfo, records: Iterator[Record | RejectedRecord], control: LoadControl
) -> FirstRecords:
    """Read the first records: until one has a text, and every field of the text and the routing was found."""
    first = FirstRecords(planned_document_rules(plan, info))
    size = 0
    for record in records:
        first.add(record)
        size += len(record.source) if isinstance(record, Record) else 0
        if len(first.records) >= MOST_RECORDS or size >= MOST_BYTES or control.stop_reading.is_set():
            break
        is_action = len(first.records) == 1 and isinstance(record, Record) and is_bulk_action(record.fields)
        is_routed = not first.lacks_routing and not first.may_lack_routing
        if first.has_text and not first.missing and is_routed and not is_action:
            break
    return first


def is_bulk_action(fields: Mapping[str, Any]) -> bool:
    """Whether an object is the action of a `_bulk` body, such as `{"index": {"_id": "1"}}`."""
    if len(fields) != 1:
        return False
    [(action, parameters)] = fields.items()
    return action in _BULK_ACTIONS and isinstance(parameters, dict) and parameters.keys() <= _BULK_PARAMETERS
