"""Resume an existing migration, or check the request and create the new index."""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, RetryingEngine, is_transient, without_retries
from es_sbert.errors import EngineError, EsSbertError, IndexMismatch, RequestFailed, UsageError
from es_sbert.index.derived_fields import derived_fields
from es_sbert.index.mapping import (
    GRAPH_PARAMETERS,
    META_KEY,
    IndexType,
    VectorFieldMeta,
    graph_options,
    mapping_addition,
    parse_index_type,
    sparser_graph,
    vector_fields,
)
from es_sbert.index.privileges import MIGRATE_FROM, MIGRATE_TO, count_all_documents, require_privileges
from es_sbert.index.source_mode import check_source_is_whole
from es_sbert.index.text_template import (
    TextFieldError,
    TextTemplate,
    document_field_names,
    fields_hint,
    mapping_field_names,
)
from es_sbert.index.vector_field import (
    VectorField,
    check_passages_kept,
    has_one_index_type,
    require_index,
    vector_field_from_state,
)
from es_sbert.ingest.load_plan import ModelIdentity
from es_sbert.messages import setting
from es_sbert.migration.alias_swap import permit_name
from es_sbert.migration.compare_indices import (
    FINAL_PIPELINE,
    REFRESH_INTERVAL,
    ROUTING_SHARDS,
    SET_AT_SWAP,
    check_same_index,
    check_template_aliases,
    copied_settings,
    lifecycle_settings,
)
from es_sbert.migration.migration_state import (
    BegunMigration,
    MigrationPhase,
    MigrationState,
    MigrationStateStore,
    find_target,
    kept_index,
    read_migration_state,
    set_target_pointer,
    vector_field_names,
    with_migration_state,
)

# Entries of `_meta.es_sbert` that are copied; the others are notes of loads and migrations about the old index.
_META_COPIED = ("fields", "written_fields")


def new_index_name(alias: str, suffix: str, source: str) -> str:
    """`docs-1a2b3c4d` for the alias `docs`; with a number appended if the old index has that name already.

    Args:
        suffix: For example the model's fingerprint, of which eight characters are used.
    """
    name = f"{alias}-{suffix[:8]}"
    if source != name and not re.fullmatch(rf"{re.escape(name)}-\d+", source):
        return name
    number = source.removeprefix(name).removeprefix("-")
    return f"{name}-{int(number or 1) + 1}"


def new_index_body(engine_type: EngineType, source: IndexState, fields: Mapping[str, VectorFieldMeta]) -> Json:
    """Build the body of `PUT /index`: settings and mapping of the old index, with these vector fields.

    Args:
        fields: Vector fields of the new model.

    Raises:
        IndexMismatch: an OpenSearch index cannot hold both fields with a graph and fields without.
    """
    settings, mappings = copied_settings(source), copy.deepcopy(source.mappings)
    meta: Json = mappings.get("_meta", {})
    ours = meta.get(META_KEY, {})
    meta[META_KEY] = {name: ours[name] for name in _META_COPIED if name in ours}
    # The entries of these fields are made anew, with the new index type.
    meta[META_KEY]["fields"] = {name: entry for name, entry in ours.get("fields", {}).items() if name not in fields}
    for name, wanted in fields.items():
        addition = mapping_addition(engine_type, name, wanted, meta)
        meta = addition["_meta"]
        # Replace the mapping of a field as a whole: parameters of the old type may not be allowed for the new one. But
        # a graph with more links than es-sbert's stays so, because recall would fall.
        old, new = (graph_options(each["properties"][name]) for each in (mappings, addition))
        new |= {key: max(new[key], old.get(key, 0)) for key in GRAPH_PARAMETERS if key in new}
        mappings["properties"] |= addition["properties"]
    mappings["_meta"] = meta
    if engine_type is EngineType.OPENSEARCH:
        are_flat = {entry["index_type"] == IndexType.FLAT for entry in meta[META_KEY]["fields"].values()}
        if len(are_flat) > 1:
            raise IndexMismatch(
                f"on OpenSearch, either all vector fields of {source.name} have a graph, or none",
                f"Choose an {setting('index_type')} for {', '.join(fields)} that fits the other vector fields.",
            )
        is_flat = are_flat == {True}
        settings["index.knn"] = "false" if is_flat else "true"
        if is_flat:
            # OpenSearch sets this itself in an index with graphs, and refuses it, even as false, in one without.
            settings.pop("index.knn.derived_source.enabled", None)
    return {"settings": settings, "mappings": mappings}


