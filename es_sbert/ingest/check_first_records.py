"""Check the first records of a load before anything is written.

A wrong format or a misspelled field name stops the load here, with a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import RetryPolicy, with_retries
from es_sbert.errors import AccessDenied, SourceError
from es_sbert.index.derived_fields import derived_fields, is_within
from es_sbert.index.load_checks import check_strict_mapping
from es_sbert.index.mapping import exists_query, has_vector_query
from es_sbert.index.text_template import (
    MISSING,
    document_field_names,
    fields_hint,
    find_field,
    mapping_field_names,
)
from es_sbert.ingest.dead_letters import pending_dead_letters
from es_sbert.ingest.diagnose_records import DOCUMENTS_HAVE, PYTHON_TEXT_REMEDY, diagnose_format, diagnose_unloadable
from es_sbert.ingest.first_records import FirstRecords, planned_document_rules, read_first_records
from es_sbert.ingest.load_plan import LoadPlan, PlannedField
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.read_documents import UNROUTED_CHILD, RecordStream
from es_sbert.ingest.records import Origin, Record
from es_sbert.ingest.sources.document_source import FileSource
from es_sbert.messages import pluralize

# Limits for the search for a missing field in further files: records per file, and number of files.
_FURTHER_RECORDS, _FURTHER_FILES = 100, 32
# Number of documents of the index that are searched for a field.
_SAMPLE = 100
# Documents of the index whose fields are listed in a message.
_LISTED = 10


@contextmanager
def check_first_records(engine: Engine, plan: LoadPlan, control: LoadControl) -> Iterator[RecordStream | None]:
    """Check that the first documents can be loaded and that the fields of their text exist.

    Args:
        control: Stops the load from outside.

    Yields:
        The records of the sources, until the block ends; None for documents of the index, and for dead letters, which
        are quarantined later.

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
        _check_with_retries(plan, control, lambda: _check_dead_letters(engine, plan))
        yield None
    else:
        with closing(RecordStream(plan.sources, plan.reading, control)) as stream:
            first = read_first_records(plan, engine.info, stream.peek(), control)
            if not control.stop_reading.is_set():
                _check_with_retries(plan, control, lambda: check_records(engine, plan, first))
            yield stream


def _check_with_retries(plan: LoadPlan, control: LoadControl, check: Callable[[], None]) -> None:
    """Run a check, and retry transient failures of the engine."""
    policy = RetryPolicy(plan.settings.retry_seconds)
    with_retries(check, policy, control.stop_reading, lambda error: control.engine_wait.begin(error.message))
    control.engine_wait.end()


def check_records(engine: Engine, plan: LoadPlan, first: FirstRecords) -> None:
    """Check the first records of a source.

    Raises:
        SourceError: the records hold no document that can be loaded, or lack a field of the text.
        VectorIndexError: the mapping is strict and refuses the documents.
        EngineError: the engine failed.
    """
    if not first.records:
        return
    format_problem = diagnose_format(first)
    if format_problem is not None:
        raise SourceError(*format_problem)
    if plan.state is not None:
        check_strict_mapping(plan.state, [first.rules.own_fields(fields) for fields in first.documents_as_json()])
    unrouted = next((reject for reject in first.rejects if reject.reason.startswith(UNROUTED_CHILD)), None)
    if unrouted is not None and first.may_lack_routing:
        problem, _, advice = unrouted.reason.rpartition(": ")
        raise SourceError(f"{unrouted.origin}: {problem}", f"{advice[0].upper()}{advice[1:]}.")
    if not first.has_text and not _clears_documents(engine, plan, first):
        _raise_unknown_fields(engine, plan, first.missing, first.field_names(), first)
        raise SourceError(*diagnose_unloadable(first))
    if first.missing:
        missing = set(first.missing)
        for fields in _further_documents(plan):
            missing = {name for name in missing if find_field(fields, name) is MISSING}
        _raise_unknown_fields(engine, plan, missing, first.field_names(), first)
    if first.lacks_routing:
        _check_routing_field(plan, first)


def _check_routing_field(plan: LoadPlan, first: FirstRecords) -> None:
    """Reject a routing field that exists neither in the documents nor in the mapping.

    Raises:
        SourceError: the documents would all be written without a routing.
    """
    field = str(first.rules.routing_field)
    mapped = {} if plan.state is None else plan.state.mappings.get("properties", {})
    head = field.partition(".")[0]
    # The parent of a join field is not in the mapping.
    is_mapped = any(is_within(name, [head]) for name in mapped)
    if is_mapped or any(find_field(fields, field) is not MISSING for fields in _further_documents(plan)):
        return
    raise SourceError(
        f"none of the first {pluralize(len(first.records), 'record')} has the routing field {field}",
        f"{fields_hint([field], first.field_names(), DOCUMENTS_HAVE)} Correct `routing_field`, or put the field into "
        "the mapping before the load if only later documents have it.",
    )


def _clears_documents(engine: Engine, plan: LoadPlan, first: FirstRecords) -> bool:
    """Whether the index holds documents that have lost their text: a load removes their vectors."""
    if plan.state is None or not first.documents or first.missing == list(first.rules.text_fields):
        return False
    keys = [(document.id, document.routing) for document in first.documents]
    return any(found is not None for found in engine.mget(plan.state.name, keys, source_includes=None))


