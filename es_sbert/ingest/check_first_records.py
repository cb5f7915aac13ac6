"""Check the first records of a load before anything is written.

A wrong format or a misspelled field name stops the load here, with a remedy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, islice
from typing import Any, NoReturn

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import RetryPolicy, with_retries
from es_sbert.errors import AccessDenied, SourceError
from es_sbert.index.derived_fields import derived_fields, is_within
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets, kept_targets
from es_sbert.index.load_checks import check_strict_mapping
from es_sbert.index.mapping import VectorFieldMeta, exists_query, has_vector_query, vector_fields
from es_sbert.index.text_template import (
    MISSING,
    document_field_names,
    fields_hint,
    find_field,
    mapping_field_names,
)
from es_sbert.ingest.dead_letters import pending_dead_letters
from es_sbert.ingest.ledger import ErrorReasons
from es_sbert.ingest.load_plan import LoadPlan, PlannedField
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.read_documents import (
    HAS_RESERVED_FIELD,
    UNROUTED_CHILD,
    Document,
    DocumentRules,
    RecordStream,
    to_document,
)
from es_sbert.ingest.sources.document_source import Origin, Record, RejectedRecord, read_records
from es_sbert.ingest.sources.file_sources import FileSource
from es_sbert.io.json_numbers import dump_object
from es_sbert.messages import pluralize, setting_text

# Maximum records of a source that are read to find a document that can be loaded and every field of the text. As a
# rule, the first record has all of them, and no more are read.
_MOST_RECORDS = 1000
_MOST_BYTES = 16 << 20
# Documents whose field names are listed in a message.
_NAMED_DOCUMENTS = 100
# Limits for the search for a missing field in further files: records per file, and number of files.
_FURTHER_RECORDS, _FURTHER_FILES = 100, 32
# Documents of the index that are searched for a field, and those whose fields are listed in a message.
_SAMPLE, _LISTED = 100, 10
_BULK_ACTIONS = frozenset({"index", "create", "update", "delete"})
_BULK_PARAMETERS = frozenset({
    "_id", "_index", "_routing", "_source", "_type", "_version", "dynamic_templates", "if_primary_term", "if_seq_no",
    "list_executed_pipelines", "op_type", "parent", "pipeline", "require_alias", "require_data_stream",
    "retry_on_conflict", "routing", "version", "version_type",
})  # fmt: skip
_DOCUMENTS_HAVE = "The documents have"
_CORRECT = "Correct the source and run the command again."
_TEXT_REMEDY = "Name the fields of the text with `text_fields` or `text_template`."
_RESERVED_REMEDY = "Set `vector_field` to a different name, or leave the field out."
# `SemanticIndex.add` has neither of these settings.
_PYTHON_TEXT_REMEDY = "Put the text there, or create the index with other text_fields or another text_template."
_PYTHON_RESERVED_REMEDY = "Leave the field out, or create the index with another vector_field."


@dataclass
class FirstRecords:
    """The first records of a source, and the documents that a load would make of them.

    Attributes:
        rules: Rules that turn records into documents.
        from_python: Whether the records come from `SemanticIndex.add`.
        records: The records.
        documents: Documents that can be loaded, or have no text.
        rejects: Records that cannot be loaded, with the reason.
    """

    rules: DocumentRules
    from_python: bool = False
    records: list[Record | RejectedRecord] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    rejects: list[RejectedRecord] = field(default_factory=list)
    _present: set[str] = field(default_factory=set)

    def add(self, record: Record | RejectedRecord) -> None:
        """Examine the next record."""
        self.records.append(record)
        if isinstance(record, RejectedRecord):
            self.rejects.append(record)
            return
        names = [*self.missing, str(self.rules.routing_field)]
        self._present |= {name for name in names if find_field(record.fields, name) is not MISSING}
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
        return self.rules.routing_field is not None and self.rules.routing_field not in self._present

    @property
    def has_text(self) -> bool:
        """Whether one of the documents has a text to embed."""
        filled = [target.filled for target in self.rules.targets]
        return any(any(compress(document.texts, filled)) for document in self.documents)

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The fields of the records that are objects."""
        return [record.fields for record in self.records if isinstance(record, Record)]

    def field_names(self) -> list[str]:
        """Names of the fields that the first documents have, in their order."""
        documents = self.objects[:_NAMED_DOCUMENTS]
        return list(dict.fromkeys(name for fields in documents for name in document_field_names(fields)))