_TEMPLATE_SAMPLE_SIZE = 200


def check_template_fields(engine: Engine, index: IndexState, template: TextTemplate) -> None:
    """Refuse a template with a field that neither the mapping nor any of 200 documents has.

    Raises:
        UsageError: a field is unknown, belongs to a vector, or holds no text in any of the documents.
        EngineError: the engine failed.
    """
    own = vector_field_names(vector_fields(index.mappings, index.name))
    for field in template.fields:
        if field.partition(".")[0] in own:
            raise UsageError(
                f"the text template uses {field}, which es-sbert writes itself", "Use only your documents' own fields."
            )
    body: Json = {"query": {"match_all": {}}, "size": min(_TEMPLATE_SAMPLE_SIZE, index.result_window), "_source": True}
    sample = [hit.get("_source") or {} for hit in engine.search(index.name, body)["hits"]["hits"]]
    names = dict.fromkeys(mapping_field_names(index.mappings.get("properties", {})))
    names |= dict.fromkeys(name for document in sample for name in document_field_names(document))
    unknown = [field for field in template.fields if field not in names]
    if unknown:
        available = [name for name in names if name.partition(".")[0] not in own]
        raise UsageError(
            f"neither the documents nor the mapping of {index.name} have the field {' or '.join(unknown)}",
            fields_hint(unknown, available, "The documents have", derived_fields(index.mappings)),
        )
    reasons = []
    for document in sample:
        try:
            if template.text_of(document):
                return
        except TextFieldError as error:
            reasons.append(str(error))
    if reasons:
        raise UsageError(
            f"the text template {template.template!r} gives no document a text: {reasons[0]}",
            "Use fields that hold strings.",
        )


@dataclass(frozen=True)
class MigrationRequest:
    """The migration that the user requests.

    Attributes:
        alias: The alias, or with `replace_index` the index that becomes one.
        vector_field: The field whose model is replaced; other fields of the same model are migrated too.
        name: Name of the new index; None to derive it.
        index_type: Index type of the new fields; None to keep those of the old ones.
        replace_index: Replace an index with an alias of its name that points to the new index.
        text: Template of the text that is embedded for the vector field; None to keep the old one.
        max_write_block: Seconds for which one run may refuse writes before the swap, over all its attempts.
    """

    alias: str
    vector_field: str
    name: str | None = None
    index_type: str | None = None
    replace_index: bool = False
    text: TextTemplate | None = None
    max_write_block: float = 10.0


@dataclass(frozen=True)
class PreparedMigration:
    """A migration that is ready to run.

    Attributes:
        source: The old index; None if it has been removed.
        target: The new one.
        fields: Vector fields of the new one that the new model fills.
        state_store: The stored state.
        resumed: Whether an earlier run has begun it.
    """

    source: IndexState | None
    target: IndexState
    fields: dict[str, VectorFieldMeta]
    state_store: MigrationStateStore
    resumed: bool


