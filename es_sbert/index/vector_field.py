"""Create, find, check and change the vector field of an index.

Vectors of different models are never mixed in one field.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import orjson

from es_sbert.engines.protocol import Engine, EngineType, IndexState, Json
from es_sbert.errors import AccessDenied, IndexMismatch, IndexMissing, RequestFailed
from es_sbert.index.mapping import (
    DEFAULT_INDEX_TYPE,
    ChunkRules,
    IndexType,
    VectorFieldMeta,
    check_field_name,
    chunks_property,
    document_meta_field,
    has_vector_query,
    index_body,
    mapped_dimensions,
    mapped_similarity,
    mapping_addition,
    merge_field_meta,
    parse_index_type,
    plain_vector_fields,
    vector_fields,
    vector_property,
)
from es_sbert.index.text_template import format_text_options as shown_text_options

_OTHER_FIELD_REMEDY = "Use another --vector-field or another index; `es-sbert index show` lists what is there."


class FieldOutcome(StrEnum):
    CREATED = "created"
    ADDED = "added"
    TEXT_SET = "text set"
    PRESENT = "present"


@dataclass(frozen=True)
class VectorField:
    """A vector field that is fit for a model.

    Attributes:
        index: The concrete index, where an alias was named.
        name: The field.
        meta: What the mapping says about it.
        outcome: Whether the index was created, the field added, the text of its vectors set, or all was there.
    """

    index: str
    name: str
    meta: VectorFieldMeta
    outcome: FieldOutcome


def ensure_vector_field(
    engine: Engine,
    index: str,
    *,
    vector_field: str,
    fingerprint: str,
    model_name: str,
    dimensions: int,
    index_type: str | None = None,
    text: str | None = None,
    passages: ChunkRules | None = None,
    create: bool = True,
    shards: int | None = None,
    replicas: int | None = None,
    text_options: str | None = None,
    replace_text: bool = False,
) -> VectorField:
    """Make sure that an index has a vector field which this model may fill.

    A missing index is created, a missing field is added, a field of the same model is left as it is. The text
    template of a field is set with the field or by the first load; it may change only as long as no document has a
    vector, since vectors of different texts do not belong in one field.

    Args:
        index_type: For a new field (default: hnsw; on an OpenSearch index without `index.knn`: flat). Given
            for an existing field, it must be the field's own.
        text: Template of the text that is embedded; None leaves the field's template alone.
        passages: For a new field: cut texts by these rules. Given for an existing field, they must be the field's own.
        create: Whether a missing index may be created.
        shards, replicas: For a new index.
        text_options: The options by which the text was given, for messages.
        replace_text: Whether the text may change although documents have vectors: these no longer count as current
            then, and the caller embeds them anew.

    Raises:
        IndexMissing: there is no such index, and `create` is False.
        IndexMismatch: another model, other dimensions, another similarity, text, index type or rules for
            passages, a field of that name which is not ours, or an OpenSearch index that cannot take the index type.
        UsageError: an index type that the engine or the dimensions rule out, or an impossible field name.
        EngineError: the engine failed.
    """
    wanted, chosen = new_field_meta(
        engine,
        vector_field,
        fingerprint=fingerprint,
        model_name=model_name,
        dimensions=dimensions,
        index_type=index_type,
        text=text,
        passages=passages,
    )
    state = engine.get_index(index)
    if state is None:
        if not create:
            raise index_not_found(index, engine)
        try:
            engine.create_index(
                index, index_body(engine.info.engine_type, vector_field, wanted, shards=shards, replicas=replicas)
            )
            return VectorField(index, vector_field, wanted, FieldOutcome.CREATED)
        except RequestFailed:
            # Someone else may have created it since we looked; then theirs is the one to check.
            state = engine.get_index(index)
            if state is None:
                raise
    if shards is not None or replicas is not None:
        raise IndexMismatch(
            f"the index {state.name} exists already, so its shards and replicas cannot be chosen",
            "Leave --shards and --replicas out, or create an index of another name.",
        )
    change = mapping_change(
        engine, state, vector_field, wanted, chosen, name=index, text_options=text_options, replace_text=replace_text
    )
    if change.body is not None:
        engine.put_mapping(state.name, change.body)
    return change.field


def new_field_meta(
    engine: Engine,
    vector_field: str,
    *,
    fingerprint: str,
    model_name: str,
    dimensions: int,
    index_type: str | None,
    text: str | None,
    passages: ChunkRules | None,
) -> tuple[VectorFieldMeta, IndexType | None]:
    """What `_meta` would say of a new field, and the index type where one was asked for.

    Raises:
        UsageError: an index type that the engine or the dimensions rule out, or an impossible field name.
    """
    check_field_name(vector_field)
    chosen = None if index_type is None else parse_index_type(index_type, engine.info, dimensions)
    wanted = VectorFieldMeta(
        fingerprint=fingerprint,
        model=model_name,
        dimensions=dimensions,
        index_type=chosen or parse_index_type(DEFAULT_INDEX_TYPE, engine.info, dimensions),
        text=text,
        passages=passages,
    )
    return wanted, chosen


@dataclass(frozen=True)
class MappingChange:
    """What an index needs so that a model may fill a vector field.

    Attributes:
        field: The field afterwards.
        body: Body of `PUT /index/_mapping`; None where the mapping is as it must be.
    """

    field: VectorField
    body: Json | None


def mapping_change(
    engine: Engine,
    state: IndexState,
    vector_field: str,
    wanted: VectorFieldMeta,
    chosen: IndexType | None,
    *,
    name: str | None = None,
    text_options: str | None = None,
    replace_text: bool = False,
) -> MappingChange:
    """What must change in the mapping of an existing index; nothing is written.

    Args:
        wanted, chosen: See `new_field_meta`.
        name: The index or alias as the user calls it, for messages.
        text_options, replace_text: See `ensure_vector_field`.

    Raises:
        IndexMismatch: see `ensure_vector_field`.
        EngineError: the engine failed.
    """
    if vector_field not in state.mappings.get("properties", {}):
        return _field_addition(engine, state, vector_field, wanted, chosen)
    field = _check_existing_field(engine, state, vector_field, wanted, chosen)
    stored, new = field.meta, wanted.text
    if new is None or new == stored.text:
        return MappingChange(field, None)
    if stored.text is not None and not replace_text and _has_vectors(engine, field):
        raise text_mismatch(name or state.name, field, new, text_options)
    meta = stored.model_copy(update={"text": new})
    body = {"_meta": merge_field_meta(state.mappings.get("_meta", {}), vector_field, meta)}
    return MappingChange(VectorField(state.name, vector_field, meta, FieldOutcome.TEXT_SET), body)


def _has_vectors(engine: Engine, field: VectorField) -> bool:
    with suppress(AccessDenied):
        # Documents that were written since the last refresh count too.
        engine.refresh(field.index)
    return engine.count(field.index, has_vector_query(field.name, field.meta)) > 0


def read_vector_field(engine: Engine, index: str, vector_field: str) -> VectorField:
    """The vector field of an index, to search in it.

    Raises:
        IndexMissing: no such index.
        IndexMismatch: no such field, or not one that es-sbert fills.
    """
    state = engine.get_index(index)
    if state is None:
        raise index_not_found(index, engine)
    return vector_field_from_state(engine, state, vector_field)


def vector_field_from_state(engine: Engine, state: IndexState, vector_field: str) -> VectorField:
    """As `read_vector_field`, of an index that was looked at already."""
    if vector_field not in state.mappings.get("properties", {}):
        others = ", ".join(vector_fields(state.mappings, state.name))
        plain = plain_vector_fields(engine.info.engine_type, state.mappings, state.name)
        remedy = f"Embed its documents first: `es-sbert ingest --index {state.name} --text-field FIELD`."
        if others:
            remedy = f"Give --vector-field one of: {others}."
        elif plain:
            remedy = (
                f"{', '.join(plain)} holds vectors that es-sbert has not made: if you know their model, "
                f"{adopt_command(state.name, plain[0])} checks it and takes them over. Else embed the documents: "
                f"`es-sbert ingest --index {state.name} --text-field FIELD`."
            )
        raise IndexMismatch(f"the index {state.name} has no vector field {vector_field!r}", remedy)
    meta = _read_field_meta(engine, state, vector_field)
    return VectorField(state.name, vector_field, meta, FieldOutcome.PRESENT)


def check_field_model(field: VectorField, fingerprint: str, model_name: str) -> None:
    """Refuse a model whose vectors do not belong in the field.

    Raises:
        IndexMismatch: the field was filled by another model.
    """
    if field.meta.fingerprint != fingerprint:
        raise IndexMismatch(
            f"{field.index}.{field.name} holds vectors of the model {field.meta.model!r} "
            f"({field.meta.fingerprint[:12]}), not of {model_name!r} ({fingerprint[:12]})",
            "Leave --model out to use the model that made them (`es-sbert model add FOLDER` registers it), embed with "
            f"{model_name!r} into another --vector-field or index, or embed all documents again: `es-sbert index "
            f"migrate {field.index} --model MODEL`.",
        )


def _field_addition(
    engine: Engine, state: IndexState, vector_field: str, wanted: VectorFieldMeta, chosen: IndexType | None
) -> MappingChange:
    engine_type = engine.info.engine_type
    if engine_type is EngineType.OPENSEARCH:
        knn = state.settings.get("index.knn") == "true"
        if chosen is None and not knn:
            wanted = wanted.model_copy(update={"index_type": IndexType.FLAT})
        elif knn and chosen is IndexType.FLAT:
            raise IndexMismatch(
                f"the index {state.name} was created with index.knn, so every vector field in it gets a graph",
                "Use --index-type hnsw here, or create a new index with --index-type flat.",
            )
        elif not knn and chosen is not IndexType.FLAT:
            raise IndexMismatch(
                f"the index {state.name} was created without index.knn, so it cannot hold a graph",
                "Add the field with --index-type flat (exact search), or load the documents into a new index.",
            )
    beside = state.mappings.get("properties", {}).get(document_meta_field(vector_field))
    if beside is not None and "properties" not in beside:
        raise IndexMismatch(
            f"the field {document_meta_field(vector_field)!r} of {state.name} is in the way: es-sbert keeps an "
            "object of that name beside each vector",
            _OTHER_FIELD_REMEDY,
        )
    addition = mapping_addition(engine_type, vector_field, wanted, state.mappings.get("_meta", {}))
    return MappingChange(VectorField(state.name, vector_field, wanted, FieldOutcome.ADDED), addition)


def _check_existing_field(
    engine: Engine, state: IndexState, vector_field: str, wanted: VectorFieldMeta, chosen: IndexType | None
) -> VectorField:
    meta = _read_field_meta(engine, state, vector_field)
    field = VectorField(state.name, vector_field, meta, FieldOutcome.PRESENT)
    check_field_model(field, wanted.fingerprint, wanted.model)
    if meta.dimensions != wanted.dimensions:
        raise IndexMismatch(
            f"{state.name}.{vector_field} holds vectors of {meta.dimensions} dimensions, the model makes "
            f"{wanted.dimensions}",
            _OTHER_FIELD_REMEDY,
        )
    if chosen is not None and chosen != meta.index_type:
        raise IndexMismatch(
            f"{state.name}.{vector_field} has the index type {meta.index_type}, not {chosen}",
            "The type is chosen with the field: leave --index-type out, or use another --vector-field or index.",
        )
    if wanted.passages is not None and wanted.passages != meta.passages:
        raise IndexMismatch(
            f"{state.name}.{vector_field} holds {meta.passages or 'one vector a document'}, not {wanted.passages}",
            "Leave --passages out, or use another --vector-field or index.",
        )
    return field


def text_mismatch(name: str, field: VectorField, wanted: str, text_options: str | None) -> IndexMismatch:
    """The error for a text that is not the one from which a field's vectors were made.

    Args:
        name: The index or alias as the user calls it.
        field: The vector field.
        wanted: The other text.
        text_options: The options by which it was given.
    """
    options = text_options or shown_text_options(field.name, (), wanted) or ""
    option = options.partition(" ")[0]
    return IndexMismatch(
        f"the vectors in {field.index}.{field.name} were made from the text {field.meta.text!r}, not from {wanted!r}",
        f"Leave {option} out to go on with that text. To embed all documents from the new one: "
        f"`es-sbert ingest --index {name} --replace-text-template {options}` in place, or "
        f"`es-sbert index migrate {name} {options}` for searches that never see vectors of both.",
    )


def _read_field_meta(engine: Engine, state: IndexState, vector_field: str) -> VectorFieldMeta:
    """The field's `_meta` entry, once the mapping itself agrees with it."""
    engine_type = engine.info.engine_type
    field = state.mappings["properties"][vector_field]
    dimensions = mapped_dimensions(engine_type, field)
    if dimensions is None:
        raise IndexMismatch(
            f"the field {vector_field!r} of {state.name} is of type {field.get('type', 'object')}, not a vector field",
            _OTHER_FIELD_REMEDY,
        )
    meta = vector_fields(state.mappings, state.name).get(vector_field)
    if meta is None:
        raise IndexMismatch(
            f"the vectors in {state.name}.{vector_field} were not made by es-sbert: their model is not known",
            f"If you know the model: {adopt_command(state.name, vector_field)} checks it and takes them over. Else use "
            "another --vector-field or another index.",
        )
    similarity = mapped_similarity(engine_type, field)
    if similarity not in ("cosine", "cosinesimil"):
        raise IndexMismatch(
            f"{state.name}.{vector_field} compares vectors by {similarity}, es-sbert by their cosine",
            _OTHER_FIELD_REMEDY,
        )
    if dimensions != meta.dimensions:
        raise IndexMismatch(
            f"{state.name}.{vector_field} is mapped with {dimensions} dimensions, but its _meta says "
            f"{meta.dimensions}: one of them was edited by hand",
            "Load the documents into a new index.",
        )
    if (meta.passages is not None) != (field.get("type") == "nested"):
        raise IndexMismatch(
            f"the mapping and the _meta of {state.name}.{vector_field} do not agree about passages: one of them was "
            "edited by hand",
            "Load the documents into a new index.",
        )
    return meta