def planned_document_rules(plan: LoadPlan, info: EngineInfo) -> DocumentRules:
    """The rules that turn records into documents, as known before a model is loaded."""
    state = plan.state
    targets: EmbeddingTargets = ()
    for planned in plan.fields:
        passages = planned.chunk_rules
        new = VectorFieldMeta(fingerprint="", model="", dimensions=0, index_type="", passages=passages)
        targets += (EmbeddingTarget(planned.field, planned.template, planned.stored or new),)
    if state is not None:
        targets += kept_targets(vector_fields(state.mappings, state.name), [target.field for target in targets])
    return plan.document_rules(targets, info, state)


def read_first_records(
    plan: LoadPlan, info: EngineInfo, records: Iterator[Record | RejectedRecord], control: LoadControl
) -> FirstRecords:
    """Read the first records: until one has a text, and every field of the text and the routing was found."""
    from_python = any(source.from_python for source in plan.sources)
    first = FirstRecords(planned_document_rules(plan, info), from_python)
    size = 0
    for record in records:
        first.add(record)
        size += len(record.source) if isinstance(record, Record) else 0
        if len(first.records) >= _MOST_RECORDS or size >= _MOST_BYTES or control.stop_reading.is_set():
            break
        is_action = len(first.records) == 1 and isinstance(record, Record) and _is_bulk_action(record.fields)
        is_routed = not first.lacks_routing and not first.may_lack_routing
        if first.has_text and not first.missing and is_routed and not is_action:
            break
    return first


@contextmanager
def check_first_records(engine: Engine, plan: LoadPlan, control: LoadControl) -> Iterator[RecordStream | None]:
    """Check that the first documents can be loaded and that the fields of their text exist.

    Args:
        control: Stops the load from outside.

    Yields:
        The records of the sources, until the block ends; None for documents of the index, and for dead letters that are
        loaded, since they are quarantined first.

    Raises:
        SourceError: no document can be loaded, or a field of the text is neither in a document nor in the mapping.
        EngineError: the engine failed.
    """
    if plan.settings.only_lacking:
        yield None  # a migration must not stop because of problems that the old index already has
    elif not plan.sources:
        _check_with_retries(plan, control, lambda: _check_index(engine, plan))
        yield None
    elif plan.settings.retry is not None:
        with closing(RecordStream([pending_dead_letters(plan.settings.retry)], plan.reading, control)) as letters:
            first = read_first_records(plan, engine.info, letters.peek(), control)
            # Dead letters that fail again become dead letters again, so nothing else is checked.
            if any(first.objects):
                check = partial(_refuse_unknown_fields, engine, plan, first, first.missing)
                _check_with_retries(plan, control, check)
            if plan.settings.dry_run is not None:
                yield letters
                return
        yield None
    else:
        with closing(RecordStream(plan.sources, plan.reading, control)) as stream:
            first = read_first_records(plan, engine.info, stream.peek(), control)
            if not control.stop_reading.is_set():
                _check_with_retries(plan, control, lambda: check_records(engine, plan, first, control))
            yield stream


def _check_with_retries(plan: LoadPlan, control: LoadControl, check: Callable[[], None]) -> None:
    """Run a check, and retry transient failures of the engine."""
    policy = RetryPolicy(plan.settings.retry_seconds)
    with_retries(check, policy, control.stop_reading, lambda error: control.engine_wait.begin(error.message))
    control.engine_wait.end()