def prepare_migration(
    engine: Engine, wanted: MigrationRequest, encoder: Encoder, retrying: Retrier = without_retries
) -> PreparedMigration:
    """Find the migration to resume, or start a new one.

    Args:
        retrying: Retries each request.

    Raises:
        IndexMissing, IndexMismatch, UsageError, AccessDenied: the request is not possible; nothing was changed.
        RequestFailed: the engine refuses the new index.
        EngineError: the engine failed.
    """
    model = ModelIdentity(encoder.info.model, encoder.info.fingerprint, encoder.info.dimensions)
    plain, engine = engine, cast(Engine, RetryingEngine(engine, retrying))
    index = require_index(engine, wanted.alias)
    before = read_migration_state(index)
    if before is not None and before.phase is MigrationPhase.CLOSING:
        swapped = BegunMigration(index, before, is_swapped=True)
        _check_same_migration(swapped, wanted, model, None if wanted.text is None else wanted.text.template)
        return _take_over(plain, index, before, engine.get_index(before.source), retrying)
    if index.data_stream is not None:
        raise IndexMismatch(
            f"{index.name} belongs to the data stream {index.data_stream}, which cannot switch to another index",
            f"Add a vector field of the new model to each of its indices: `es-sbert ingest --index {index.name} "
            f"--vector-field NAME --model {model.name}`.",
        )
    field = vector_field_from_state(engine, index, wanted.vector_field)
    name = wanted.name or new_index_name(wanted.alias, model.fingerprint, index.name)
    begun = find_target(engine, index, name)
    if begun is not None and begun[1].phase is MigrationPhase.CREATING:
        engine.delete_index(begun[0].name)  # it was not compared with the old one
    if begun is not None and begun[1].phase in (MigrationPhase.CREATING, MigrationPhase.DONE):
        begun = None
    if begun is not None:
        text = field.meta.text if wanted.text is None else wanted.text.template
        _check_same_migration(BegunMigration(*begun, is_swapped=False), wanted, model, text)
    else:
        _check_change_requested(engine, index, field, wanted, model)
    fields = _new_vector_fields(engine, index, wanted, model)
    _check_copy(engine, index, wanted, fields)
    if begun is not None:
        target, state = begun
        retrying(lambda: set_target_pointer(plain, index, target.name))
        return _take_over(plain, target, state, index, retrying)
    _check_new_index(engine, index, wanted, name)
    for meta in fields.values():
        if meta.passages is not None:
            encoder.pipeline.make_chunker(
                meta.passages.tokens, meta.passages.overlap, "document"
            )  # refuses too many tokens
    state = MigrationState(
        alias=wanted.alias,
        source=index.name,
        source_uuid=index.uuid,
        fields=tuple(fields),
        run=uuid.uuid4().hex,
        phase=MigrationPhase.CREATING,
        copied=(-1,) * index.shards,
        final_pipeline=index.setting(FINAL_PIPELINE),
        lifecycle=lifecycle_settings(index),
        target=name,
    )
    body = new_index_body(engine.info.engine_type, index, fields)
    target, store = _create_target(plain, index, body, state, retrying)
    return PreparedMigration(index, target, fields, store, resumed=False)


def _take_over(
    engine: Engine, target: IndexState, state: MigrationState, source: IndexState | None, retrying: Retrier
) -> PreparedMigration:
    """Take over a migration that another process has begun."""
    # Store a new run id: from now on, the process that began the migration may not write the state.
    store = MigrationStateStore(engine, target, state, retrying)
    store.write(run=uuid.uuid4().hex)
    if source is not None and source.uuid != state.source_uuid:
        source = None
    return PreparedMigration(source, target, _migrated_fields(target, state), store, resumed=True)


def _check_new_index(engine: Engine, source: IndexState, wanted: MigrationRequest, name: str) -> None:
    """Refuse a new index that exists, or that the user may not create, fill with all documents, and swap.

    Raises:
        IndexMismatch: an index of that name exists, a template gives it an alias, or documents of the old index are
            hidden from this user.
        AccessDenied: the user lacks a privilege.
        UsageError: no document has a text by the new template.
        EngineError: the engine failed.
    """
    check_template_aliases(engine, name)
    there = engine.get_index(name)
    if there is not None:
        raise IndexMismatch(
            f"the index {there.name}, which the migration would create, already exists",
            f"Set {setting('name')} to another name, or delete that index if it is not needed: `DELETE /{there.name}`.",
        ).about("name", there.name)
    # Everything that the migration does must be permitted, including the block and the swap.
    for each in dict.fromkeys((source.name, wanted.alias, permit_name(name, "0" * 12))):
        require_privileges(engine, each, MIGRATE_FROM)
    require_privileges(engine, name, MIGRATE_TO)
    count_all_documents(engine, source.name, without_retries)
    if wanted.text is not None:
        check_template_fields(engine, source, wanted.text)