def adopt_command(index: str, vector_field: str) -> str:
    """The command that takes over vectors of another program, for messages."""
    return f"`es-sbert index adopt {index} --vector-field {vector_field} --model MODEL --text-field FIELD`"


def index_not_found(index: str, engine: Engine) -> IndexMissing:
    """The error for a name that no index or alias has."""
    return IndexMissing(
        f"there is no index {index!r} ({engine.info.label} at {engine.info.url})",
        f"Check the name, or create it: `es-sbert index create {index}`.",
    )


_HNSW = (IndexType.HNSW, IndexType.INT8_HNSW, IndexType.INT4_HNSW, IndexType.BBQ_HNSW)
# What Elasticsearch 8.19 and 9 allow (tests/engine/test_change_type.py tries them all). A graph never goes again, and
# a graph over quantised vectors only becomes coarser; without a graph, a quantised field may still get any but from
# bbq_flat.
ALLOWED_CHANGES: dict[IndexType, tuple[IndexType, ...]] = {
    IndexType.FLAT: (*_HNSW, IndexType.INT8_FLAT, IndexType.INT4_FLAT, IndexType.BBQ_FLAT),
    IndexType.INT8_FLAT: (*_HNSW, IndexType.INT4_FLAT, IndexType.BBQ_FLAT),
    IndexType.INT4_FLAT: (*_HNSW, IndexType.BBQ_FLAT),
    IndexType.BBQ_FLAT: (IndexType.BBQ_HNSW,),
    IndexType.HNSW: (IndexType.INT8_HNSW, IndexType.INT4_HNSW, IndexType.BBQ_HNSW),
    IndexType.INT8_HNSW: (IndexType.INT4_HNSW, IndexType.BBQ_HNSW),
    IndexType.INT4_HNSW: (IndexType.BBQ_HNSW,),
    IndexType.BBQ_HNSW: (),
}
# Parameters of the graph: a change that leaves them out sets them to their defaults, which may be refused.
_GRAPH_PARAMETERS = ("m", "ef_construction")
_POLL_SECONDS = 1.0


