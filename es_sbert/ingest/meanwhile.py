"""What other processes have done to the index during a load, looked at when it ends."""

from __future__ import annotations

from functools import partial

from es_sbert.engines.protocol import IndexState, Json
from es_sbert.events import record
from es_sbert.index.schema import merged_meta, vector_fields
from es_sbert.index.targets import filled
from es_sbert.ingest.context import LoadContext, patiently
from es_sbert.ingest.ledger import Outcome


def done_by_others(context: LoadContext, index: IndexState, began: str) -> list[str]:
    """Mend what can be mended; what must be said about the rest.

    Args:
        index: As it is now, refreshed.
        began: A time before the first vector of this load.

    Raises:
        EngineError: the engine failed.
    """
    _restore_entries(context, index)
    if context.control.stop.is_set() or context.plan.settings.watch_seconds is not None:
        return []
    return [*_added_fields(context, index), *_lost_vectors(context, began)]


def _restore_entries(context: LoadContext, index: IndexState) -> None:
    """Write what the mapping's `_meta` says about the load's fields again, where it says nothing any more.

    An update of a mapping replaces `_meta` whole and knows no conditions: of two processes that add to it in the same
    moment, one overwrites the other's entry.
    """
    there = vector_fields(index.mappings, index.name)
    lost = [target for target in filled(context.targets) if target.field not in there]
    if not lost:
        return
    meta: Json = index.mappings.get("_meta", {})
    for target in lost:
        meta = merged_meta(meta, target.field, target.meta)
    patiently(context, partial(context.engine.put_mapping, index.name, {"_meta": meta}))
    names = ", ".join(target.field for target in lost)
    record("mapping_restored", f"another process had overwritten what the mapping says about {names}", fields=names)


def _added_fields(context: LoadContext, index: IndexState) -> list[str]:
    """Documents of files are written whole, with the vectors that were known of when the load began."""
    if not context.plan.sources:
        return []
    known = {*vector_fields(context.index.mappings, index.name), *(target.field for target in context.targets)}
    return [
        f"{field} was added to the index meanwhile, and documents that this load wrote may lack it: "
        f"`es-sbert ingest --index {context.plan.settings.index} --vector {field}` embeds them"
        for field in vector_fields(index.mappings, index.name)
        if field not in known
    ]


def _lost_vectors(context: LoadContext, began: str) -> list[str]:
    """Documents that were written again without the vectors of this load, or deleted."""
    own = [
        {"bool": {"filter": [
            {"term": {f"{target.meta_field}.fingerprint": target.meta.fingerprint}},
            {"range": {f"{target.meta_field}.embedded_at": {"gte": began}}},
        ]}}
        for target in filled(context.targets)
    ]  # fmt: skip
    query: Json = {"bool": {"should": own, "minimum_should_match": 1}}
    standing = patiently(context, partial(context.engine.count, context.index.name, query))
    lost = context.outcomes.ledger.counts()[Outcome.INDEXED] - standing
    if lost <= 0:
        return []
    name = context.plan.settings.index
    fields = " ".join(f"--vector {target.field}" for target in filled(context.targets))
    return [
        f"{lost:,} documents that this load embedded have been written again without a vector, or deleted, by others "
        f"meanwhile: `es-sbert ingest --index {name} {fields}` embeds those that stand there"
    ]