def check_records(engine: Engine, plan: LoadPlan, first: FirstRecords, control: LoadControl) -> None:
    """Check the first records of a source, and those of further sources for what these lack.

    Args:
        control: Ends the search in further sources.

    Raises:
        SourceError: the records hold no document that can be loaded, or lack a field of the text.
        VectorIndexError: the mapping is strict and refuses the documents.
        EngineError: the engine failed.
    """
    if not first.records:
        return
    _refuse_other_formats(first)
    if plan.state is not None:
        check_strict_mapping(plan.state, [first.rules.own_fields(fields) for fields in first.objects])
    unrouted = next((reject for reject in first.rejects if reject.reason.startswith(UNROUTED_CHILD)), None)
    if unrouted is not None and first.may_lack_routing:
        problem, _, advice = unrouted.reason.rpartition(": ")
        raise SourceError(f"{unrouted.origin}: {problem}", f"{advice[0].upper()}{advice[1:]}.")
    if not first.has_text and not _clears_documents(engine, plan, first):
        _refuse_unknown_fields(engine, plan, first, first.missing)
        _refuse_unloadable(first)
    routing_field = str(first.rules.routing_field)
    missing = [*first.missing, *([routing_field] if first.lacks_routing else [])]
    for fields in _further_documents(plan, control) if missing else ():
        missing = [name for name in missing if find_field(fields, name) is MISSING]
    if control.stop_reading.is_set():
        return
    _refuse_unknown_fields(engine, plan, first, missing)
    # The parent of a join field is not in the mapping.
    mapped = {} if plan.state is None else plan.state.mappings.get("properties", {})
    if routing_field in missing and not any(is_within(name, [routing_field.partition(".")[0]]) for name in mapped):
        raise SourceError(
            f"none of the first {pluralize(len(first.records), 'record')} has the routing field {routing_field}",
            f"{fields_hint([routing_field], first.field_names(), _DOCUMENTS_HAVE)} Correct `routing_field`, or put the "
            "field into the mapping before the load if only later documents have it.",
        )


def _clears_documents(engine: Engine, plan: LoadPlan, first: FirstRecords) -> bool:
    """Whether the index holds documents that have lost their text: a load removes their vectors."""
    if plan.state is None or not first.documents or first.missing == list(first.rules.text_fields):
        return False
    keys = [(document.id, document.routing) for document in first.documents]
    return any(found is not None for found in engine.mget(plan.state.name, keys, source_includes=None))


def _refuse_unknown_fields(
    engine: Engine, plan: LoadPlan, first: FirstRecords, missing: Sequence[str], index_names: Sequence[str] = ()
) -> None:
    """Refuse text fields that exist neither in the documents nor in the mapping.

    Args:
        missing: Fields that none of the checked documents has.
        index_names: Existing fields, if the documents are those of the index.
    """
    names = index_names or first.field_names()
    mappings = {} if plan.state is None else plan.state.mappings
    mapped, derived = mapping_field_names(mappings.get("properties", {})), derived_fields(mappings)
    for planned in plan.fields:
        unknown = [name for name in planned.template.fields if name in missing and name not in mapped]
        if not unknown or not names or _has_vectors_of_text(engine, plan.state, planned):
            continue
        checked = (
            f"the first {pluralize(len(first.records), 'record')}" if plan.sources else "the documents of the index"
        )
        hint, lacking = fields_hint(unknown, names, _DOCUMENTS_HAVE, derived), ""
        # The hint names the source of a field that the engine fills, which is in the mapping.
        if not all(name in derived for name in unknown):
            lacking = "" if plan.state is None else f", and the mapping of {plan.state.name} lacks it"
            hint += f" {_PYTHON_TEXT_REMEDY if first.from_python else _TEXT_REMEDY}"
            if plan.sources and not first.from_python:
                hint += " A field that only later documents have must be in the mapping before the load begins."
        raise SourceError(
            f"none of {checked} has the {'fields' if len(unknown) > 1 else 'field'} {' and '.join(unknown)}{lacking} "
            f"(the text is {planned.template.template!r})",
            hint,
        )


def _has_vectors_of_text(engine: Engine, state: IndexState | None, field: PlannedField) -> bool:
    """Whether the index already holds vectors of this text: a later load may then lack some fields of it."""
    if state is None or field.stored is None or field.stored.text != field.template.template:
        return False
    return engine.count(state.name, has_vector_query(field.field, field.stored)) > 0


def _further_documents(plan: LoadPlan, control: LoadControl) -> Iterator[dict[str, Any]]:
    """Yield the first documents of the other files, if these can be read twice."""
    again = [source for source in plan.sources[1:] if isinstance(source, FileSource) and source.input.is_rereadable]
    for source in again[:_FURTHER_FILES]:
        records = read_records([source], plan.reading, stop=control.stop_reading)
        with closing(records):
            for record in islice(records, _FURTHER_RECORDS):
                yield getattr(record, "fields", {})


