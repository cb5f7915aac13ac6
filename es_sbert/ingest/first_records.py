"""Check the first records of a load before anything is written.

A wrong format or a misspelt field name stops the load here, with a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.engines.retry import RetryPolicy, with_retries
from es_sbert.errors import AccessDenied, SourceError
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets, kept_targets, target_texts
from es_sbert.index.load_checks import check_strict_mapping
from es_sbert.index.mapping import has_vector_query, vector_fields
from es_sbert.index.text_template import (
    MISSING,
    TextFieldError,
    document_field_names,
    fields_hint,
    find_field,
    mapping_field_names,
)
from es_sbert.index.vector_meta import VectorFieldMeta
from es_sbert.ingest.documents import DocumentRules, RecordStream
from es_sbert.ingest.load_plan import LoadPlan, PlannedField
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.ingest.source_diagnosis import FirstRecords, diagnose_format, diagnose_unloadable, is_bulk_action
from es_sbert.ingest.sources.document_source import DocumentSource, FileSource
from es_sbert.ingest.sources.find_sources import pending_dead_letters

# Records of a source that are read, at most, to find a document that can be loaded and every field of the text. As a
# rule the first record has all of them, and no more are read.
MOST_RECORDS = 1000
MOST_BYTES = 16 << 20
# Records of each further file that are read before a field is called missing, and how many files.
_FURTHER_RECORDS, _FURTHER_FILES = 100, 32
# Documents of the index in which fields are looked for.
_SAMPLE = 100
# Documents of the index whose fields are listed in a message.
_LISTED = 10


def check_first_records(engine: Engine, wanted: LoadPlan, control: LoadControl) -> RecordStream | None:
    """Make sure that the first documents can be loaded and that the fields of their text exist.

    Args:
        control: Stops the load from outside.

    Returns:
        The records of the sources, for the load; None for documents of the index, and for letters, which are only
        taken aside later.

    Raises:
        SourceError: no document can be loaded, or a field of the text is neither in a document nor in the mapping.
        EngineError: the engine failed.
    """
    if wanted.settings.only_lacking:
        return None  # a migration: what is wrong with the index must not stop it
    if not wanted.sources:
        _check_with_retries(wanted, control, lambda: _check_index(engine, wanted))
        return None
    if wanted.settings.retry is not None:
        _check_with_retries(wanted, control, lambda: _check_dead_letters(engine, wanted))
        return None
    stream = RecordStream(wanted.sources, wanted.reading, control)
    try:
        window = read_first_records(wanted, stream.peek(), control)
        if not control.stop.is_set():
            _check_with_retries(wanted, control, lambda: check_records(engine, wanted, window))
    except BaseException:
        stream.close()
        raise
    return stream


def _check_with_retries(wanted: LoadPlan, control: LoadControl, check: Callable[[], None]) -> None:
    """Run a check, again where the engine fails in a way that passes."""
    policy = RetryPolicy(wanted.settings.retry_seconds)
    with_retries(check, policy, control.stop, lambda error: control.waits(error.message))
    control.clear_backoff()


def planned_document_rules(wanted: LoadPlan) -> DocumentRules:
    """How documents are taken from records, as known before a model is loaded."""
    state, settings = wanted.state, wanted.settings
    own = tuple(EmbeddingTarget(field.field, field.template, _provisional_meta(field)) for field in wanted.fields)
    kept: EmbeddingTargets = ()
    if state is not None:
        kept = kept_targets(vector_fields(state.mappings, state.name), [target.field for target in own])
    routing = None if state is None else state.alias_routing(settings.index)
    return DocumentRules.of(own + kept, settings.id_field, routing)


def _provisional_meta(field: PlannedField) -> VectorFieldMeta:
    if field.stored is not None:
        return field.stored
    return VectorFieldMeta(fingerprint="", model="", dimensions=0, index_type="", passages=field.passages)


def read_first_records(
    wanted: LoadPlan, records: Iterator[Any], control: LoadControl, documents: int = 1
) -> FirstRecords:
    """The first records, up to where enough is known of them.

    Args:
        documents: How many documents must be known.
    """
    window = FirstRecords(planned_document_rules(wanted))
    size = 0
    for record in records:
        window.add(record)
        size += len(getattr(record, "source", b""))
        if len(window.records) >= max(MOST_RECORDS, documents) or size >= MOST_BYTES or control.stop.is_set():
            break
        first = window.records[0]
        is_action = len(window.records) == 1 and is_bulk_action(getattr(first, "fields", {}))
        if window.has_text and not window.absent and len(window.documents) >= documents and not is_action:
            break
    return window


def check_records(engine: Engine, wanted: LoadPlan, window: FirstRecords) -> None:
    """Refuse a source by its first records.

    Raises:
        SourceError: they hold no document that can be loaded, or lack a field of the text.
        VectorIndexError: the mapping is strict and refuses them.
        EngineError: the engine failed.
    """
    if not window.records:
        return
    format_problem = diagnose_format(window)
    if format_problem is not None:
        raise SourceError(*format_problem)
    if wanted.state is not None:
        check_strict_mapping(wanted.state, list(window.objects()))
    if not window.has_text and not _clears_documents(engine, wanted, window):
        _raise_unknown_fields(engine, wanted, window.absent, window.field_names(), "The documents have", window)
        raise SourceError(*diagnose_unloadable(window))
    if window.absent:
        further = {
            name
            for fields in _further_documents(wanted.sources, wanted)
            for name in window.absent
            if find_field(fields, name) is not MISSING
        }
        absent = [name for name in window.absent if name not in further]
        _raise_unknown_fields(engine, wanted, absent, window.field_names(), "The documents have", window)


def _clears_documents(engine: Engine, wanted: LoadPlan, window: FirstRecords) -> bool:
    """Whether the index holds documents of a window without text: a load takes away the vectors of those."""
    texts = {name for target in window.rules.targets if target.filled for name in target.template.fields}
    if wanted.state is None or not window.documents or set(window.absent) == texts:
        return False
    ids = [document.id for document in window.documents]
    return bool(engine.get_documents(wanted.state.name, ids, source_includes=[]))


def _raise_unknown_fields(
    engine: Engine,
    wanted: LoadPlan,
    absent: Sequence[str],
    names: Sequence[str],
    owner: str,
    window: FirstRecords | None = None,
) -> None:
    """Refuse the fields of the text that neither documents nor the mapping have.

    Args:
        absent: Fields of texts that no document has which was looked at.
        names: Fields that there are.
        owner: What has them, for the message.
        window: What was read of a source; None for documents of the index.
    """
    mapped = [] if wanted.state is None else mapping_field_names(wanted.state.mappings.get("properties", {}))
    for field in wanted.fields:
        unknown = [name for name in field.template.fields if name in absent and name not in mapped]
        if not unknown or (names == [] and window is not None) or _has_vectors_of_text(engine, wanted.state, field):
            continue
        several = "fields" if len(unknown) > 1 else "field"
        looked_at = "the documents of the index" if window is None else f"the first {len(window.records):,} records"
        mapping = "" if wanted.state is None else f", and the mapping of {wanted.state.name} lacks it"
        text = field.text_options or f"the text {field.template.template!r}"
        hint = fields_hint(unknown, names, owner)
        later = (
            ""
            if window is None
            else " A field that only later documents have must be in the mapping before the load begins."
        )
        raise SourceError(
            f"none of {looked_at} has the {several} {' and '.join(unknown)}{mapping} ({text})", f"{hint}{later}"
        )


def _has_vectors_of_text(engine: Engine, state: IndexState | None, field: PlannedField) -> bool:
    """Whether the index holds vectors of this very text already: then a later load need not have all of its fields."""
    if state is None or field.stored is None or field.stored.text != field.template.template:
        return False
    return engine.count(state.name, has_vector_query(field.field, field.stored)) > 0


def _further_documents(sources: Sequence[DocumentSource], wanted: LoadPlan) -> Iterator[dict[str, Any]]:
    """The beginnings of the files behind the first one, where they can be read twice."""
    again = [source for source in sources[1:] if isinstance(source, FileSource) and source.input.again]
    for source in again[:_FURTHER_FILES]:
        stream = RecordStream([source], replace(wanted.reading, retry_seconds=0), LoadControl())
        try:
            for record in islice(stream, _FURTHER_RECORDS):
                yield getattr(record, "fields", {})
        finally:
            stream.close()


def _check_dead_letters(engine: Engine, wanted: LoadPlan) -> None:
    """Refuse fields that no dead letter has. Letters are only read here: they stay where they are.

    Letters that fail again are letters again, so nothing else is refused.
    """
    assert wanted.settings.retry is not None
    control = LoadControl()
    stream = RecordStream([pending_dead_letters(wanted.settings.retry)], wanted.reading, control)
    try:
        window = read_first_records(wanted, stream.peek(), control)
    finally:
        stream.close()
    if any(window.objects()):
        _raise_unknown_fields(engine, wanted, window.absent, window.field_names(), "The documents have", window)


def _check_index(engine: Engine, wanted: LoadPlan) -> None:
    """Refuse fields that neither the mapping nor a sample of the documents has."""
    state = wanted.state
    assert state is not None, "documents of an index that exists"
    fields = [field for field in wanted.fields if not _has_vectors_of_text(engine, state, field)]
    if not fields:
        return
    rules = planned_document_rules(replace(wanted, fields=tuple(fields)))
    texts = list(dict.fromkeys(name for field in fields for name in field.template.fields))
    documents = [hit.get("_source") or {} for hit in sample_hits(engine, wanted, _SAMPLE, texts)]
    if not documents:
        return
    names = _index_names(engine, wanted)
    absent = [name for name in texts if all(find_field(document, name) is MISSING for document in documents)]
    _raise_unknown_fields(engine, wanted, absent, names, "The documents have")
    _check_sample_has_text(engine, wanted, rules, documents, names)


def _check_sample_has_text(
    engine: Engine, wanted: LoadPlan, rules: DocumentRules, documents: Sequence[dict[str, Any]], names: Sequence[str]
) -> None:
    reasons: list[str] = []
    for document in documents:
        try:
            texts = target_texts(document, rules.targets)
        except TextFieldError as error:
            reasons.append(str(error))
            continue
        if any(texts):
            return
    hint = f"{fields_hint([], names, 'The documents have')} Name a field of text with --text-field or --text-template."
    name = wanted.settings.index
    if len(reasons) == len(documents):
        raise SourceError(f"no document of {name} can be embedded: {reasons[0]}", hint)
    fields = rules.text_fields
    some = {"bool": {"should": [{"exists": {"field": field}} for field in fields], "minimum_should_match": 1}}
    if not engine.count(name, some):
        raise SourceError(f"no document of {name} has the text field {' or '.join(fields)}", hint)


def _index_names(engine: Engine, wanted: LoadPlan) -> list[str]:
    """Names of the fields of an index: by its mapping, and by some documents, since a mapping may leave fields out."""
    assert wanted.state is not None, "documents of an index that exists"
    found = dict.fromkeys(mapping_field_names(wanted.state.mappings.get("properties", {})))
    for hit in sample_hits(engine, wanted, _LISTED):
        found |= dict.fromkeys(document_field_names(hit.get("_source") or {}))
    own = {name for target in planned_document_rules(wanted).targets for name in (target.field, target.meta_field)}
    return [name for name in found if name.partition(".")[0] not in own]


def sample_hits(engine: Engine, wanted: LoadPlan, count: int, includes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Some documents of the index, as a search by its name sees them.

    Args:
        includes: Fields that are needed; none for all but the vectors.
    """
    name = wanted.settings.index
    vectors = [target.field for target in planned_document_rules(wanted).targets]
    source = {"includes": list(includes)} if includes else {"excludes": vectors}
    try:
        # What was written a moment ago is to be seen.
        engine.refresh(name)
    except AccessDenied:
        if wanted.settings.dry_run is None:
            raise
    body = {"query": {"match_all": {}}, "size": count, "_source": source}
    hits: list[dict[str, Any]] = engine.search(name, body)["hits"]["hits"]
    return hits
