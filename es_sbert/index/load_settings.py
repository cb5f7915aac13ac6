"""Index settings for a bulk load: refresh and replicas are off during the load and restored afterwards.

The previous values are saved in the mapping (`_meta.es_sbert.load`) before anything is changed. If a load is killed,
the next load or `es-sbert index repair` restores them.
"""

from __future__ import annotations

from collections.abc import Mapping

from es_sbert.engines.engine import Engine, IndexState, Json
from es_sbert.errors import AccessDenied
from es_sbert.index.mapping import META_KEY, with_meta_entry

# Flat names, values as engines write them.
BULK_LOAD_SETTINGS = {"index.refresh_interval": "-1", "index.number_of_replicas": "0"}
_META_ENTRY = "load"
_AUTO_EXPAND_REPLICAS = "index.auto_expand_replicas"


def unrestored_settings(index: IndexState) -> dict[str, str | None] | None:
    """The settings before a load that has not restored them; None if there is none.

    None as a value means the engine's default.
    """
    note = index.mappings.get("_meta", {}).get(META_KEY, {}).get(_META_ENTRY)
    if not isinstance(note, dict) or not isinstance(note.get("before"), dict):
        return None
    return {name: note["before"].get(name) for name in BULK_LOAD_SETTINGS if name in note["before"]}


def _write_note(engine: Engine, index: IndexState, note: Json | None) -> None:
    meta = with_meta_entry(index.mappings.get("_meta", {}), _META_ENTRY, note)
    engine.put_mapping(index.name, {"_meta": meta})


def apply_load_settings(engine: Engine, index: IndexState, *, keep_replicas: bool = False) -> dict[str, str | None]:
    """Change the settings for a load, unless another load has done so and not restored them: its note counts.

    Args:
        keep_replicas: Disable refreshes only.

    Returns:
        The previous values, for `restore_load_settings`.

    Raises:
        AccessDenied: this user may not (privilege `manage` of the index); nothing was changed.
        EngineError: the engine failed.
    """
    noted = unrestored_settings(index)
    if noted is not None:
        return noted
    wanted = dict(BULK_LOAD_SETTINGS)
    # With automatic replicas, the engine sets their number by that of the nodes.
    if keep_replicas or index.settings.get(_AUTO_EXPAND_REPLICAS, "false") != "false":
        del wanted["index.number_of_replicas"]
    before = {name: index.settings.get(name) for name in wanted}
    _write_note(engine, index, {"before": before})
    try:
        engine.put_settings(index.name, wanted)
    except AccessDenied:
        # Elasticsearch lets the privilege `index` write the note, but not change settings.
        _write_note(engine, index, None)
        raise
    return before


def restore_load_settings(
    engine: Engine, name: str, before: Mapping[str, str | None] | None = None
) -> dict[str, str | None]:
    """Undo `apply_load_settings`; a setting that was changed since then is kept.

    Args:
        name: Index or alias.
        before: What `apply_load_settings` returned, if known: another process that wrote the mapping at the same time
            may have overwritten the note.

    Returns:
        What was restored; empty if no load has left anything.

    Raises:
        EngineError: the engine failed; the saved values stay, so that it can be retried.
    """
    index = engine.get_index(name)
    noted = None if index is None else unrestored_settings(index)
    before = before if noted is None else noted
    if index is None or before is None:
        return {}
    ours = {name: value for name, value in before.items() if index.settings.get(name) == BULK_LOAD_SETTINGS[name]}
    if ours:
        engine.put_settings(index.name, ours)
    if noted is not None:
        _write_note(engine, index, None)
    return ours