def _raise_unknown_fields(
    engine: Engine, plan: LoadPlan, missing: Collection[str], names: Sequence[str], first: FirstRecords | None = None
) -> None:
    """Reject text fields that exist neither in the documents nor in the mapping.

    Args:
        missing: Fields of texts that none of the checked documents has.
        names: Existing fields.
        first: The first records of a source; None for documents of the index.
    """
    mappings = {} if plan.state is None else plan.state.mappings
    mapped = mapping_field_names(mappings.get("properties", {}))
    derived = derived_fields(mappings)
    for planned in plan.fields:
        unknown = [name for name in planned.template.fields if name in missing and name not in mapped]
        if not unknown or (names == [] and first is not None) or _has_vectors_of_text(engine, plan.state, planned):
            continue
        several = "fields" if len(unknown) > 1 else "field"
        looked_at = (
            "the documents of the index" if first is None else f"the first {pluralize(len(first.records), 'record')}"
        )
        all_derived = all(name in derived for name in unknown)
        mapping = "" if plan.state is None or all_derived else f", and the mapping of {plan.state.name} lacks it"
        hint = fields_hint(unknown, names, DOCUMENTS_HAVE, derived)
        if first is not None and not all_derived and plan.from_python:
            hint += f" {PYTHON_TEXT_REMEDY}"
        elif first is not None and not all_derived:
            hint += " A field that only later documents have must be in the mapping before the load begins."
        if not all_derived and not plan.from_python:
            hint += " Name the fields of the text with `text_fields` or `text_template`."
        raise SourceError(
            f"none of {looked_at} has the {several} {' and '.join(unknown)}{mapping} (the text is "
            f"{planned.template.template!r})",
            hint,
        )


def _has_vectors_of_text(engine: Engine, state: IndexState | None, field: PlannedField) -> bool:
    """Whether the index already holds vectors of this text: a later load may then lack some fields of it."""
    if state is None or field.stored is None or field.stored.text != field.template.template:
        return False
    return engine.count(state.name, has_vector_query(field.field, field.stored)) > 0


def _further_documents(plan: LoadPlan) -> Iterator[dict[str, Any]]:
    """Yield the first documents of the other files, if these can be read twice."""
    again = [source for source in plan.sources[1:] if isinstance(source, FileSource) and source.input.is_rereadable]
    for source in again[:_FURTHER_FILES]:
        with closing(RecordStream([source], replace(plan.reading, retry_seconds=0), LoadControl())) as stream:
            for record in islice(stream, _FURTHER_RECORDS):
                yield getattr(record, "fields", {})


def _check_dead_letters(engine: Engine, plan: LoadPlan) -> None:
    """Reject fields that no dead letter has; the file is only read.

    Dead letters that fail again become dead letters again, so nothing else is checked.
    """
    assert plan.settings.retry is not None
    control = LoadControl()
    with closing(RecordStream([pending_dead_letters(plan.settings.retry)], plan.reading, control)) as stream:
        first = read_first_records(plan, engine.info, stream.peek(), control)
    if any(first.documents_as_json()):
        _raise_unknown_fields(engine, plan, first.missing, first.field_names(), first)


def _check_index(engine: Engine, plan: LoadPlan) -> None:
    """Reject text fields that exist neither in the mapping nor in a sample of the documents."""
    state = plan.state
    assert state is not None, "documents of an index that exists"
    fields = [field for field in plan.fields if not _has_vectors_of_text(engine, state, field)]
    if not fields:
        return
    first = FirstRecords(planned_document_rules(replace(plan, fields=tuple(fields)), engine.info))
    name, texts = plan.settings.index, first.rules.text_fields
    for hit in sample_hits(engine, plan, _SAMPLE, texts):
        first.add(Record(Origin(f"index {name}"), hit.get("_source") or {}, b"", hit["_id"]))
    if not first.records:
        return
    names = _index_names(engine, plan)
    _raise_unknown_fields(engine, plan, first.missing, names)
    if first.has_text:
        return
    hint = f"{fields_hint([], names, DOCUMENTS_HAVE)} Name a field of text with `text_fields` or `text_template`."
    if not first.documents:
        raise SourceError(f"no document of {name} can be embedded: {first.rejects[0].reason}", hint)
    properties = state.mappings.get("properties", {})
    has_text = {"bool": {"should": [exists_query(field, properties) for field in texts], "minimum_should_match": 1}}
    if not engine.count(name, has_text):
        raise SourceError(f"no document of {name} has the text field {' or '.join(texts)}", hint)


def _index_names(engine: Engine, plan: LoadPlan) -> list[str]:
    """Names of the fields of an index: from its mapping, and from some documents, because a mapping may omit fields."""
    assert plan.state is not None, "documents of an index that exists"
    names = dict.fromkeys(mapping_field_names(plan.state.mappings.get("properties", {})))
    for hit in sample_hits(engine, plan, _LISTED):
        names |= dict.fromkeys(document_field_names(hit.get("_source") or {}))
    vector_fields = {
        name
        for target in planned_document_rules(plan, engine.info).targets
        for name in (target.field, target.meta_field)
    }
    return [name for name in names if name.partition(".")[0] not in vector_fields]


def sample_hits(engine: Engine, plan: LoadPlan, count: int, includes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Search for some documents of the index by the name that the load uses.

    Args:
        includes: Fields to return; none for all but the vectors.
    """
    name = plan.settings.index
    vectors = [target.field for target in planned_document_rules(plan, engine.info).targets]
    source = {"includes": list(includes)} if includes else {"excludes": vectors}
    try:
        # Include documents that were written a moment ago.
        engine.refresh(name)
    except AccessDenied:
        if plan.settings.dry_run is None:
            raise
    size = min(count, engine.result_window(name))
    body = {"query": {"match_all": {}}, "size": size, "_source": source}
    return list(engine.search(name, body)["hits"]["hits"])
