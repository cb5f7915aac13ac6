"""Check the first records of a load before anything is written, and preview them in a dry run.

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

from pydantic import BaseModel

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import RetryPolicy, with_retries
from es_sbert.errors import AccessDenied, SourceError
from es_sbert.index.derived_fields import derived_fields, is_within
from es_sbert.index.document_vectors import (
    ChunkedText,
    EmbeddingTarget,
    EmbeddingTargets,
    absent_fields,
    kept_targets,
    target_text_fields,
)
from es_sbert.index.load_checks import check_strict_mapping
from es_sbert.index.mapping import VectorFieldMeta, exists_query, has_vector_query, vector_fields
from es_sbert.index.text_languages import LanguageSample, language_warning
from es_sbert.index.text_template import (
    MISSING,
    document_field_names,
    fields_hint,
    find_field,
    mapping_field_names,
)
from es_sbert.index.vector_field import plan_field_change
from es_sbert.ingest.change_detection import EmbeddingTask
from es_sbert.ingest.dead_letters import pending_dead_letters
from es_sbert.ingest.load_pipeline import DocumentChunker
from es_sbert.ingest.load_plan import LoadPlan, ModelIdentity, PlannedField
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.read_documents import (
    Document,
    DocumentRules,
    RecordStream,
    to_document,
)
from es_sbert.ingest.sources.document_source import Origin, Record, RejectedRecord
from es_sbert.io.json_text import dump_object
from es_sbert.io.text_formats import JsonProblem
from es_sbert.messages import escape_unprintable, escape_unprintable_lines, pluralize, setting

# Maximum records of a source that are read to find a document that can be loaded and every field of the text. As a
# rule, the first record has all of them, and no more are read.
_MAX_RECORDS = 1000
_MAX_BYTES = 16 << 20
# Documents whose field names are listed in a message, and records whose problems are.
_NAMED_DOCUMENTS, _NAMED_PROBLEMS = 100, 3
# Documents of the index that are searched for a field.
_SAMPLE = 100
_BULK_ACTIONS = frozenset({"index", "create", "update", "delete"})
_OBJECTS_REMEDY = 'Make each document an object with fields: {"text": "a text"} in JSON, a dict in Python.'
_DOCUMENTS_HAVE = "The documents have"


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


def _correct() -> str:
    names = map(setting, ("text_fields", "text_template", "id_field"))
    return f"Correct the source, or the settings that name its fields: {', '.join(names)}."


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
    first = FirstRecords(planned_document_rules(plan, info))
    size = 0
    for record in records:
        first.add(record)
        size += len(record.source) if isinstance(record, Record) else 0
        if len(first.records) >= _MAX_RECORDS or size >= _MAX_BYTES or control.stop_reading.is_set():
            break
        is_action = len(first.records) == 1 and isinstance(record, Record) and _is_bulk_action(record.fields)
        if first.has_text and not first.missing and not first.lacks_routing and not is_action:
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
    _refuse_other_formats(first)
    if plan.state is not None:
        check_strict_mapping(plan.state, [first.rules.own_fields(fields) for fields in first.objects])
    if not first.has_text and not _clears_documents(engine, plan, first):
        _refuse_unknown_fields(engine, plan, first, first.missing)
        _refuse_unloadable(first)
    _refuse_unknown_fields(engine, plan, first, first.missing)
    # The parent of a join field is not in the mapping.
    mapped = {} if plan.state is None else plan.state.mappings.get("properties", {})
    routing_field = str(first.rules.routing_field)
    if first.lacks_routing and not any(is_within(name, [routing_field.partition(".")[0]]) for name in mapped):
        raise SourceError(
            f"none of the first {pluralize(len(first.records), 'record')} has the routing field {routing_field}",
            f"{fields_hint([routing_field], first.field_names(), _DOCUMENTS_HAVE)} Correct {setting('routing_field')}, "
            "or put the field into the mapping before the load if only later documents have it.",
        ).about("routing_field", routing_field)


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
            hint += f" {_correct()}"
            if plan.sources:
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
    reserved = planned_document_rules(plan, engine.info).reserved
    known = mapping_field_names(state.mappings.get("properties", {}))
    names = [field for field in known if field.partition(".")[0] not in reserved]
    _refuse_unknown_fields(engine, plan, first, first.missing, names)
    if first.has_text:
        return
    hint = f"{fields_hint([], names, _DOCUMENTS_HAVE)} {_correct()}"
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
    return (
        action in _BULK_ACTIONS
        and isinstance(parameters, dict)
        and not any(isinstance(value, dict | list) for value in parameters.values())
    )


def _refuse_other_formats(first: FirstRecords) -> None:
    """Refuse formats that are known not to be documents, even if some of their lines could be loaded.

    Raises:
        SourceError: the first records have such a format.
    """
    record = first.records[0]
    if isinstance(record, RejectedRecord):
        # Files are checked for this before they are read; pipes are not.
        if record.raw.lstrip().startswith(b"[") and isinstance(record.reason, JsonProblem):
            raise SourceError(
                f"{record.origin.source} holds a JSON array, not one object per line", _json_remedy(first)
            )
        return
    # An action alone may be a strange document; followed by another line it is a bulk body.
    if _is_bulk_action(record.fields) and len(first.records) > 1:
        raise SourceError(
            f"{record.origin.source} is a _bulk body: each document comes after a line with its action",
            f"Leave the actions out, and put each id into a field of the document ({setting('id_field', '_id')}).",
        )
    hits = record.fields.get("hits")
    if isinstance(record.fields.get("_source"), dict) or (isinstance(hits, dict) and "hits" in hits):
        raise SourceError(
            f"{record.origin.source} holds the hits of a search: the documents are in `_source`",
            f"Load the `_source` of each hit with its `_id` ({setting('id_field', '_id')}) and `_routing`, if any.",
        )


def _refuse_unloadable(first: FirstRecords) -> NoReturn:
    """Refuse records of which none can be loaded.

    Args:
        first: At least one record, and none with a text.

    Raises:
        SourceError: in any case.
    """
    rules, source = first.rules, first.records[0].origin.source
    problem = f"{source}: none of the first {pluralize(len(first.records), 'record')} can be loaded"
    if first.rejects:
        # Documents without a text are no error, so the reasons are those of the others.
        reasons = dict.fromkeys(reject.reason for reject in first.rejects)
        problem = f"{problem}: {'; '.join(list(reasons)[:_NAMED_PROBLEMS])}"
    else:
        cause = "is missing" if len(first.missing) == len(rules.text_fields) else "is empty"
        problem = f"{problem}: the text field {' or '.join(rules.text_fields)} {cause} in all of them"
    if not first.objects:
        are_lines_of_json = all(isinstance(reject.reason, JsonProblem) for reject in first.rejects)
        raise SourceError(problem, _json_remedy(first) if are_lines_of_json else _OBJECTS_REMEDY)
    named = first.missing if rules.id_field is None else [*first.missing, rules.id_field]
    unknown = [name for name in named if all(find_field(fields, name) is MISSING for fields in first.objects)]
    raise SourceError(problem, f"{fields_hint(unknown, first.field_names(), _DOCUMENTS_HAVE)} {_correct()}")


def _json_remedy(first: FirstRecords) -> str:
    name = first.records[0].origin.source
    file = "FILE" if re.match(r"[\w+.-]+://", name) or name == "-" else shlex.quote(name)
    return (
        f"Write one JSON object per line (`jq -c . {file}`, or `jq -c '.[]' {file}` for an array), or set "
        f"{setting('format')} if this is not JSON."
    )


class TextPreview(BaseModel, frozen=True):
    """A text as it would be embedded.

    Usage:
        ```python
        for document in preview_files("docs", "docs.jsonl.gz", "http://localhost:9200").documents:
            print([text.tokens for text in document.texts])
        ```

    Attributes:
        vector_field: The field that would get its vector.
        text: The text that the model reads, without the prompt.
        tokens: Number of tokens before truncation, including special tokens and the prompt.
        truncated: Whether the model reads only its beginning.
        chunk: Number of the chunk, from 1; None if the field does not split texts.
    """

    vector_field: str
    text: str
    tokens: int
    truncated: bool
    chunk: int | None


class DocumentPreview(BaseModel, frozen=True):
    """A document as it would be loaded.

    Usage:
        ```python
        for document in preview_files("docs", "docs.jsonl.gz", "http://localhost:9200").documents:
            print(document.id, document.problem)
        ```

    Attributes:
        id: Its id; None if it is unknown.
        origin: Position in the source.
        texts: Its texts; empty if it has none, or cannot be loaded.
        missing_fields: Text fields that are missing or null.
        problem: Reason why it would become a dead letter; None if it would not become one.
    """

    id: str | None
    origin: str
    texts: tuple[TextPreview, ...]
    missing_fields: tuple[str, ...]
    problem: str | None

    def lines(self) -> Iterator[str]:
        """The document as lines of text."""
        yield f"{escape_unprintable(self.origin)}, id {escape_unprintable(self.id or 'unknown')}"
        if self.problem is not None:
            yield f"  would be a dead letter: {escape_unprintable(self.problem)}"
        elif not self.texts:
            yield "  would be skipped: no text"
        for text in self.texts:
            chunk = "" if text.chunk is None else f", chunk {text.chunk}"
            cut = ", cut off where the model stops reading" if text.truncated else ""
            yield f"  {text.vector_field}{chunk}, {pluralize(text.tokens, 'token')}{cut}:"
            yield from (f"    {line}" for line in escape_unprintable_lines(text.text).split("\n"))
        if self.missing_fields:
            yield f"  missing or null: {', '.join(map(escape_unprintable, self.missing_fields))}"


class DryRun(BaseModel, frozen=True):
    """A preview of a load.

    Usage:
        ```python
        preview = preview_files("docs", "docs.jsonl.gz", "http://localhost:9200")
        print(preview.model, preview.creates_index, preview.warnings)
        ```

    Attributes:
        index, engine: The target of the load.
        model, fingerprint: Name and fingerprint of the model.
        prompt: The prompt that the model prepends to each text; empty for none.
        creates_index: Whether the load would create the index.
        changed_fields: Vector fields that the load would add to the mapping, or change there.
        documents: The first documents.
        warnings: Warnings of the encoder, and one if many of the texts are in languages that the model was not trained
            on.
    """

    index: str
    engine: str
    model: str
    fingerprint: str
    prompt: str
    creates_index: bool
    changed_fields: tuple[str, ...]
    documents: tuple[DocumentPreview, ...]
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The preview as lines of text."""
        prompt = f"the prompt {self.prompt!r}" if self.prompt else "no prompt"
        lines = [
            f"{self.index} on {self.engine}: a dry run of {pluralize(len(self.documents), 'document')}",
            f"{self.model} ({self.fingerprint[:12]}), {prompt}",
            *(f"Warning: {warning}" for warning in self.warnings),
        ]
        for document in self.documents:
            lines += ["", *document.lines()]
        fields = ", ".join(self.changed_fields) or "nothing"
        change = "would be created with" if self.creates_index else "has a mapping of which the load would change"
        return [*lines, "", f"{self.index} {change}: {fields}. Nothing was written."]


