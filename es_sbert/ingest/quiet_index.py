"""Refreshes and replicas during a load: what is switched off and back, and what must be said about it."""

from __future__ import annotations

from es_sbert.errors import AccessDenied, EngineError
from es_sbert.events import record
from es_sbert.index.load_settings import begin_load, put_back
from es_sbert.index.privileges import LOAD_SETTINGS, require
from es_sbert.ingest.context import LoadContext, patiently
from es_sbert.ingest.settings import IngestSettings, LoadSettings


def wants_load_settings(settings: IngestSettings, *, created: bool) -> bool:
    """Whether a load is to switch them off."""
    return settings.load_settings is LoadSettings.FAST or (settings.load_settings is LoadSettings.AUTO and created)


def switch_off(context: LoadContext) -> list[str]:
    """Change the index's settings for the load; what must be said about it."""
    try:
        require(context.engine, context.index.name, LOAD_SETTINGS)
        changed = patiently(context, lambda: begin_load(context.engine, context.index))
    except AccessDenied as error:
        return [f"Refreshes and replicas stay as they are during the load: {error.message}"]
    record("settings_changed", "refreshes and replicas are off until the load ends", settings=changed)
    return []


def switch_back(context: LoadContext) -> list[str]:
    """Put back what this load, or one that was killed, has changed in the settings; what must be said about it."""
    name = context.plan.settings.index
    try:
        settings = patiently(context, lambda: put_back(context.engine, name))
        if settings:
            record("settings_put_back", "refreshes and replicas are as they were before the load", settings=settings)
    except EngineError as error:
        return [
            f"Refreshes and replicas of {name} are still as they were for the load ({error.message}): the next load "
            f"puts them back, or `es-sbert index repair {name}`"
        ]
    return []
