"""Checks whether an index can take documents and vectors, made before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, write_index
from es_sbert.errors import AccessDenied, IndexMismatch, UsageError, VectorIndexError
from es_sbert.index.mapping import is_in_source
from es_sbert.index.vector_field import embed_command, similar_fields


def fields_missing_from_source(mappings: Mapping[str, Any], made: Collection[str]) -> str | None:
    """Fields that an index does not keep in `_source`, and would lose if a document were indexed from it.

    The engine does so for a partial update.

    Args:
        made: Vector fields that are written with every document.

    Returns:
        The end of the sentence "the index keeps no …"; None if nothing would be lost.
    """
    source = mappings.get("_source", {})
    if source.get("enabled", True) is False:
        return "_source"
    if source.get("includes"):
        return f"fields in its _source but {', '.join(source['includes'])}"
    missing = [name for name in source.get("excludes", []) if name not in made]
    return f"{', '.join(missing)} in its _source" if missing else None


@dataclass(frozen=True)
class TargetIndex:
    """The index that a load goes to.

    Attributes:
        state: The index; None if it does not exist yet.
        others: The other indices of the alias that was named, the newest name first.
    """

    state: IndexState | None
    others: tuple[IndexState, ...] = ()


def read_target_index(engine: Engine, name: str, *, files: bool) -> TargetIndex:
    """The index that a load goes to: of an alias of several indices, its write index.

    Args:
        files: Whether the documents come from sources, not from the index.

    Raises:
        IndexMismatch: the alias points to several indices, and names none of them for writes.
        VectorIndexError: a data stream or an alias that a load cannot go to.
        EngineError: the engine failed.
    """
    states = engine.get_indices(name)
    if len(states) < 2:
        if files and states and states[0].aliases.get(name, {}).get("is_write_index") is False:
            raise IndexMismatch(
                f"{name} is an alias of {states[0].name} with `is_write_index: false`, so it takes no documents",
                f"Load into {states[0].name}, or make it the write index (`POST _aliases`).",
            )
        return TargetIndex(states[0] if states else None)
    is_stream = None not in {state.data_stream for state in states}
    similar = similar_fields(reversed(states)).values()
    commands = ", ".join(embed_command(state, similar) for state in states)
    if files and is_stream:
        raise VectorIndexError(
            f"{name} is a data stream: its documents are added, never written by their ids",
            f"Let the application that fills it write the documents. Then embed them in place: {commands}.",
        )
    if not files:
        what = f"a data stream of {len(states)} backing indices" if is_stream else f"an alias of {len(states)} indices"
        raise VectorIndexError(
            f"{name} is {what}, and documents are embedded in place in one index at a time",
            f"Run one command for each of them: {commands}. After a rollover, run it for the new index too.",
        )
    target = write_index(name, states)
    if target.alias_routing(name) is not None:
        raise VectorIndexError(
            f"{name} is an alias of {len(states)} indices with an `index_routing`, and a load that looks documents up "
            f"in its write index {target.name} could not find them without it",
            f"Give {target.name} an alias of its own with that routing (`POST _aliases`), and load by that alias.",
        )
    return TargetIndex(target, tuple(state for state in reversed(states) if state is not target))


def in_place_command(index: str) -> str:
    """The command that embeds the documents of an index in place."""
    return f"`es-sbert ingest --index {index}`"


def check_can_hold_vectors(state: IndexState) -> None:
    """Reject an index in which vectors cannot be searched.

    Raises:
        VectorIndexError: its mapping indexes nothing.
    """
    if state.mappings.get("enabled", True) is False:
        raise VectorIndexError(
            f"the mapping of {state.name} has `enabled: false`: nothing in it is indexed, so no vector is found",
            "Create an index without this setting, copy the documents there (`_reindex`), and load that one.",
        )


def check_can_load_files(
    state: IndexState, name: str, meta_fields: Collection[str] = (), *, routing_field: str | None = None
) -> None:
    """Reject an index that rejects every document of a file, or in which every load would embed all of them again.

    Args:
        name: Index or alias, as the load names it.
        meta_fields: Objects next to the vectors, which say what they were made of.
        routing_field: Field of the routing of the documents; None for no field.

    Raises:
        UsageError: both a field and the alias give a routing.
        VectorIndexError: a data stream, an index whose documents need a routing, one in which nothing is indexed, or
            one that does not keep the meta fields.
    """
    in_place = "Let the application that fills it write the documents, and embed them in place:"
    if state.data_stream is not None:
        raise VectorIndexError(
            f"{state.name} belongs to the data stream {state.data_stream}: its documents are added, never written by "
            "their ids",
            f"{in_place} {in_place_command(state.name)}.",
        )
    routing = state.alias_routing(name)
    if routing is not None and routing_field is not None:
        raise UsageError(
            f"the alias {name} gives all documents the routing {routing!r}, so it cannot come from {routing_field}",
            f"Leave out the field of the routing, or load into {state.name}.",
        )
    if state.mappings.get("_routing", {}).get("required") and routing is None and routing_field is None:
        raise VectorIndexError(
            f"the index {state.name} requires a routing value for every document",
            "Name the field that holds it with `routing_field`, or load by an alias that "
            f"has an `index_routing`. {in_place} {in_place_command(name)}.",
        )
    check_can_hold_vectors(state)
    lost = [field for field in meta_fields if not is_in_source(field, state.mappings)]
    if lost:
        raise VectorIndexError(
            f"the index {state.name} does not keep {', '.join(lost)} in _source: no load could tell which documents it "
            "has embedded, and each would embed all of them again",
            f"Load into an index whose `_source` is enabled and keeps {', '.join(lost)}.",
        )


def check_strict_mapping(state: IndexState, documents: Sequence[Mapping[str, Any]]) -> None:
    """Reject an index whose mapping is strict and rejects all of these documents.

    Args:
        documents: The first ones of a source, as they are sent.

    Raises:
        VectorIndexError: each of the documents has a field that the mapping lacks.
    """
    refused = [unmapped_fields(state.mappings, [document]) for document in documents]
    if not refused or not all(refused):
        return
    fields = ", ".join(dict.fromkeys(name for names in refused for name in names))
    raise VectorIndexError(
        f"the mapping of {state.name} has `dynamic: strict` and lacks {fields}: it refuses the documents of the source",
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
    """Reject an index that a load has just created, but that an index template makes unusable; it is deleted again.

    Args:
        documents: The first ones of the source.
        routing_field: Field of the routing of the documents; None for no field.

    Raises:
        UsageError, VectorIndexError: see `check_can_load_files` and `check_strict_mapping`.
        EngineError: the engine failed.
    """
    try:
        check_can_load_files(state, name, meta_fields, routing_field=routing_field)
        check_strict_mapping(state, documents)
    except (UsageError, VectorIndexError) as error:
        deleted = delete_unused_index(engine, state)
        fate = "and was deleted again" if deleted else "and could not be deleted"
        error.add_note(f"an index template says so; the index that this load created is empty {fate}")
        raise


def delete_unused_index(engine: Engine, state: IndexState) -> bool:
    """Delete an index that this load has created, if it is empty; whether it was deleted.

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