def _check_same_migration(
    begun: BegunMigration, wanted: MigrationRequest, model: ModelIdentity, text: str | None
) -> None:
    """Refuse to continue a migration that was begun with other settings.

    Args:
        text: Template of the text that the vector field is to have; None to accept any.

    Raises:
        IndexMismatch: name, model, index type or text differ.
    """
    target = begun.target
    fields = _migrated_fields(target, begun.state)
    meta = fields.get(wanted.vector_field)
    is_model = all(field.fingerprint == model.fingerprint for field in fields.values())
    is_text = meta is None or text is None or meta.text in (None, text)
    is_type = meta is not None and wanted.index_type in (None, meta.index_type)
    if not (is_model and is_text and is_type) or wanted.name not in (None, target.name):
        raise IndexMismatch(
            f"{wanted.alias} is being migrated to {target.name} already, with another name, model, index type or text",
            begun.error().remedy,
        )


def _create_target(
    engine: Engine, source: IndexState, body: Json, state: MigrationState, retrying: Retrier
) -> tuple[IndexState, MigrationStateStore]:
    """Create the new index with the state of its migration, compare it with the old one, and set the pointer to it.

    Raises:
        IndexMismatch: the new index differs from the old one, or another process has begun a migration. No index stays.
        RequestFailed: the engine refuses the new index.
        EngineError: the engine failed.
    """
    # Set the pointer first: an index without a pointer would block the next run.
    retrying(lambda: set_target_pointer(engine, source, state.target))
    try:
        target = _create_compared(engine, source, body, state, retrying)
    except EsSbertError:
        retrying(lambda: set_target_pointer(engine, require_index(engine, source.name), None))
        raise
    # Set the pointer again: another machine may have erased it since.
    retrying(lambda: set_target_pointer(engine, source, state.target))
    # Refreshes are off while documents are copied. The replicas stay: the new index must survive the loss of a node.
    retrying(lambda: engine.put_settings(state.target, {REFRESH_INTERVAL: "-1"}))
    store = MigrationStateStore(engine, target, state, retrying)
    store.write(phase=MigrationPhase.COPYING)
    return target, store


def _create_compared(
    engine: Engine, source: IndexState, body: Json, state: MigrationState, retrying: Retrier
) -> IndexState:
    """Create the new index, and delete it if it differs from the old one in what the migration does not change."""
    name, mappings, settings = state.target, body["mappings"], body["settings"]
    mappings["_meta"] = with_migration_state(mappings.get("_meta", {}), state)
    routing_shards = retrying(lambda: engine.routing_shards(source.name))
    if routing_shards is not None:
        # Documents of one id and two routings would otherwise end in one shard, which holds only one of them.
        settings[ROUTING_SHARDS] = str(routing_shards)

    def create() -> None:
        try:
            engine.create_index(name, body)
        except RequestFailed:
            # An earlier request of this run, whose response was lost, may have created it.
            there = engine.get_index(name)
            stored = None if there is None else read_migration_state(there)
            if stored is None or stored.run != state.run:
                raise

    try:
        retrying(create)
    except RequestFailed as error:
        if is_transient(error):
            raise
        raise RequestFailed(
            f"the new index {name} cannot be created as {source.name} is: {error.message}",
            f"Change what the message names in {source.name} (`GET {source.name}/_settings`, `GET "
            f"{source.name}/_mapping`); nothing was changed.",
            error.status,
        ) from error
    try:
        target = retrying(lambda: require_index(engine, name))
        retrying(lambda: check_same_index(engine, source.name, target, body, state.not_copied))
        of_templates = dict.fromkeys(filter(SET_AT_SWAP.fullmatch, target.settings))
        if of_templates:
            retrying(lambda: engine.put_settings(name, of_templates))
    except EsSbertError:
        with suppress(EngineError):  # if it cannot be deleted, the next run does so
            engine.delete_index(name)
        raise
    return target


