"""Refreshes and replicas during a load: what is switched off and back, and what must be said about it."""

from __future__ import annotations

from collections.abc import Mapping

from es_sbert.errors import AccessDenied, EngineError
from es_sbert.events import record
from es_sbert.index.load_settings import LOAD_SETTINGS as SETTINGS
from es_sbert.index.load_settings import begin_load, left_behind, put_back
from es_sbert.index.privileges import LOAD_SETTINGS, require
from es_sbert.ingest.context import LoadContext, patiently, read_index
from es_sbert.ingest.settings import IngestSettings, LoadSettings

Before = Mapping[str, str | None]


def wants_load_settings(settings: IngestSettings, *, created: bool) -> bool:
    """Whether a load is to switch them off."""
    return settings.load_settings is LoadSettings.FAST or (settings.load_settings is LoadSettings.AUTO and created)


def switch_off(context: LoadContext) -> tuple[Before | None, list[str]]:
    """Change the index's settings for the load.

    Returns:
        What stood there before, None where nothing was changed; what must be said about it.
    """
    engine, name = context.engine, context.index.name
    try:
        patiently(context, lambda: require(engine, name, LOAD_SETTINGS))
        # Looked at anew: whatever another process has written into the mapping meanwhile would be overwritten.
        before = patiently(context, lambda: begin_load(engine, read_index(engine, name)))
    except AccessDenied as error:
        if left_behind(context.index) is None:
            context.control.left_behind = ""
        return None, [f"Refreshes and replicas stay as they are during the load: {error.message}"]
    changed = {setting: SETTINGS[setting] for setting in before}
    record("settings_changed", "refreshes and replicas are off until the load ends", settings=changed)
    return before, []


def switch_back(context: LoadContext, before: Before | None) -> list[str]:
    """Put back what this load, or one that was killed, has changed in the settings; what must be said about it.

    Args:
        before: What stood there before this load, where it has changed them.
    """
    name = context.plan.settings.index
    try:
        settings = patiently(context, lambda: put_back(context.engine, name, before))
        context.control.left_behind = ""
        if settings:
            record("settings_put_back", "refreshes and replicas are as they were before the load", settings=settings)
    except EngineError as error:
        return [still_changed(name, f" ({error.message})")]
    return []


def still_changed(name: str, why: str = "") -> str:
    """What must be said of an index whose settings were not put back."""
    return (
        f"Refreshes and replicas of {name} are still as they were for the load{why}: the next load puts them back, or "
        f"`es-sbert index repair {name}`"
    )
