"""Index settings for a bulk load: refresh and replicas are off during the load and restored afterwards.

The previous values are saved in the mapping (`_meta.es_sbert.load`) before anything is changed. If a load is killed,
the next load or `es-sbert index repair` restores them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import read_meta_entry, with_meta_entry

# Flat names, values as engines write them.
REPLICAS = "index.number_of_replicas"
AUTO_EXPAND_REPLICAS = "index.auto_expand_replicas"
BULK_LOAD_SETTINGS = {"index.refresh_interval": "-1", REPLICAS: "0"}
_META_ENTRY = "load"


def unrestored_settings(index: IndexState) -> dict[str, str | None] | None:
    """The saved settings of a load that has not restored them; None if there is no such load.

    None as a value means the engine's default.
    """
    note = _read_note(index)
    if note is None:
        return None
    return {name: note["before"].get(name) for name in BULK_LOAD_SETTINGS if name in note["before"]}


def _read_note(index: IndexState) -> Json | None:
    note = read_meta_entry(index.mappings, _META_ENTRY)
    return note if isinstance(note, dict) and isinstance(note.get("before"), dict) else None


def plan_load_note(index: IndexState, run: str, *, keep_replicas: bool = False) -> Json | None:
    """Plan the change of the mapping that saves an index's settings before a load; None if a load has saved them.

    Args:
        run: Distinguishes the note of this load from those of others.
        keep_replicas: See `apply_load_settings`.
    """
    if _read_note(index) is not None:
        return None
    before = {name: index.setting(name) for name in _load_settings(index, keep_replicas)}
    return {"_meta": with_meta_entry(index.mappings.get("_meta", {}), _META_ENTRY, {"before": before, "run": run})}


def _load_settings(index: IndexState, keep_replicas: bool) -> dict[str, str]:
    wanted = dict(BULK_LOAD_SETTINGS)
    # With automatic replicas, the engine derives their number from the number of nodes.
    if keep_replicas or index.setting(AUTO_EXPAND_REPLICAS) not in (None, "false"):
        del wanted[REPLICAS]
    return wanted


def _remove_note(engine: Engine, index: IndexState, note: Json) -> None:
    """Remove this note unless another load has replaced it."""

    def plan(state: IndexState) -> Json | None:
        if _read_note(state) != note:
            return None
        return {"_meta": with_meta_entry(state.mappings.get("_meta", {}), _META_ENTRY, None)}

    update_mapping(engine, index, plan)


def apply_load_settings(engine: Engine, index: IndexState, *, keep_replicas: bool = False) -> dict[str, str | None]:
    """Change the settings for a load, unless another load has changed and not restored them; its note then applies.

    Args:
        keep_replicas: Disable refreshes only.

    Returns:
        The previous values, for `restore_load_settings`.

    Raises:
        AccessDenied: this user may not change settings (index privilege `manage`); nothing was changed.
        IndexMissing, IndexMismatch, EngineError: see `update_mapping`.
    """
    run = uuid.uuid4().hex
    noted = update_mapping(engine, index, lambda state: plan_load_note(state, run, keep_replicas=keep_replicas))
    before, note = unrestored_settings(noted), _read_note(noted)
    assert before is not None
    assert note is not None
    if note.get("run") != run:
        return before
    try:
        engine.put_settings(index.name, _load_settings(noted, keep_replicas))
    except AccessDenied:
        # Elasticsearch lets the privilege `index` write the note, but not change settings.
        _remove_note(engine, noted, note)
        raise
    return before


def restore_load_settings(
    engine: Engine, name: str, before: Mapping[str, str | None] | None = None
) -> dict[str, str | None]:
    """Undo `apply_load_settings`; a setting that was changed since then is kept.

    Args:
        name: Index or alias.
        before: The values that `apply_load_settings` returned, if known, because another program that wrote the mapping
            may have erased the note.

    Returns:
        The restored settings; empty if there was nothing to restore.

    Raises:
        IndexMissing, IndexMismatch, EngineError: see `update_mapping`. The saved values stay, for the next attempt.
    """
    index = engine.get_index(name)
    if index is None:
        return {}
    noted = unrestored_settings(index)
    previous = dict(before or {}) if noted is None else _previous_settings(noted, before or {})
    ours = {name: value for name, value in previous.items() if index.setting(name) == BULK_LOAD_SETTINGS[name]}
    if ours:
        engine.put_settings(index.name, ours)
    note = _read_note(index)
    if note is not None:
        _remove_note(engine, index, note)
    return ours


def _previous_settings(noted: Mapping[str, str | None], before: Mapping[str, str | None]) -> dict[str, str | None]:
    """The settings to restore.

    If another program erased the note of a load, the next load may have saved the settings of that load as its own.
    """
    return {
        name: before.get(name, value) if value == BULK_LOAD_SETTINGS[name] else value for name, value in noted.items()
    }