def _check_change_requested(
    engine: Engine, source: IndexState, field: VectorField, wanted: MigrationRequest, model: ModelIdentity
) -> None:
    stored = field.meta
    if (
        has_one_index_type(source, field)
        and sparser_graph(source.mappings["properties"][field.name]) is None
        and stored.fingerprint == model.fingerprint
        and wanted.index_type in (None, stored.index_type)
        and (wanted.text is None or wanted.text.template == stored.text)
    ):
        of_text = "" if wanted.text is None else f" for the text {wanted.text.template!r}"
        kept = kept_index(engine, read_migration_state(source))
        delete = "" if kept is None else f" To delete the index that was kept: `DELETE /{kept}`."
        raise IndexMismatch(
            f"{wanted.alias} points to {source.name}, which has vectors of {stored.model} "
            f"({model.fingerprint[:12]}) already{of_text}",
            f"There is nothing to do.{delete}",
        )


def _check_copy(
    engine: Engine, source: IndexState, wanted: MigrationRequest, fields: Mapping[str, VectorFieldMeta]
) -> None:
    """Refuse an index whose documents cannot be copied, embedded again and compared, or that cannot be swapped.

    Args:
        fields: Vector fields of the new index that the new model fills.

    Raises:
        IndexMismatch: documents cannot be copied.
        UsageError: `replace_index` does not fit the name, which is an index or an alias.
        EngineError: the engine failed.
    """
    check_source_is_whole(source, vector_field_names(fields))
    if source.name == wanted.alias and not wanted.replace_index:
        aliases = sorted(engine.get_aliases(source.name).get(source.name, {}))
        raise UsageError(
            f"{wanted.alias} is an index, not an alias, so it cannot be swapped for another",
            f"Migrate its alias {aliases[0]}, which applications should use."
            if aliases
            else f"{setting('replace_index')} puts an alias of that name in its place: writes to it are blocked for a "
            "moment, and the old index is deleted in the same step.",
        ).about("replace_index", False)
    if source.name != wanted.alias and wanted.replace_index:
        problem = f"{wanted.alias} is an alias already"
        raise UsageError(problem, f"Leave {setting('replace_index')} out.").about("replace_index", True)
    for name, meta in fields.items():
        check_passages_kept(VectorField(source.name, name, meta))
    if len(fields) > 1:
        check_source_is_whole(source)  # an update that adds one vector would lose another


def _new_vector_fields(
    engine: Engine, source: IndexState, wanted: MigrationRequest, model: ModelIdentity
) -> dict[str, VectorFieldMeta]:
    """Return the vector fields of the old model, with the metadata that they get for the new one.

    If neither the model nor the types change, only the requested field is returned: the vectors of the others are
    copied unchanged.
    """
    stored = vector_fields(source.mappings, source.name)
    old, info = stored[wanted.vector_field], engine.info
    same = old.fingerprint == model.fingerprint and wanted.index_type in (None, old.index_type)
    new = {}
    for name, meta in stored.items():
        if name == wanted.vector_field if same else meta.fingerprint == old.fingerprint:
            index_type = wanted.index_type or meta.index_type
            new[name] = meta.changed(
                fingerprint=model.fingerprint,
                model=model.name,
                dimensions=model.dimensions,
                index_type=parse_index_type(index_type, info, model.dimensions),
                text=wanted.text.template if wanted.text and name == wanted.vector_field else meta.text,
            )
    return new


def _migrated_fields(target: IndexState, state: MigrationState) -> dict[str, VectorFieldMeta]:
    """The vector fields of the new index that the migration fills."""
    fields = vector_fields(target.mappings, target.name)
    return {name: meta for name, meta in fields.items() if name in state.fields}
