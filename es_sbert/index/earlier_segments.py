"""Determine which part of an index is stored in the current index type of a vector field.

A change of the index type applies only to segments that are written later, including those that merges write. Engines
do not report the type of a segment. Therefore `_meta` records which segments each shard copy has once the change has
taken effect. Segments never change, so the recorded segments have an earlier type and all others the current one. This
also holds for copies that were made from these copies later. If it cannot be decided for a segment, the share is
unknown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, ConfigDict, ValidationError

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState, Segment, ShardCopy
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import EARLIER_SEGMENTS, mapped_index_type, read_meta_entry, vector_fields, with_meta_entry
from es_sbert.index.text_template import format_vector_field_option

# Merges that began before the change may still write the earlier type.
_MERGE_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.2
# A cluster keeps mappings in memory on every node, so more segments than this are not recorded.
_MOST_SEGMENTS = 10_000


class EarlierSegments(BaseModel):
    """`_meta.es_sbert.earlier_segments.<vector field>`.

    Attributes:
        index_uuid: UUID of the index. A clone or a restored snapshot has other segments under the same names.
        index_type: The type of all other segments.
        is_complete: Whether all shard copies were available. A missing copy may return with unrecorded segments.
        segments: Shard → node → generation and number of documents, deleted ones included, of each segment.
    """

    model_config = ConfigDict(frozen=True)

    index_uuid: str
    index_type: str
    is_complete: bool
    segments: dict[int, dict[str, list[tuple[int, int]]]]


@dataclass(frozen=True)
class IndexTypeShare:
    """The share of an index that is stored in the current index type of a vector field.

    Attributes:
        index, field, index_type: The index, the vector field and its current index type.
        share: Share of the documents in all shard copies, from 0 to 1; None if it is not known.
        reason: Reason why the share is not known.
    """

    index: str
    field: str
    index_type: str
    share: float | None
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether all documents are known to be stored in the type."""
        return self.share == 1.0

    def describe(self) -> str:
        """Format the share as a sentence without a period."""
        if self.share is None:
            return f"It is not known which documents are already stored as {self.index_type}: {self.reason}"
        if self.is_whole:
            return f"All documents are stored as {self.index_type}"
        # The share is never rounded to none or all.
        percent = 100 * self.share
        shown = "0" if percent == 0 else f"{min(99.9, max(0.1, percent)):.1f}"
        return f"{shown} % of the documents are stored as {self.index_type}; the others still have an earlier type"

    @property
    def remedy(self) -> str:
        """The command that stores all documents in the type, as a sentence."""
        return (
            "Store all documents in this type: `es-sbert index change-type "
            f"{self.index} --index-type {self.index_type}{format_vector_field_option(self.field)} --force-merge`."
        )


def read_index_type_share(engine: Engine, index: IndexState, vector_field: str) -> IndexTypeShare:
    """Read how much of an index is stored in the current index type of a vector field.

    The segments are those of the last refresh. If the type was never changed, no request is sent.

    Raises:
        EngineError: the engine failed.
    """
    meta = vector_fields(index.mappings, index.name)[vector_field]
    property = index.mappings.get("properties", {}).get(vector_field)
    result = partial(IndexTypeShare, index.name, vector_field)
    if property is None or engine.info.engine_type is EngineType.OPENSEARCH:
        return result(meta.index_type, 1.0)  # no vectors; or OpenSearch, which cannot change the type
    mapped = mapped_index_type(engine.info.engine_type, index.settings, property)
    result = partial(result, str(mapped))
    if meta.index_type != mapped:
        return result(None, f"another program has changed the type from {meta.index_type}")
    entry = (read_meta_entry(index.mappings, EARLIER_SEGMENTS) or {}).get(vector_field)
    if entry is None:
        return result(1.0)
    earlier = _parse(entry)
    if earlier is None or earlier.index_type != mapped:
        return result(None, "the earlier types of the field were not recorded")
    if earlier.index_uuid != index.uuid:
        return result(None, "the index is a copy of one whose type was changed")
    try:
        copies = engine.segments(index.name)
    except AccessDenied:
        return result(None, "this user may not read the segments of the index (privilege monitor)")
    share = present_share(earlier, copies)
    return result(share, "copies of its shards have been replaced since the change" if share is None else "")


def _parse(entry: object) -> EarlierSegments | None:
    try:
        return EarlierSegments.model_validate(entry)
    except ValidationError:  # the share of earlier segments is then unknown
        return None


