"""Resume or begin a migration to a new index without es-sbert's fields: `es-sbert index remove --reindex`.

Engines cannot remove a field from a mapping, so removing the vector fields requires a new index. Documents are copied
and compared, and the alias is swapped, as in every migration. The old index is kept for a rollback.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator
from typing import Any, cast

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, RetryingEngine, without_retries
from es_sbert.errors import IndexMismatch
from es_sbert.index.derived_fields import without_mapped_fields
from es_sbert.index.mapping import META_KEY
from es_sbert.migration.compare_indices import copied_settings
from es_sbert.migration.migration_state import (
    BegunMigration,
    MigrationPhase,
    find_migration,
    set_target_pointer,
)
from es_sbert.migration.prepare_migration import (
    MigrationRequest,
    PreparedMigration,
    check_new_index,
    check_source_index,
    create_target,
    find_resumable,
    initial_state,
    new_index_name,
    resume_migration,
)
from es_sbert.migration.remove_vectors import own_templates, removable_fields, require_own_entry

# OpenSearch's settings for k-NN; without a field of this type, they have no effect.
_KNN_SETTING = re.compile(r"index\.knn(\..*)?")
_KNN_TYPE = "knn_vector"


def prepare_removal(engine: Engine, wanted: MigrationRequest, retrying: Retrier = without_retries) -> PreparedMigration:
    """Find the removal to resume, or create the index without vectors.

    Args:
        retrying: Retries each request.

    Raises:
        IndexMissing, IndexMismatch, UsageError: the request is not possible; nothing was changed.
        EngineError: the engine failed.
    """
    plain, engine = engine, cast(Engine, RetryingEngine(engine, retrying))
    index, state = find_migration(engine, wanted.alias)
    if state is not None and state.phase is MigrationPhase.CLOSING:
        _check_same_removal(BegunMigration(index, state, is_swapped=True), wanted)
        return resume_migration(plain, index, state, engine.get_index(state.source), retrying)
    if index.data_stream is not None:
        raise IndexMismatch(
            f"{index.name} belongs to the data stream {index.data_stream}, which cannot switch to another index",
            f"Leave `reindex` out: `es-sbert index remove {index.name}`.",
        )
    name = wanted.name or new_index_name(wanted.alias, "plain", index.name)
    fields = removable_fields(index)
    found = find_resumable(plain, index, name, retrying)
    if found is not None:
        begun, state = found
        _check_same_removal(BegunMigration(begun, state, is_swapped=False), wanted)
        check_source_index(engine, index, wanted, fields)
        retrying(lambda: set_target_pointer(plain, index, begun.name))
        return resume_migration(plain, begun, state, index, retrying)
    require_own_entry(index)
    if not fields:
        raise IndexMismatch(
            f"{index.name} has no field of es-sbert, so no copy is needed",
            f"Leave `reindex` out: `es-sbert index remove {wanted.alias}`.",
        )
    check_source_index(engine, index, wanted, fields)
    for template in own_templates(engine, name):
        raise IndexMismatch(
            f"{template} gives {name} the vector field again", "Change or delete it, or set `name` to another name."
        )
    check_new_index(engine, index.name, wanted.alias, name)
    begun_state = initial_state(index, wanted.alias, name).model_copy(update={"removed": fields})
    body = plain_index_body(index, fields)
    target, store = create_target(plain, index, name, body, begun_state, retrying)
    return PreparedMigration(index, target, {}, store, resumed=False)


def plain_index_body(source: IndexState, fields: Collection[str]) -> Json:
    """Build the body of `PUT /index`: settings and mapping of an index without these fields and without our `_meta`."""
    settings, mappings = copied_settings(source), copy.deepcopy(source.mappings)
    mappings["properties"] = without_mapped_fields(mappings.get("properties", {}), fields)
    mappings["_meta"] = {key: entry for key, entry in mappings.get("_meta", {}).items() if key != META_KEY}
    if _KNN_TYPE not in _field_types(mappings["properties"]):
        settings = {key: value for key, value in settings.items() if not _KNN_SETTING.fullmatch(key)}
    return {"settings": settings, "mappings": mappings}


def _field_types(properties: dict[str, Any]) -> Iterator[str]:
    for field in properties.values():
        yield field.get("type", "object")
        for inner in ("properties", "fields"):
            yield from _field_types(field.get(inner, {}))


def _check_same_removal(begun: BegunMigration, wanted: MigrationRequest) -> None:
    """Refuse to continue a rollback, a migration to another model, or a removal under another name.

    Raises:
        IndexMismatch: the migration that was begun is not this removal.
    """
    if begun.state.is_rollback:
        raise begun.error()
    if begun.state.removed and wanted.name in (None, begun.target.name):
        return
    raise IndexMismatch(
        f"{wanted.alias} is being copied to {begun.target.name} already"
        + (", under another name" if begun.state.removed else ", for another model"),
        begun.error().remedy,
    )
