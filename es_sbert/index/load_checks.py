"""Check whether an index can take documents and vectors before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, write_index
from es_sbert.errors import AccessDenied, IndexMismatch, UsageError, VectorIndexError
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.source_mode import (
    SourceMode,
    check_accepts_updates,
    check_can_hold_vectors,
    is_in_source,
    source_mode,
)
from es_sbert.index.text_template import document_field_names
from es_sbert.index.vector_field import (
    check_passages_kept,
    embed_command,
    has_vector_field,
    similar_fields,
    vector_field_from_state,
)
from es_sbert.messages import setting


def read_target_index(engine: Engine, name: str, *, files: bool) -> IndexState | None:
    """Read the index that a load writes to; None if it does not exist yet.

    Args:
        files: Whether the documents come from sources, not from the index.

    Raises:
        IndexMismatch: the name is an alias that takes no documents.
        VectorIndexError: the name is an alias of several indices, or a data stream that a load cannot write to or read.
        EngineError: the engine failed.
    """
    states = engine.get_indices(name)
    if len(states) < 2:
        if files and states and not states[0].takes_writes(name):
            raise IndexMismatch(
                f"{name} is an alias of {states[0].name} with `is_write_index: false`, so it takes no documents",
                f"Load into {states[0].name}, or make it the write index (`POST _aliases`).",
            )
        return states[0] if states else None
    is_stream = None not in {state.data_stream for state in states}
    similar = similar_fields(reversed(states)).values()
    commands = ", ".join(embed_command(state, similar) for state in states)
    if files and is_stream:
        raise VectorIndexError(
            f"{name} is a data stream: documents can only be added to it, not written by their ids",
            f"Let the application that fills it write the documents. Then embed them in place: {commands}.",
        )
    if not files:
        what = f"a data stream of {len(states)} backing indices" if is_stream else f"an alias of {len(states)} indices"
        raise VectorIndexError(
            f"{name} is {what}, but documents can be embedded in place in only one index at a time",
            f"Run one command for each of them: {commands}. After a rollover, run it for the new index too.",
        )
    # A document that an older index holds would be there twice, and searches of the alias would find both.
    target = write_index(name, states)
    added = ""
    if not all(has_vector_field(target, field.name) for field in similar):
        added = f" {embed_command(target, similar)} adds the vector field that it lacks."
    raise VectorIndexError(
        f"{name} is an alias of {len(states)} indices, but documents can be loaded into only one index at a time",
        f"Load documents that one of them holds into that index, and new ones into the write index: "
        f"{setting('index', target.name)}.{added}",
    )


def in_place_command(index: str) -> str:
    """The command that embeds the documents of an index in place."""
    return f"`es-sbert ingest --index {index}`"


def check_can_load_files(
    state: IndexState,
    name: str,
    meta_fields: Collection[str] = (),
    *,
    routing_field: str | None = None,
) -> None:
    """Reject an index that would reject every document of a file, or for which every load would embed all documents.

    Args:
        name: Index or alias as given to the load.
        meta_fields: Metadata objects next to the vectors, which tell whether the vectors are current.
        routing_field: Field with the routing of each document; None if there is none.

    Raises:
        UsageError: both a field and the alias give a routing.
        VectorIndexError: the index belongs to a data stream, requires a routing that is missing, takes no documents by
            their ids, cannot hold vectors, does not keep the meta fields, or rebuilds `_source` from its fields.
    """
    in_place = "Let the application that fills it write the documents, and embed them in place:"
    if state.data_stream is not None:
        raise VectorIndexError(
            f"{state.name} belongs to the data stream {state.data_stream}: documents can only be added to it, not "
            "written by their ids",
            f"{in_place} {in_place_command(state.name)}.",
        )
    routing = state.alias(name).get("index_routing")
    if routing is not None and routing_field is not None:
        raise UsageError(
            f"the alias {name} gives all documents the routing {routing!r}, so the routing cannot come from "
            f"{routing_field}",
            f"Omit {setting('routing_field')}, or load into {state.name}.",
        ).about("routing_field", routing_field)
    if state.mappings.get("_routing", {}).get("required") and routing is None and routing_field is None:
        raise VectorIndexError(
            f"the index {state.name} requires a routing value for every document",
            f"Set {setting('routing_field')} to the field that holds it, or load through an alias that "
            f"has an `index_routing`. {in_place} {in_place_command(name)}.",
        ).about("routing_field")
    check_can_hold_vectors(state)
    check_accepts_updates(state)
    lost = [field for field in meta_fields if not is_in_source(field, state)]
    if lost:
        raise VectorIndexError(
            f"the index {state.name} does not keep {', '.join(lost)} in _source, so a load cannot tell which documents "
            "are already embedded and would embed all of them again",
            f"Load into an index whose `_source` is enabled and keeps {', '.join(lost)}.",
        )
    if source_mode(state) is SourceMode.SYNTHETIC:
        raise VectorIndexError(
            f"the index {state.name} rebuilds `_source` from its fields (synthetic), so it may return other texts than "
            "those of a file, such as sorted lists, and their vectors would count as outdated",
            "Load into an index that stores it (`index.mapping.source.mode: stored`). Or write the documents without "
            f"`es-sbert`, and embed them in place: {in_place_command(name)}.",
        )


def check_strict_mapping(state: IndexState, documents: Sequence[Mapping[str, Any]]) -> None:
    """Reject an index whose mapping is strict and rejects all of these documents.

    Args:
        documents: The first documents of a source, as they are sent.

    Raises:
        VectorIndexError: each of the documents has a field that the mapping lacks.
    """
    refused = [list(_refused(document, state.mappings)) for document in documents]
    if not refused or not all(refused):
        return
    fields = ", ".join(dict.fromkeys(name for names in refused for name in names))
    raise VectorIndexError(
        f"the mapping of {state.name} has `dynamic: strict` and lacks {fields}, so it rejects the source's documents",
        f"Add the fields to the mapping (`PUT {state.name}/_mapping`) or to the index template, or leave them out of "
        "the source.",
    )


def check_created_index(
    engine: Engine,
    state: IndexState,
    name: str,
    meta_fields: Collection[str],
    documents: Sequence[Mapping[str, Any]],
    *,
    routing_field: str | None = None,
) -> None:
    """Check an index that the load has just created; delete it if an index template makes it unusable.

    Args:
        documents: The first documents of the source.
        routing_field: Field with the routing of each document; None if there is none.

    Raises:
        UsageError, VectorIndexError: see `check_can_load_files`, `vector_field_from_state`, `check_passages_kept` and
            `check_strict_mapping`.
        EngineError: the engine failed.
    """
    try:
        check_can_load_files(state, name, meta_fields, routing_field=routing_field)
        for field in similar_fields([state]):
            check_passages_kept(vector_field_from_state(engine, state, field))
        check_strict_mapping(state, documents)
    except (UsageError, VectorIndexError) as error:
        deleted = delete_unused_index(engine, state)
        fate = "was deleted again" if deleted else "was not deleted: it has documents, or this user may not delete it"
        error.add_note(f"this comes from an index template; the index that this load created {fate}")
        raise


def delete_unused_index(engine: Engine, state: IndexState) -> bool:
    """Delete an index that this load has created if it is empty; return whether it was deleted.

    Raises:
        EngineError: the engine failed.
    """
    engine.refresh(state.name)
    if engine.count(state.name):
        return False
    try:
        engine.delete_index(state.name)
    except AccessDenied:
        return False
    return True


def _refused(document: Mapping[str, Any], mappings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a document that the mapping lacks and rejects."""
    mapped = dict(mapped_fields(mappings.get("properties", {})))
    for name in document_field_names(document):
        dots = (place for place, character in enumerate(name) if character == ".")
        above = [mapped[name[:dot]] for dot in dots if name[:dot] in mapped]
        takes_any = any("properties" not in field or field.get("enabled", True) is False for field in above)
        dynamic = [field["dynamic"] for field in (mappings, *above) if "dynamic" in field]
        if name not in mapped and not takes_any and dynamic[-1:] == ["strict"]:
            yield name