def present_share(earlier: EarlierSegments, copies: Mapping[int, list[ShardCopy]]) -> float | None:
    """Share of the documents in segments of the current type, over all shard copies; None if it is not known.

    Args:
        earlier: The segments that are of an earlier type.
        copies: Shard → its copies now.
    """
    documents = old = 0
    for shard, now in copies.items():
        noted = earlier.segments.get(shard, {})
        for copy in now:
            if copy.node not in noted and not earlier.is_complete:
                return None
            for segment in copy.segments:
                if not segment.is_searched or not segment.documents:
                    continue
                is_old = _is_noted(segment, copy.node, noted)
                if is_old is None:
                    return None
                documents += segment.documents
                old += segment.documents * is_old
    return 1.0 if documents == 0 else 1 - old / documents


def _is_noted(segment: Segment, node: str, noted: Mapping[str, list[tuple[int, int]]]) -> bool | None:
    """Whether a segment is one of the recorded ones; None if that cannot be decided."""
    identity = segment.generation, segment.max_documents
    own = noted.get(node, [])
    if identity in own:
        return True
    # A replaced copy starts with the segments of the copy that it was made from and continues their numbers. A copy
    # that was not replaced may have given the number of another copy's segment to a new one.
    is_of_another = any(identity in segments for other, segments in noted.items() if other != node)
    return None if is_of_another and own else is_of_another


def settled_segments(engine: Engine, index: str) -> dict[int, list[ShardCopy]] | None:
    """Read the segments that may hold vectors in an earlier type, after the mapping was changed.

    Writes and merges that run during the change may still use the earlier type, so this waits for them.

    Returns:
        Shard → its copies; None if this user may not read them or merges run for longer than a minute.

    Raises:
        EngineError: the engine failed.
    """
    give_up = time.monotonic() + _MERGE_WAIT_SECONDS
    try:
        engine.refresh(index)
        while engine.running_merges(index):
            if time.monotonic() > give_up:
                return None
            time.sleep(_POLL_SECONDS)
        engine.refresh(index)
        return engine.segments(index)
    except AccessDenied:
        return None


def note_earlier_segments(engine: Engine, index: IndexState, vector_field: str) -> None:
    """Record in `_meta` which segments may hold vectors in an earlier type, after the mapping was changed.

    The segments stay unknown if `settled_segments` returns None or if there are too many of them.

    Raises:
        IndexMissing, IndexMismatch: see `update_mapping`.
        EngineError: the engine failed.
    """
    copies = settled_segments(engine, index.name)
    if copies is None or sum(len(copy.segments) for listed in copies.values() for copy in listed) > _MOST_SEGMENTS:
        return
    noted = {
        shard: {copy.node: sorted((each.generation, each.max_documents) for each in copy.segments) for copy in listed}
        for shard, listed in copies.items()
    }

    def plan(state: IndexState) -> Json | None:
        replicas = int(state.setting("index.number_of_replicas") or "1")
        entry = EarlierSegments(
            index_uuid=state.uuid,
            index_type=vector_fields(state.mappings, state.name)[vector_field].index_type,
            is_complete=all(len(listed) > replicas for listed in copies.values()),
            segments=noted,
        )
        return _plan_entry(state, vector_field, entry.model_dump(mode="json"))

    update_mapping(engine, index, plan)


def drop_earlier_segments(
    engine: Engine, index: IndexState, vector_field: str, before: Mapping[int, list[ShardCopy]]
) -> None:
    """Remove the record of a field's earlier segments if all segments of all shard copies were written later.

    Args:
        before: The result of `settled_segments` before a merge of all copies.

    Raises:
        IndexMissing, IndexMismatch: see `update_mapping`.
        EngineError: the engine failed.
    """
    engine.refresh(index.name)
    if are_rewritten(before, engine.segments(index.name)):
        update_mapping(engine, index, lambda state: _plan_entry(state, vector_field, None))


def are_rewritten(before: Mapping[int, list[ShardCopy]], after: Mapping[int, list[ShardCopy]]) -> bool:
    """Whether the copies are on the same nodes and all segments that are searched are newer than those before."""
    latest = {
        (shard, copy.node): max((segment.generation for segment in copy.segments), default=-1)
        for shard, copies in before.items()
        for copy in copies
    }
    now = {(shard, copy.node): copy.segments for shard, copies in after.items() for copy in copies}
    return latest.keys() == now.keys() and all(
        segment.generation > latest[place] or not segment.is_searched or not segment.documents
        for place, segments in now.items()
        for segment in segments
    )


def _plan_entry(state: IndexState, vector_field: str, entry: Json | None) -> Json | None:
    """Plan the change of `_meta` that sets or removes the entry of a field; None if nothing changes."""
    entries = read_meta_entry(state.mappings, EARLIER_SEGMENTS) or {}
    if entries.get(vector_field) == entry:
        return None
    wanted = {name: kept for name, kept in entries.items() if name != vector_field}
    wanted |= {} if entry is None else {vector_field: entry}
    return {"_meta": with_meta_entry(state.mappings.get("_meta", {}), EARLIER_SEGMENTS, wanted or None)}