def change_index_type(engine: Engine, index: str, vector_field: str, index_type: str) -> IndexType:
    """Change the mapping and `_meta` of a vector field, in one request. What is in the index already follows as its
    segments are merged.

    Returns:
        The type that the field had; the same where there was nothing to do.

    Raises:
        IndexMissing, IndexMismatch: no such index or field, or a change that the engine does not allow.
        UsageError: an index type that the engine or the dimensions rule out.
        EngineError: the engine failed.
    """
    state = engine.get_index(index)
    if state is None:
        raise index_not_found(index, engine)
    field = read_vector_field(engine, state.name, vector_field)
    before, after = IndexType(field.meta.index_type), parse_index_type(index_type, engine.info, field.meta.dimensions)
    if before is after:
        return before
    where = f"{state.name}.{vector_field}"
    if engine.info.engine_type is not EngineType.ELASTICSEARCH:
        raise IndexMismatch(
            f"{engine.info.label} cannot change the index type of {where}, which is {before}",
            f"Load the documents into a new index: `es-sbert index migrate ALIAS --index-type {after}`.",
        )
    if after not in ALLOWED_CHANGES[before]:
        possible = ", ".join(ALLOWED_CHANGES[before]) or "none"
        raise IndexMismatch(
            f"Elasticsearch cannot change {where} from {before} to {after} in place (from {before}: {possible})",
            f"Load the documents into a new index: `es-sbert index migrate ALIAS --index-type {after}`.",
        )
    mapped = vector_property(state.mappings["properties"][vector_field])
    changed = mapped | {"index_options": changed_index_options(mapped["index_options"], after)}
    meta = field.meta.model_copy(update={"index_type": after})
    engine.put_mapping(
        state.name,
        {
            "_meta": merge_field_meta(state.mappings.get("_meta", {}), vector_field, meta),
            "properties": {vector_field: changed if meta.passages is None else chunks_property(changed)},
        },
    )
    return before


