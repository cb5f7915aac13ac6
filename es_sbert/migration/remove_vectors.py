"""Remove everything that es-sbert has added to an index: vectors, their metadata, and `_meta`.

The entries in `_meta` are removed first, so that loads, searches and the gateway no longer see a vector field; a note
lists the fields to remove from the documents. Each document is then written without these fields, unless another client
has written it since it was read. Run the same command again to resume a run that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from pydantic import BaseModel

from es_sbert.batched import batched
from es_sbert.engines.engine import DocumentKey, Engine, document_key
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json, exact_numbers
from es_sbert.engines.retry import Retrier, RetryPolicy, make_retrier
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.derived_fields import is_within, mapped_fields
from es_sbert.index.document_vectors import if_unchanged
from es_sbert.index.hidden_documents import require_all_visible
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.index_template import matching_templates
from es_sbert.index.load_checks import settings_of_killed_load
from es_sbert.index.mapping import (
    META_KEY,
    REMOVING,
    bytes_as_floats,
    document_meta_field,
    exists_query,
    read_meta_entry,
    vector_fields,
    with_meta_entry,
)
from es_sbert.index.privileges import REMOVE, require_privileges
from es_sbert.index.source_mode import check_source_is_whole
from es_sbert.index.text_template import without_fields
from es_sbert.index.vector_field import require_index
from es_sbert.index.versioned_updates import CONFLICT, VersionedUpdates, is_deleted
from es_sbert.index.whole_documents import restore_numbers
from es_sbert.migration.compare_indices import FINAL_PIPELINE
from es_sbert.migration.document_copy import check_restored, copy_write
from es_sbert.migration.migration_state import (
    delete_requests,
    find_begun,
    kept_indices,
    read_migration_state,
    replaced_error,
)

_WRITTEN = "written_fields"
_PAGE = 500
_WHOLE_PAGE = 100  # documents with their vectors
_MAX_ROUNDS = 10


class Removal(BaseModel, frozen=True):
    """The result of removing vectors from an index.

    Attributes:
        index: Its name.
        fields: Fields that were taken out of the documents: vectors, their metadata, results of analyses.
        documents: Number of documents that were written without these fields.
        remains: Sentences about parts that cannot be removed, and about settings of a killed load.
    """

    index: str
    fields: tuple[str, ...]
    documents: int
    remains: tuple[str, ...]


def removable_fields(index: IndexState) -> tuple[str, ...]:
    """The fields of documents that es-sbert writes in an index, and those that an earlier run has begun to remove."""
    fields = vector_fields(bytes_as_floats(index).mappings, index.name)
    names = [each for name in fields for each in (name, document_meta_field(name))]
    written, begun = read_meta_entry(index.mappings, _WRITTEN) or [], read_meta_entry(index.mappings, REMOVING) or []
    return tuple(dict.fromkeys([*begun, *names, *written]))


def remove_vectors(
    engine: Engine, name: str, *, policy: RetryPolicy, report: Callable[[str], None] = lambda message: None
) -> Removal:
    """Remove everything that es-sbert has added to an index, or resume such a removal.

    Args:
        name: Index or alias.
        report: Receives a message for each wait.

    Raises:
        IndexMissing, IndexMismatch: the index does not exist, a load or a migration is under way, or documents cannot
            be written from their `_source`; nothing was changed.
        EngineError: the engine failed; the same call resumes.
    """
    retrying = make_retrier(policy, report)
    index = retrying(partial(require_index, engine, name))
    fields = removable_fields(index)
    _check_removable(engine, index, fields)
    retrying(partial(require_privileges, engine, index.name, REMOVE))
    require_all_visible(engine, index.name, retrying)
    settings = settings_of_killed_load(index) or ()  # the mapping forgets them with the rest
    retrying(partial(update_mapping, engine, index, partial(_plan_note, fields)))
    documents = _rewrite_documents(engine, index, fields, policy, report) if fields else 0
    retrying(partial(update_mapping, engine, index, _plan_end))
    left = retrying(partial(require_index, engine, index.name))
    remains = (*retrying(partial(_what_remains, engine, left, fields)), *settings)
    return Removal(index=index.name, fields=fields, documents=documents, remains=remains)


def _check_removable(engine: Engine, index: IndexState, fields: Collection[str]) -> None:
    if META_KEY not in index.mappings.get("_meta", {}):
        raise IndexMismatch(f"es-sbert has added nothing to {index.name}, according to its mapping", "Check the name.")
    check_source_is_whole(index, fields)
    pipeline = index.settings.get(FINAL_PIPELINE, "_none")
    if fields and pipeline != "_none":
        raise IndexMismatch(
            f"each document that is written without its vectors would go through the ingest pipeline {pipeline!r} "
            f"({FINAL_PIPELINE}) again, which can change or drop it",
            "Stop other writers, whose documents would not go through it, and switch the pipeline off until this "
            f'command has ended: `PUT {index.name}/_settings {{"{FINAL_PIPELINE}": "_none"}}`.',
        )
    begun = find_begun(engine, index)
    refusal = begun.error() if begun is not None else replaced_error(engine, index)
    if refusal is not None:
        raise refusal
    kept = [each.name for each in kept_indices(engine, read_migration_state(index))]
    if kept:
        # The state of the migration, which is removed too, is all that names them.
        raise IndexMismatch(
            f"migrations of {index.name} have kept {', '.join(kept)}",
            f"Delete what is kept: {delete_requests(kept)}. Then run this again.",
        )


def _plan_note(fields: Sequence[str], state: IndexState) -> Json | None:
    """Plan the change of the mapping that replaces the entries in `_meta` with the note; None if that is done."""
    ours = state.mappings.get("_meta", {}).get(META_KEY, {})
    # The settings of a killed load are named at the end, also by a run that resumes this one.
    noted = {name: ours[name] for name in ("load",) if name in ours}
    noted |= {REMOVING: sorted({*fields, *(read_meta_entry(state.mappings, REMOVING) or [])})}
    return None if ours == noted else {"_meta": state.mappings.get("_meta", {}) | {META_KEY: noted}}


def _plan_end(state: IndexState) -> Json | None:
    """Plan the change of the mapping that removes the note and all of our `_meta`; None if that is done."""
    meta = state.mappings.get("_meta", {})
    if META_KEY not in meta:
        return None
    if read_meta_entry(state.mappings, "fields"):
        # Remove only the note: another program has added a vector field since.
        without = with_meta_entry(meta, REMOVING, None)
        return None if without == meta else {"_meta": without}
    return {"_meta": {key: value for key, value in meta.items() if key != META_KEY}}


def mapped_names(index: IndexState, fields: Iterable[str]) -> list[str]:
    """Those of the fields that the mapping has, or that are objects of which it has fields."""
    mapped = [name for name, _ in mapped_fields(index.mappings.get("properties", {}))]
    return [name for name in fields if any(is_within(each, [name]) for each in mapped)]


def _rewrite_documents(
    engine: Engine, index: IndexState, fields: Sequence[str], policy: RetryPolicy, report: Callable[[str], None]
) -> int:
    """Rewrite, without the fields, each document that has one of them; returns the number of documents written."""
    retrying = make_retrier(policy, report)
    updates = VersionedUpdates(engine, index, policy, report, source=index, made=fields)
    written = 0
    for _ in range(_MAX_ROUNDS):
        retrying(partial(engine.refresh, index.name))
        conflicts = 0
        for keys in _documents_with(engine, index, fields, retrying):
            with exact_numbers():
                read = retrying(partial(engine.mget, index.name, keys, whole=True))
            found = [hit for hit in read if hit is not None]
            check_restored(restore_numbers(engine, index, found, retrying))
            writes = [
                copy_write(hit, fields, if_unchanged(hit))
                for hit in found
                if without_fields(hit["_source"], fields) is not hit["_source"]
            ]
            for write, result in updates.send(writes):
                if result.ok:
                    written += 1
                elif result.status == CONFLICT:
                    conflicts += 1
                elif not is_deleted(result):
                    raise RequestFailed(
                        f"{engine.info.label} refuses the document {write.key[0]!r} of {index.name}: {result.reason}",
                        "Fix or delete that document, then run the same command again to resume.",
                        result.status,
                    )
        if not conflicts:
            retrying(partial(engine.refresh, index.name))
            return written
    raise IndexMismatch(
        f"other writers kept changing documents of {index.name} while they were written",
        "Run the same command again when less is written: it resumes.",
    )


def _documents_with(
    engine: Engine, index: IndexState, fields: Sequence[str], retrying: Retrier
) -> Iterator[Sequence[DocumentKey]]:
    """Yield pages of keys of the documents that have any of the fields, as a vector or (even if null) in `_source`."""
    # Vectors may be left out of `_source`, so look these fields up by a query.
    properties = index.mappings.get("properties", {})
    exists = [exists_query(name, properties) for name in mapped_names(index, fields)]
    named = [{"bool": {"filter": [query], "_name": "ours"}} for query in exists]
    query: Json = {"bool": {"must": [{"match_all": {}}], "should": named}}
    for page in scan_index(
        engine, index.name, query=query, source_includes=list(fields), page=_PAGE, retrying=retrying
    ):
        keys = [
            document_key(hit) for hit in page.hits if hit.get("_source") or "ours" in hit.get("matched_queries", ())
        ]
        yield from batched(keys, _WHOLE_PAGE)


def _what_remains(engine: Engine, index: IndexState, fields: Sequence[str]) -> list[str]:
    """Describe the parts that cannot be removed, in sentences."""
    remains = []
    mapped = mapped_names(index, fields)
    if mapped:
        remains.append(
            f"The mapping of {index.name} still has the fields {', '.join(mapped)}: engines cannot remove a field "
            "from a mapping. Without values they take no space once segments are merged. To get rid of them, copy the "
            "documents into an index without them (`POST _reindex`)."
        )
    if engine.info.engine_type is EngineType.OPENSEARCH and index.has_setting("index.knn"):
        remains.append(f"{index.name} keeps the setting index.knn, which OpenSearch cannot change.")
    for part in matching_templates(engine, index.data_stream or index.name) or ():
        if META_KEY in (part.template.get("mappings") or {}).get("_meta", {}):
            remains.append(
                f"{part.label} still gives new indices the vector field. Change or delete it if it is not needed."
            )
    return remains