def _check_index(engine: Engine, plan: LoadPlan) -> None:
    """Reject text fields that exist neither in the mapping nor in a sample of the documents."""
    state = plan.state
    assert state is not None, "documents of an index that exists"
    fields = [field for field in plan.fields if not _has_vectors_of_text(engine, state, field)]
    if not fields:
        return
    first = FirstRecords(planned_document_rules(replace(plan, fields=tuple(fields)), engine.info))
    name, texts = plan.settings.index, first.rules.text_fields
    for record in sample_records(engine, plan, _SAMPLE, texts):
        first.add(record)
    if not first.records:
        return
    # A mapping may omit fields.
    known = dict.fromkeys(mapping_field_names(state.mappings.get("properties", {})))
    for record in sample_records(engine, plan, _LISTED):
        known |= dict.fromkeys(document_field_names(record.fields))
    reserved = planned_document_rules(plan, engine.info).reserved
    names = [field for field in known if field.partition(".")[0] not in reserved]
    _refuse_unknown_fields(engine, plan, first, first.missing, names)
    if first.has_text:
        return
    hint = f"{fields_hint([], names, _DOCUMENTS_HAVE)} {_TEXT_REMEDY}"
    if not first.documents:
        raise SourceError(f"no document of {name} can be embedded: {first.rejects[0].reason}", hint)
    properties = state.mappings.get("properties", {})
    has_text = {"bool": {"should": [exists_query(field, properties) for field in texts], "minimum_should_match": 1}}
    if not engine.count(name, has_text):
        raise SourceError(f"no document of {name} has the text field {' or '.join(texts)}", hint)


def sample_records(engine: Engine, plan: LoadPlan, count: int, includes: Sequence[str] = ()) -> list[Record]:
    """Search for some documents of the index by the name that the load uses.

    Args:
        includes: Fields to return; none for all but the vectors and their metadata.
    """
    name = plan.settings.index
    reserved = list(planned_document_rules(plan, engine.info).reserved)
    source = {"includes": list(includes)} if includes else {"excludes": reserved}
    try:
        # Include documents that were written a moment ago.
        engine.refresh(name)
    except AccessDenied:
        if plan.settings.dry_run is None:
            raise
    size = min(count, engine.result_window(name))
    hits = engine.search(name, {"query": {"match_all": {}}, "size": size, "_source": source})["hits"]["hits"]
    origin = Origin(f"index {name}")
    return [
        Record(origin, fields := hit.get("_source") or {}, dump_object(fields), hit["_id"], routing=hit.get("_routing"))
        for hit in hits
    ]


def _is_bulk_action(fields: Mapping[str, Any]) -> bool:
    """Whether an object is the action of a `_bulk` body, such as `{"index": {"_id": "1"}}`."""
    [(action, parameters)] = fields.items() if len(fields) == 1 else [("", None)]
    return action in _BULK_ACTIONS and isinstance(parameters, dict) and parameters.keys() <= _BULK_PARAMETERS


def _refuse_other_formats(first: FirstRecords) -> None:
    """Refuse formats that are known not to be documents, even if some of their lines could be loaded.

    Raises:
        SourceError: the first records have such a format.
    """
    record = first.records[0]
    source, file = record.origin.source, _shell_name(record)
    if isinstance(record, RejectedRecord):
        # Files are checked for this before they are read; pipes are not.
        if record.raw.lstrip().startswith(b"[") and _is_json(record):
            raise SourceError(f"{source} holds a JSON array, not one object per line", f"Use: jq -c '.[]' {file}")
        return
    hits = record.fields.get("hits")
    # An action alone may be a strange document; followed by another line it is a bulk body.
    if _is_bulk_action(record.fields) and len(first.records) > 1:
        problem = "is a _bulk body: each document comes after a line with its action"
        remedy = (
            "Leave the actions out, or send it to the _bulk API of the engine and embed the documents in place: "
            "`es-sbert ingest --index INDEX --text-field FIELD`."
        )
        python_remedy = "the documents without the actions, each with its id in the field _id"
    elif isinstance(hits, dict) and isinstance(hits.get("hits"), list):
        problem = "is the response to a search, not one document per line"
        command = f"jq -c '.hits.hits[] | ._source + {{_id: ._id}}' {file}"
        remedy = f'Load the `_source` of each hit with its `_id`: {command}, and `id_field="_id"`.'
        python_remedy = "({'_id': hit['_id'], **hit['_source']}) for each hit in response['hits']['hits']"
    elif isinstance(record.fields.get("_source"), dict):
        problem = "holds the hits of a search: the documents are in _source"
        keys, options = "_id: ._id", '`id_field="_id"`'
        if any("_routing" in fields for fields in first.objects):
            keys, options = f"{keys}, _routing: ._routing", f'{options} and `routing_field="_routing"`'
        remedy = f"Load the `_source` of each hit with its `_id`: jq -c '._source + {{{keys}}}' {file}, and {options}."
        python_remedy = "({'_id': hit['_id'], **hit['_source']}) for each hit"
    else:
        return
    raise SourceError(f"{source} {problem}", f"Pass {python_remedy}." if first.from_python else remedy)