def dry_run(engine: Engine, encoder: Encoder, plan: LoadPlan, count: int) -> DryRun:
    """Preview the first documents of a load and the vector fields that it would add. Nothing is written.

    Args:
        count: Number of documents.

    Raises:
        SourceError: the first documents cannot be loaded.
        IndexMismatch, IndexMissing, UsageError: the index cannot take the documents.
        EngineError: the engine failed.
    """
    info, rules = encoder.info, planned_document_rules(plan, engine.info)
    languages, previews = LanguageSample(), []
    with check_first_records(engine, plan, LoadControl()) as stream:
        targets, changed = _planned_targets(engine, encoder, plan)
        chunker, text_fields = DocumentChunker(encoder, targets), target_text_fields(targets)
        for record in islice(sample_records(engine, plan, count) if stream is None else stream, count):
            document = record if isinstance(record, RejectedRecord) else to_document(record, rules)
            fields = record.fields if isinstance(record, Record) else {}
            chunks: list[ChunkedText] = []
            if isinstance(document, Document):
                languages.add(filter(None, document.texts))
                # The targets that the load fills come first.
                to_embed = tuple(number for number in range(len(targets)) if document.texts[number])
                [chunks] = chunker.chunk([EmbeddingTask(document, to_embed)])
            preview = DocumentPreview(
                id=document.id,
                origin=str(document.origin),
                texts=tuple(text for chunk in chunks for text in _texts(encoder, chunk)),
                missing_fields=tuple(absent_fields(fields, text_fields)) if fields else (),
                problem=document.reason if isinstance(document, RejectedRecord) else None,
            )
            previews.append(preview)
    warning = language_warning(languages.counts(), plan.settings.index, info.model, info.fingerprint)
    return DryRun(
        index=plan.settings.index,
        engine=engine.info.label,
        model=info.model,
        fingerprint=info.fingerprint,
        prompt=encoder.prompts["document"],
        creates_index=plan.state is None,
        changed_fields=changed,
        documents=tuple(previews),
        warnings=info.warnings if warning is None else (*info.warnings, ". ".join(warning)),
    )


