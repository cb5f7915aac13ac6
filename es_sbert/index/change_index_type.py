"""Change the index type of a vector field in place.

Elasticsearch rewrites segments in the new type when it merges them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson

from es_sbert.engines.protocol import Engine, EngineType, Json
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.mapping import IndexType, chunks_property, merge_field_meta, parse_index_type, vector_property
from es_sbert.index.vector_field import index_not_found, read_vector_field

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