def _refuse_unloadable(first: FirstRecords) -> NoReturn:
    """Refuse records of which none can be loaded.

    Args:
        first: At least one record, and none with a text.

    Raises:
        SourceError: in any case.
    """
    record, objects, rules = first.records[0], first.objects, first.rules
    source = record.origin.source
    problem = f"{source}: none of the first {pluralize(len(first.records), 'record')} can be loaded"
    if not objects:
        lines = [reject.raw.strip() for reject in first.rejects if reject.raw.strip()]
        remedy = _CORRECT
        if lines and all(map(_is_json, first.rejects)):
            kind = _table_format(lines)
            if lines[0] == b"{":
                problem = f"{source} holds a JSON object over several lines, not one object per line"
                remedy = f"Write one document per line: jq -c . {_shell_name(record)}"
            elif kind is not None:
                problem = f"{source} looks like {kind.upper()}, not like JSON Lines"
                remedy = f"Add {setting_text('format', kind)}, or name the file .{kind}."
        raise SourceError(f"{problem}: {_frequent_reasons(first)}", remedy)
    named = first.missing if rules.id_field is None else [*first.missing, rules.id_field]
    unknown = [name for name in named if all(find_field(fields, name) is MISSING for fields in objects)]
    hint = fields_hint(unknown, first.field_names(), _DOCUMENTS_HAVE)
    if first.rejects:
        # Documents without a text are no error, so the reasons are those of the others.
        problem = f"{problem}: {_frequent_reasons(first)}"
    else:
        missing = len(first.missing) == len(rules.text_fields)
        cause = "is missing in all of them" if missing else "is empty in all of them"
        problem = f"{problem}: the text field {' or '.join(rules.text_fields)} {cause}"
    raise SourceError(problem, f"{hint} {_remedy(first)}")


def _remedy(first: FirstRecords) -> str:
    """The remedy for the reasons why none of the first records, which are objects, can be loaded."""
    rules, remedies = first.rules, []
    reasons = [reject.reason for reject in first.rejects]
    if any(reason.startswith(HAS_RESERVED_FIELD) for reason in reasons):
        remedies.append(_PYTHON_RESERVED_REMEDY if first.from_python else _RESERVED_REMEDY)
    if any(reason.startswith(f"the id field {rules.id_field} ") for reason in reasons):
        remedies.append("Correct `id_field`, or leave it out: ids are then hashes of the content.")
    if first.missing or first.documents or any("the text field " in reason for reason in reasons):
        remedies.append(_PYTHON_TEXT_REMEDY if first.from_python else _TEXT_REMEDY)
    return " ".join(remedies or [_CORRECT])


def _is_json(reject: RejectedRecord) -> bool:
    """Whether a line was read as JSON, but is not an object."""
    return reject.reason.startswith(("malformed JSON", "the line is a JSON"))


def _table_format(lines: Sequence[bytes]) -> str | None:
    """`tsv` or `csv` if the lines look like a table, else None."""
    for delimiter, kind in ((b"\t", "tsv"), (b",", "csv"), (b";", "csv")):
        # Rows may have more delimiters than the header, in quoted values.
        head, *rows = [line.count(delimiter) for line in lines[:5]]
        if head and rows and min(rows) >= head:
            return kind
    return None


def _frequent_reasons(first: FirstRecords) -> str:
    reasons = ErrorReasons()
    for reject in first.rejects:
        reasons.add(reject.reason)
    return "; ".join(reason for _, reason in reasons.most_frequent())


def _shell_name(record: Record | RejectedRecord) -> str:
    """A record's source for a shell command."""
    name = record.origin.source
    return "FILE" if re.match(r"[\w+.-]+://", name) or name == "-" else shlex.quote(name)
