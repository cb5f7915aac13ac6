"""Settings of an index that only a load should see: no refreshes, no replicas. Put back at its end, however it ends.

What stood there before is noted in the mapping (`_meta.es_sbert.load`) before anything is changed. A load that is
killed leaves the note; the next load, or `es-sbert index repair`, puts the settings back by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import AccessDenied
from es_sbert.index.meta import META_KEY, with_entry

# Flat names, values as engines write them.
LOAD_SETTINGS = {"index.refresh_interval": "-1", "index.number_of_replicas": "0"}
_NOTE = "load"
_EXPANDS = "index.auto_expand_replicas"


def left_behind(index: IndexState) -> dict[str, str | None] | None:
    """What stood in the settings before a load that has not put them back; None where none is under way.

    None as a value stands for the engine's default.
    """
    note = index.mappings.get("_meta", {}).get(META_KEY, {}).get(_NOTE)
    if not isinstance(note, dict) or not isinstance(note.get("before"), dict):
        return None
    return {name: note["before"].get(name) for name in LOAD_SETTINGS if name in note["before"]}


def begin_load(engine: Engine, index: IndexState) -> dict[str, str | None]:
    """Change the settings for a load, unless another one has done so and not put them back yet: its note is the truth.

    Returns:
        What stood there before, for `put_back`.

    Raises:
        AccessDenied: this user may not (privilege `manage` of the index); nothing was changed.
        EngineError: the engine failed.
    """
    noted = left_behind(index)
    if noted is not None:
        return noted
    wanted = dict(LOAD_SETTINGS)
    if index.settings.get(_EXPANDS, "false") != "false":
        del wanted["index.number_of_replicas"]  # the engine sets it by the number of nodes
    before = {name: index.settings.get(name) for name in wanted}
    engine.put_mapping(index.name, {"_meta": with_entry(index.mappings.get("_meta", {}), _NOTE, {"before": before})})
    try:
        engine.put_settings(index.name, wanted)
    except AccessDenied:
        # Elasticsearch lets the privilege `index` write the note, but not change settings.
        engine.put_mapping(index.name, {"_meta": with_entry(index.mappings.get("_meta", {}), _NOTE, None)})
        raise
    return before


def put_back(engine: Engine, name: str, before: Mapping[str, str | None] | None = None) -> dict[str, str | None]:
    """Undo `begin_load`; a setting that somebody has changed since then stays as it is.

    Args:
        engine: Where.
        name: Index or alias.
        before: What `begin_load` has told, where it is known: another process that wrote the mapping at the same time
            may have overwritten the note.

    Returns:
        What was put back; empty where no load has left anything.

    Raises:
        EngineError: the engine failed; the note stands, so that it can be tried again.
    """
    index = engine.get_index(name)
    noted = None if index is None else left_behind(index)
    before = before if noted is None else noted
    if index is None or before is None:
        return {}
    ours = {name: value for name, value in before.items() if index.settings.get(name) == LOAD_SETTINGS[name]}
    if ours:
        engine.put_settings(index.name, ours)
    if noted is not None:
        engine.put_mapping(index.name, {"_meta": with_entry(index.mappings.get("_meta", {}), _NOTE, None)})
    return ours
