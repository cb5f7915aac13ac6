"""Dry run of a load: preview the first documents and the mapping, and write nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson
from pydantic import BaseModel

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, SettingValue
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import (
    ChunkedText,
    EmbeddingTarget,
    EmbeddingTargets,
    absent_fields,
    target_text_fields,
)
from es_sbert.index.mapping import index_body
from es_sbert.index.text_languages import LanguageSample, language_warning
from es_sbert.index.vector_field import plan_field_change
from es_sbert.ingest.change_detection import EmbeddingTask
from es_sbert.ingest.check_first_records import check_first_records, planned_document_rules, sample_records
from es_sbert.ingest.load_pipeline import DocumentChunker
from es_sbert.ingest.load_plan import LoadPlan, ModelIdentity
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.read_documents import Document, to_document
from es_sbert.ingest.sources.document_source import Record, RejectedRecord
from es_sbert.messages import escape_unprintable, escape_unprintable_lines, pluralize


class TextPreview(BaseModel, frozen=True):
    """A text as it would be embedded.

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

    Attributes:
        id: Its id; None if it is unknown.
        routing: Its custom routing; None if it has none.
        origin: Position in the source.
        texts: Its texts; empty if it has none, or cannot be loaded.
        missing_fields: Text fields that are missing or null.
        problem: Reason why it would become a dead letter; None if it would not become one.
    """

    id: str | None
    routing: str | None
    origin: str
    texts: tuple[TextPreview, ...]
    missing_fields: tuple[str, ...]
    problem: str | None


class DryRun(BaseModel, frozen=True):
    """A preview of a load.

    Attributes:
        index, engine: The target of the load.
        model, fingerprint: Name and fingerprint of the model.
        max_tokens: Maximum tokens of a text that the model reads.
        prompt: The prompt that the model prepends to each text; empty for none.
        creates_index: Whether the load would create the index.
        mapping: Body of the request that would create the index or change its mapping; None if it does not change.
        documents: The first documents.
        warnings: Warnings of the encoder, and one if many of the texts are in languages that the model was not trained
            on.
    """

    index: str
    engine: str
    model: str
    fingerprint: str
    max_tokens: int
    prompt: str
    creates_index: bool
    mapping: dict[str, Any] | None
    documents: tuple[DocumentPreview, ...]
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The preview as lines of text."""
        prompt = f"puts the prompt {self.prompt!r} in front of each text" if self.prompt else "has no prompt"
        lines = [
            f"{self.index} on {self.engine}: a dry run of {pluralize(len(self.documents), 'document')}",
            f"{self.model} ({self.fingerprint[:12]}) reads {pluralize(self.max_tokens, 'token')} of a text "
            f"and {prompt}",
            *(f"Warning: {warning}" for warning in self.warnings),
        ]
        for document in self.documents:
            routing = "" if document.routing is None else f", routing {escape_unprintable(document.routing)}"
            name = f"{escape_unprintable(document.origin)}, id {escape_unprintable(document.id or 'unknown')}"
            lines += ["", name + routing, *(f"  {line}" for line in _document_lines(document))]
        if self.mapping is None:
            lines += ["", f"The mapping of {self.index} would not change."]
        else:
            heading = f"{self.index} would be created with:" if self.creates_index else "This would change the mapping:"
            mapping = orjson.dumps(self.mapping, option=orjson.OPT_INDENT_2).decode()
            lines += ["", heading, *mapping.splitlines()]
        return [*lines, "Nothing was written."]


def _document_lines(document: DocumentPreview) -> Iterator[str]:
    if document.problem is not None:
        yield f"would be a dead letter: {escape_unprintable(document.problem)}"
    elif not document.texts:
        yield "would be skipped: no text"
    for text in document.texts:
        chunk = "" if text.chunk is None else f", chunk {text.chunk}"
        cut = ", cut off where the model stops reading" if text.truncated else ""
        yield f"{text.vector_field}{chunk}, {pluralize(text.tokens, 'token')}{cut}:"
        yield from (f"  {line}" for line in escape_unprintable_lines(text.text).split("\n"))
    if document.missing_fields:
        yield f"missing or null: {', '.join(map(escape_unprintable, document.missing_fields))}"


def dry_run(engine: Engine, encoder: Encoder, plan: LoadPlan, count: int) -> DryRun:
    """Preview the first documents of a load and the mapping that it would need. Nothing is written.

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
        targets, body = _mapping(engine, encoder, plan)
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
                routing=document.routing,
                origin=str(document.origin),
                texts=tuple(text for chunk in chunks for text in _texts(encoder, chunk)),
                missing_fields=tuple(absent_fields(fields, text_fields)) if fields else (),
                problem=document.reason if isinstance(document, RejectedRecord) else None,
            )
            previews.append(preview)
    warning = language_warning(
        languages.counts(), plan.settings.index, info.model, info.fingerprint, is_embedded=body is None
    )
    return DryRun(
        index=plan.settings.index,
        engine=engine.info.label,
        model=info.model,
        fingerprint=info.fingerprint,
        max_tokens=encoder.input_limit("document"),
        prompt=encoder.prompt("document"),
        creates_index=plan.state is None,
        mapping=body,
        documents=tuple(previews),
        warnings=info.warnings if warning is None else (*info.warnings, str(warning)),
    )


def _mapping(engine: Engine, encoder: Encoder, plan: LoadPlan) -> tuple[EmbeddingTargets, Json | None]:
    """Plan the vector fields after the load, and the request body that would create them."""
    info, state = encoder.info, plan.state
    targets: list[EmbeddingTarget] = []
    created: Json | None = None
    addition: Json = {}
    requests = plan.field_requests(ModelIdentity(info.model, info.fingerprint, info.dimensions))
    for field, request in zip(plan.fields, requests, strict=True):
        if field.chunk_rules is not None:
            encoder.make_chunker(field.chunk_rules.tokens, field.chunk_rules.overlap, "document")
        if state is None:
            meta = request.new_meta(engine)
            created = index_body(engine.info.engine_type, field.field, meta)
            settings: dict[str, SettingValue] = {key: str(value).lower() for key, value in created["settings"].items()}
            state = IndexState(plan.settings.index, created["mappings"], settings)
            targets.append(EmbeddingTarget(field.field, field.template, meta))
            continue
        planned, body = plan_field_change(engine, state, request, name=plan.settings.index)
        targets.append(EmbeddingTarget(field.field, field.template, planned.meta))
        if body is not None:
            addition = _merge_mapping(addition, body)
            state = dataclasses.replace(state, mappings=_merge_mapping(state.mappings, body))
    if created is not None:
        return tuple(targets), created | {"mappings": _merge_mapping(created["mappings"], addition)}
    return tuple(targets), addition or None


def _merge_mapping(mapping: Json, addition: Json) -> Json:
    """Merge an addition into a mapping as `PUT /index/_mapping` does: replace all of `_meta`, and add properties."""
    properties = mapping.get("properties", {}) | addition.get("properties", {})
    joined = mapping | addition
    return joined | {"properties": properties} if properties else joined


def _texts(encoder: Encoder, chunk: ChunkedText) -> Iterator[TextPreview]:
    tokenized = encoder.tokenize(chunk.texts, "document")
    for number, (text, tokens) in enumerate(zip(chunk.texts, tokenized.tokens.tolist(), strict=True), 1):
        yield TextPreview(
            vector_field=chunk.target.field,
            text=text,
            tokens=tokens,
            truncated=tokens > tokenized.max_tokens,
            chunk=None if chunk.spans is None else number,
        )