def unmapped_fields(mappings: Mapping[str, Any], documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Fields of documents that the mapping lacks and that it refuses (`dynamic: strict`), each once, in order.

    Args:
        mappings: Of the index, after the fields of the load were added.
        documents: As they are sent; some of the first ones are enough for a good message.
    """
    properties, dynamic = mappings.get("properties", {}), mappings.get("dynamic")
    return list(dict.fromkeys(name for document in documents for name in _refused(document, properties, dynamic, ())))


def _refused(value: Any, properties: Mapping[str, Any], dynamic: Any, path: Sequence[str]) -> Iterator[str]:
    if isinstance(value, list):
        for entry in value:
            yield from _refused(entry, properties, dynamic, path)
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        head, dot, rest = key.partition(".")
        mapped = properties.get(key, properties.get(head))
        if mapped is None:
            # With `subobjects: false`, the fields of an object are fields with a dot in their names.
            start = f"{key}."
            flat = {name.removeprefix(start): field for name, field in properties.items() if name.startswith(start)}
            if flat and isinstance(inner, Mapping):
                yield from _refused(inner, flat, dynamic, (*path, key))
            elif dynamic == "strict":
                yield ".".join((*path, key))
        elif "properties" in mapped and mapped.get("enabled", True) is not False:
            below = {rest: inner} if dot and key not in properties else inner
            yield from _refused(below, mapped["properties"], mapped.get("dynamic", dynamic), (*path, head))
