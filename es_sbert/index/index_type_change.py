"""Change the index type of a vector field in place, and merge its index into that type."""

from __future__ import annotations

import time

from es_sbert.engines.engine import Engine, document_key
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.error_mapping import access_denied
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import without_retries
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.earlier_segments import drop_earlier_segments, note_earlier_segments, settled_segments
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import (
    IndexType,
    chunks_property,
    is_element_type_of,
    merge_field_meta,
    parse_index_type,
    vector_fields,
    vector_property,
)
from es_sbert.index.source_mode import check_source_is_whole
from es_sbert.index.vector_field import require_index, vector_field_from_state
from es_sbert.index.whole_documents import read_inexact, write_lines

_HNSW = (IndexType.HNSW, IndexType.INT8_HNSW, IndexType.INT4_HNSW, IndexType.BBQ_HNSW)
# The changes that Elasticsearch 8.19 and 9 allow (tests/engine/test_change_type.py tries them all). A graph cannot be
# removed, and a graph over quantized vectors can only become coarser. A quantized field without a graph can still get
# any graph, except from bbq_flat.
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
# Parameters of the graph: a change that omits them sets them to their defaults, which may be rejected.
_GRAPH_PARAMETERS = ("m", "ef_construction")
_POLL_SECONDS = 1.0


def check_index_type_change(engine: Engine, index: str, vector_field: str, index_type: str) -> IndexType:
    """Check that a vector field can get another index type in place.

    Returns:
        The current type.

    Raises:
        IndexMissing, IndexMismatch: the index or field does not exist, or the engine does not allow the change.
        UsageError: the engine or the dimensions rule out the index type.
        EngineError: the engine failed.
    """
    state = require_index(engine, index)
    _plan_index_type(engine, state, vector_field, index_type)
    return IndexType(vector_field_from_state(engine, state, vector_field).meta.index_type)


def change_index_type(engine: Engine, index: str, vector_field: str, index_type: str) -> IndexType:
    """Change the index type of a vector field, in the mapping and in `_meta`, with one request.

    Documents that are already in the index follow when their segments are merged. `_meta` records these segments.

    Returns:
        The previous type of the field; the same type if there was nothing to change.

    Raises:
        IndexMissing, IndexMismatch: the index or field does not exist, or the engine does not allow the change.
        UsageError: the engine or the dimensions rule out the index type.
        EngineError: the engine failed.
    """
    state = require_index(engine, index)
    before = IndexType(vector_field_from_state(engine, state, vector_field).meta.index_type)
    update_mapping(engine, state, lambda found: _plan_index_type(engine, found, vector_field, index_type))
    if before != index_type:
        note_earlier_segments(engine, state, vector_field)
    return before


def _plan_index_type(engine: Engine, state: IndexState, vector_field: str, index_type: str) -> Json | None:
    """Plan the change of the mapping that gives a vector field another index type; None if it has that type."""
    field = vector_field_from_state(engine, state, vector_field)
    meta, before = field.meta, IndexType(field.meta.index_type)
    after = parse_index_type(index_type, engine.info, meta.dimensions, meta.element_type)
    if before is after:
        # Another program may have restored an older `_meta`, or changed the type without it.
        if vector_fields(state.mappings, state.name)[vector_field].index_type == after:
            return None
        return {"_meta": merge_field_meta(state.mappings.get("_meta", {}), vector_field, meta)}
    where = f"{state.name}.{vector_field}"
    refusal = None
    if engine.info.engine_type is not EngineType.ELASTICSEARCH:
        refusal = f"{engine.info.label} cannot change the index type of {where}, which is {before}"
    elif after not in ALLOWED_CHANGES[before]:
        allowed = [each for each in ALLOWED_CHANGES[before] if is_element_type_of(meta.element_type, each)]
        possible = ", ".join(allowed) or "none"
        refusal = f"Elasticsearch cannot change {where} from {before} to {after} in place (from {before}: {possible})"
    if refusal is not None:
        raise IndexMismatch(
            refusal, f"Load the documents into a new index: `es-sbert index migrate ALIAS --index-type {after}`."
        )
    mapped = vector_property(state.mappings["properties"][vector_field])
    changed = mapped | {"index_options": changed_index_options(mapped["index_options"], after)}
    meta = meta.changed(index_type=after)
    mapping_meta = merge_field_meta(state.mappings.get("_meta", {}), vector_field, meta)
    property = changed if meta.passages is None else chunks_property(changed)
    return {"_meta": mapping_meta, "properties": {vector_field: property}}


def changed_index_options(stored: Json, after: IndexType) -> Json:
    """Return a field's `index_options` with its new type; the graph keeps its parameters."""
    kept = {name: stored[name] for name in _GRAPH_PARAMETERS if name in stored} if after in _HNSW else {}
    return {"type": str(after), **kept}


def store_in_index_type(engine: Engine, index: str, vector_field: str) -> None:
    """Rewrite all vectors of a field in its current index type, by merging every shard into one segment.

    Raises:
        IndexMissing, IndexMismatch: the index does not exist; see also `update_mapping`.
        EngineError: the engine failed; the merge may continue in the background.
    """
    state = require_index(engine, index)
    before = settled_segments(engine, state.name)
    force_merge(engine, state.name)
    if before is not None:
        drop_earlier_segments(engine, state, vector_field, before)


def check_force_merge(engine: Engine, index: str) -> list[int]:
    """Check that every shard can be merged; return those of which `force_merge` rewrites a document.

    Raises:
        IndexMismatch: such a document would lose fields that `_source` lacks.
        EngineError: the engine failed.
    """
    engine.refresh(index)
    shards = [shard for shard, segments in engine.count_segments(index).items() if segments == 1]
    if shards:
        check_source_is_whole(require_index(engine, index))
    return shards


def force_merge(engine: Engine, index: str) -> None:
    """Merge every shard into one segment, written in the field's current type, and wait until the merge is done.

    Engines do not merge a shard that is one segment without deletions. In such a shard, one document is rewritten
    unchanged, so that there is something to merge.

    Args:
        index: Index or alias.

    Raises:
        IndexMismatch: see `check_force_merge`.
        EngineError: the engine failed; the merge may continue in the background.
    """
    for shard in check_force_merge(engine, index):
        _rewrite_one_document(engine, index, shard)
    engine.refresh(index)
    task = engine.start_force_merge(index)
    while not engine.is_task_done(task):
        time.sleep(_POLL_SECONDS)


def _rewrite_one_document(engine: Engine, index: str, shard: int) -> None:
    state = require_index(engine, index)
    body: Json = {"size": 1, "_source": False, "seq_no_primary_term": True}
    for hit in engine.search(index, body, preference=f"_shards:{shard}")["hits"]["hits"]:
        whole = read_inexact(engine, state, [hit], without_retries).get(document_key(hit))
        if whole is not None and whole.problem:
            raise IndexMismatch(
                f"the document {hit['_id']!r} of {index} cannot be rewritten unchanged: {whole.problem}",
                "Then run the command again.",
            )
        [result] = engine.bulk(index, write_lines(hit, {}, whole, detect_noop=False))
        if result.is_denied:
            raise access_denied(engine.info.label, f"writing to {index}", result.reason)
        # After a conflict, the shard has something to merge too, because another writer has written the document.
        if not result.ok and result.status != 409:
            raise RequestFailed(
                f"{engine.info.label} refused to rewrite the document {hit['_id']!r} of {index}: {result.reason}",
                "Merging needs the privileges write and maintenance on the index.",
                result.status,
            )