def changed_index_options(stored: Json, after: IndexType) -> Json:
    """A field's `changed_index_options` in its new type; the graph keeps its parameters."""
    kept = {name: stored[name] for name in _GRAPH_PARAMETERS if name in stored} if after in _HNSW else {}
    return {"type": str(after), **kept}


def force_merge(engine: Engine, index: str, wait: Callable[[float], object] = time.sleep) -> None:
    """Merge every shard into one segment, written in the field's present type; returns when it is done.

    Engines leave a shard alone that is one segment without deletions. There one document is written again as it is,
    which gives them something to merge.

    Args:
        index: Index or alias.
        wait: Called between two looks at the task, with the seconds.

    Raises:
        EngineError: the engine failed; the merge may go on without us.
    """
    engine.refresh(index)
    for shard, segments in enumerate(engine.count_segments(index)):
        if segments == 1:
            _rewrite_one_document(engine, index, shard)
    engine.refresh(index)
    task = engine.start_force_merge(index)
    while not engine.is_task_done(task):
        wait(_POLL_SECONDS)


def _rewrite_one_document(engine: Engine, index: str, shard: int) -> None:
    body: Json = {"size": 1, "_source": False, "seq_no_primary_term": True}
    for hit in engine.search(index, body, preference=f"_shards:{shard}")["hits"]["hits"]:
        head = {"_id": hit["_id"], "if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
        if "_routing" in hit:
            head["routing"] = hit["_routing"]
        lines = (orjson.dumps({"update": head}), orjson.dumps({"doc": {}, "detect_noop": False}))
        [result] = engine.bulk(index, b"\n".join(lines) + b"\n")
        # Another writer who was faster has done us the service.
        if not result.ok and result.status != 409:
            raise RequestFailed(
                f"{engine.info.label} would not write the document {hit['_id']!r} of {index} again: {result.reason}",
                "Merging needs the privileges write and maintenance on the index.",
                result.status,
            )