def _planned_targets(engine: Engine, encoder: Encoder, plan: LoadPlan) -> tuple[EmbeddingTargets, tuple[str, ...]]:
    """Plan the vector fields as a load would; also return the names of those that it would add or change."""
    plan.check_chunk_rules(encoder.pipeline.make_chunker)
    targets: list[EmbeddingTarget] = []
    changed: list[str] = []
    requests = plan.field_requests(ModelIdentity(encoder.info.model, encoder.info.fingerprint, encoder.info.dimensions))
    for planned, request in zip(plan.fields, requests, strict=True):
        meta, is_changed = request.new_meta(engine), True
        if plan.state is not None:
            vector_field, body = plan_field_change(engine, plan.state, request, name=plan.settings.index)
            meta, is_changed = vector_field.meta, body is not None
        targets.append(EmbeddingTarget(planned.field, planned.template, meta))
        changed += [planned.field] if is_changed else []
    return tuple(targets), tuple(changed)


def _texts(encoder: Encoder, chunk: ChunkedText) -> Iterator[TextPreview]:
    tokenized = encoder.pipeline.tokenize(chunk.texts, "document")
    for number, (text, tokens) in enumerate(zip(chunk.texts, tokenized.tokens.tolist(), strict=True), 1):
        yield TextPreview(
            vector_field=chunk.target.field,
            text=text,
            tokens=tokens,
            truncated=tokens > tokenized.max_tokens,
            chunk=None if chunk.spans is None else number,
        )
