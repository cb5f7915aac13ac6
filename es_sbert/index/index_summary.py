"""Summarize an index: documents, size, vector fields and the number of documents with vectors (`index show`)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.index.mapping import (
    VectorFieldMeta,
    and_query,
    document_meta_field,
    has_vector_query,
    plain_vector_fields,
    read_vector_mapping,
    vector_fields,
)
from es_sbert.index.text_languages import language_warning, sample_languages
from es_sbert.index.vector_field import VectorField, index_not_found, require_index


@dataclass(frozen=True)
class FieldSummary:
    """A vector field and how far it is filled.

    Attributes:
        name: The field.
        meta: Its entry in `_meta`. The index type is taken from the mapping; for a type that es-sbert does not search,
            it is a description.
        vectors: Number of documents with a vector in it.
        current: Number of these documents whose vector was made by the field's model.
        truncated: Number of documents whose text was longer than the model reads.
        passages: Number of passages with a vector; None if a document has one vector.
        languages: Language (ISO 639-1), or `unknown` → documents, in a random sample of at most 200 documents with a
            vector.
        language_warning: A warning if many of them are in languages that the model was not trained on.
    """

    name: str
    meta: VectorFieldMeta
    vectors: int
    current: int
    truncated: int
    passages: int | None
    languages: dict[str, int] = field(default_factory=dict)
    language_warning: tuple[str, str] | None = None


@dataclass(frozen=True)
class IndexSummary:
    """An index.

    Attributes:
        name: The concrete index.
        engine: `Elasticsearch 9.5.0`.
        documents: Number of documents that a search can see.
        bytes: Size of the primary shards on disk; None if this user may not read it (index privilege `monitor`).
        fields: The vector fields that es-sbert fills.
        other_fields: Names of the other top-level fields.
        plain_vector_fields: Of these, vector fields that other programs fill.
        problem: Why the fields of one of several indices cannot be described.
    """

    name: str
    engine: str
    documents: int
    bytes: int | None
    fields: tuple[FieldSummary, ...]
    other_fields: tuple[str, ...]
    plain_vector_fields: tuple[str, ...] = ()
    problem: str | None = None

    def as_json(self) -> Json:
        plain = asdict(self)
        if self.problem is None:
            del plain["problem"]
        plain["fields"] = [
            {
                "name": f.name,
                **f.meta.model_dump(mode="json"),
                "vectors": f.vectors,
                "current": f.current,
                "truncated": f.truncated,
                "passage_count": f.passages,
                "languages": f.languages,
                "language_warning": None if f.language_warning is None else ". ".join(f.language_warning),
            }
            for f in self.fields
        ]
        return plain


def describe_indices(engine: Engine, expression: str) -> list[IndexSummary]:
    """Summarize all indices that a name, a list of names or a pattern matches; see `describe_index`.

    Of several indices, one whose entry in `_meta` cannot be read has a `problem` instead of fields.

    Raises:
        IndexMissing: the index does not exist.
        EngineError: the engine failed.
    """
    states = engine.resolve_indices(expression)
    if not states:
        raise index_not_found(expression, engine)
    if len(states) == 1:
        return [describe_index(engine, states[0])]
    return [_describe_one_of_several(engine, state) for state in states]


def _describe_one_of_several(engine: Engine, state: IndexState) -> IndexSummary:
    try:
        return describe_index(engine, state)
    except IndexMismatch as error:
        # The summary names the problem.
        plain = replace(state, mappings={name: value for name, value in state.mappings.items() if name != "_meta"})
        described = replace(describe_index(engine, plain), plain_vector_fields=())
        return replace(described, problem=f"{error.message}. {error.remedy}")


def describe_index(engine: Engine, index: str | IndexState) -> IndexSummary:
    """Summarize an index, after a refresh so that the counts are current.

    A user who may not refresh the index gets the counts of the last refresh.

    Args:
        index: Index or alias, or an index whose mapping has already been read.

    Raises:
        IndexMissing: the index does not exist.
        EngineError: the engine failed.
    """
    state = require_index(engine, index) if isinstance(index, str) else index
    engine.refresh_if_allowed(state.name)
    count = partial(engine.count, state.name)
    fields = []
    properties = state.mappings.get("properties", {})
    for name, stored in vector_fields(state.mappings, state.name).items():
        mapped = read_vector_mapping(engine.info.engine_type, state.settings, properties.get(name, {}))
        meta = stored if mapped is None else stored.changed(index_type=str(mapped.index_type))
        meta_field = document_meta_field(name)
        exists = has_vector_query(name, meta)
        current = and_query(exists, {"term": {f"{meta_field}.fingerprint": meta.fingerprint}})
        truncated = and_query(exists, {"term": {f"{meta_field}.truncated": True}})
        passages = None if meta.passages is None else count_chunks(engine, state.name, name)
        counts = count(exists), count(current), count(truncated)
        languages = sample_languages(engine, state.name, name, meta)
        warning = language_warning(languages, state.name, meta.model, meta.fingerprint)
        fields.append(FieldSummary(name, meta, *counts, passages, languages, warning))
    ours = {name for each in fields for name in (each.name, document_meta_field(each.name))}
    store_size = None
    with suppress(AccessDenied):  # shown as unknown
        store_size = engine.store_size(state.name)
    return IndexSummary(
        name=state.name,
        engine=engine.info.label,
        documents=count(),
        bytes=store_size,
        fields=tuple(fields),
        # With `subobjects: false`, the metadata consists of several fields with a dot in their names.
        other_fields=tuple(sorted(name for name in properties if name.partition(".")[0] not in ours)),
        plain_vector_fields=tuple(plain_vector_fields(engine.info.engine_type, state.mappings, state.name)),
    )


def count_chunks(engine: Engine, index: str, field: str, query: Json | None = None) -> int:
    """Count the vectors of a field of chunks by an aggregation: they are nested objects, which the count API ignores.

    Args:
        query: Query for the documents to count in; None for all.
    """
    body: Json = {"size": 0, "aggs": {"passages": {"nested": {"path": field}}}}
    if query is not None:
        body["query"] = query
    return int(engine.search(index, body)["aggregations"]["passages"]["doc_count"])


def count_vectors(engine: Engine, index: str, field: VectorField, filter: Json | None = None) -> int:
    """Count the vectors in a field: one per document, or one per passage.

    Args:
        engine: The engine.
        index: The index of the field, or an alias, whose filter applies.
        field: The field.
        filter: Query for the documents to count; None counts all.
    """
    query = and_query(has_vector_query(field.name, field.meta), filter)
    return engine.count(index, query) if field.meta.passages is None else count_chunks(engine, index, field.name, query)
