"""Read how an index keeps the documents that are sent to it: as they are, rebuilt from its fields, in part, or not."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from fnmatch import fnmatchcase

from es_sbert.engines.index_state import IndexState
from es_sbert.errors import IndexMismatch, VectorIndexError


class SourceMode(StrEnum):
    """What the engine returns as the `_source` of a document."""

    STORED = "stored"  # the document as it was sent, less the fields that `_source.excludes` and `includes` leave out
    SYNTHETIC = "synthetic"  # Elasticsearch: rebuilt from the fields
    DERIVED = "derived"  # OpenSearch: rebuilt from the fields
    DISABLED = "disabled"  # nothing


# `index.mode` of indices whose documents cannot be written again: Elasticsearch chooses their ids, or they have no
# sequence numbers.
_APPEND_ONLY_MODES = ("time_series", "columnar", "logsdb_columnar")


def index_mode(state: IndexState) -> str:
    """The `index.mode` of Elasticsearch, such as `logsdb`; `standard` by default."""
    return str(state.setting("index.mode") or "standard").lower()


def check_accepts_updates(state: IndexState) -> None:
    """Refuse an index in which the engine changes no document, and takes none by its id.

    Raises:
        VectorIndexError: its `index.mode` rules updates out, or it is append-only.
    """
    mode, setting = index_mode(state), "index.append_only.enabled"
    if mode in _APPEND_ONLY_MODES:
        setting = f"index.mode: {mode}"
    elif not state.has_setting(setting):
        return
    raise VectorIndexError(
        f"the index {state.name} has `{setting}`, with which the engine does not update documents",
        "Write new documents through the gateway (`es-sbert serve`), which embeds them on the way. Copy existing "
        "ones into an index without this setting (`POST _reindex`), and embed them there.",
    )


# `index.mode` of indices whose `_source` is synthetic by default.
_SYNTHETIC_INDEX_MODES = ("columnar", "logsdb", "logsdb_columnar", "time_series")


def source_mode(state: IndexState) -> SourceMode:
    """Read the source mode of an index from its settings and its mapping."""
    mapped, settings = state.mappings.get("_source", {}), state.settings
    if mapped.get("enabled", True) is False:
        return SourceMode.DISABLED
    if str(settings.get("index.derived_source.enabled")).lower() == "true":
        return SourceMode.DERIVED
    # Elasticsearch 8 has the mode in the mapping too, where the setting overrides it; 9 ignores it there.
    mode = str(settings.get("index.mapping.source.mode") or mapped.get("mode") or "").lower()
    if not mode:
        mode = "synthetic" if index_mode(state) in _SYNTHETIC_INDEX_MODES else "stored"
    # All other modes, such as `columnar_stored`, rebuild the document.
    return SourceMode(mode) if mode in (SourceMode.STORED, SourceMode.DISABLED) else SourceMode.SYNTHETIC


class NameForm(StrEnum):
    """The form in which the engine returns the fields of objects in `_source`."""

    AS_SENT = "as_sent"
    OBJECTS = "objects"
    DOTTED = "dotted"


def name_form(state: IndexState) -> NameForm:
    """Read the form of names in `_source` from the settings and the mapping of an index."""
    if source_mode(state) is not SourceMode.SYNTHETIC:
        return NameForm.AS_SENT
    return NameForm.OBJECTS if state.mappings.get("subobjects", True) in (True, "true") else NameForm.DOTTED


def is_in_source(name: str, state: IndexState) -> bool:
    """Whether the index returns a field in `_source`."""
    if source_mode(state) is SourceMode.DISABLED:
        return False
    source = state.mappings.get("_source", {})

    def matches(pattern: str) -> bool:
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")

    includes = source.get("includes", [])
    return (not includes or any(map(matches, includes))) and not any(map(matches, source.get("excludes", [])))


def fields_missing_from_source(state: IndexState, made: Collection[str]) -> str | None:
    """Find the fields that a partial update would lose, because the index does not keep them in `_source`.

    For a partial update, the engine indexes the document again from `_source`.

    Args:
        made: Vector fields that are written with every document.

    Returns:
        The end of the sentence "the index does not keep …"; None if nothing would be lost.
    """
    if source_mode(state) is SourceMode.DISABLED:
        return "_source"
    if name_form(state) is NameForm.DOTTED:
        # An update would add an object with the same fields to them.
        return "objects in its _source, which is synthetic in a mapping with `subobjects: false`"
    source = state.mappings.get("_source", {})
    if source.get("includes"):
        return f"fields other than {', '.join(source['includes'])} in its _source"
    missing = [name for name in source.get("excludes", []) if name not in made]
    return f"{', '.join(missing)} in its _source" if missing else None


def check_source_is_whole(state: IndexState, made: Collection[str] = (), remedy: str | None = None) -> None:
    """Refuse an index whose documents would lose fields if they were written again from `_source`.

    Args:
        made: Top-level fields that every write sets or removes.
        remedy: The remedy if they would; None for one that suits documents that must be written again.

    Raises:
        IndexMismatch: `_source` lacks other fields.
        VectorIndexError: see `check_accepts_updates`.
    """
    check_accepts_updates(state)
    lost = fields_missing_from_source(state, made)
    if lost is not None:
        raise IndexMismatch(
            f"the index {state.name} does not keep {lost}, so documents that are written again from it would lose "
            "fields",
            remedy
            or "Load the documents from files into an index whose `_source` keeps all fields: "
            "`es-sbert ingest --index NEW FILE`.",
        )


def check_can_hold_vectors(state: IndexState) -> None:
    """Reject an index in which vectors cannot be searched.

    Raises:
        VectorIndexError: the mapping of the index has `enabled: false`, or its `_source` is derived.
    """
    if state.mappings.get("enabled", True) is False:
        setting = "`enabled: false` in its mapping: no field is indexed, so vectors cannot be searched"
    elif source_mode(state) is SourceMode.DERIVED:
        setting = "`index.derived_source.enabled`, with which OpenSearch has no vector fields"
    else:
        return
    raise VectorIndexError(
        f"the index {state.name} has {setting}",
        "Create an index without this setting, copy the documents there (`_reindex`), and load into that index.",
    )
