"""Disable refreshes and replicas during a load, and restore them at its end."""

from __future__ import annotations

from collections.abc import Mapping

from es_sbert.errors import AccessDenied, EngineError
from es_sbert.index.load_settings import BULK_LOAD_SETTINGS as SETTINGS
from es_sbert.index.load_settings import apply_load_settings, restore_load_settings, unrestored_settings
from es_sbert.index.privileges import CHANGE_LOAD_SETTINGS, require_privileges
from es_sbert.ingest.load_context import LoadContext, require_index, retrying
from es_sbert.ingest.settings import BulkLoadSettings, IngestSettings
from es_sbert.messages import log_event

PreviousSettings = Mapping[str, str | None]


def uses_bulk_load_settings(settings: IngestSettings, *, created: bool) -> bool:
    """Whether a load is to switch them off."""
    return settings.load_settings is BulkLoadSettings.FAST or (
        settings.load_settings is BulkLoadSettings.AUTO and created
    )


def apply_bulk_load_settings(context: LoadContext) -> tuple[PreviousSettings | None, list[str]]:
    """Change the index's settings for the load.

    Returns:
        What stood there before, None where nothing was changed; what must be said about it.
    """
    engine, name = context.engine, context.index.name
    try:
        retrying(context, lambda: require_privileges(engine, name, CHANGE_LOAD_SETTINGS))
        # Looked at anew: whatever another process has written into the mapping meanwhile would be overwritten.
        before = retrying(context, lambda: apply_load_settings(engine, require_index(engine, name)))
    except AccessDenied as error:
        if unrestored_settings(context.index) is None:
            context.control.left_behind = ""
        return None, [f"Refreshes and replicas stay as they are during the load: {error.message}"]
    changed = {setting: SETTINGS[setting] for setting in before}
    log_event("settings_changed", "refreshes and replicas are off until the load ends", settings=changed)
    return before, []


def restore_bulk_load_settings(context: LoadContext, before: PreviousSettings | None) -> list[str]:
    """Put back what this load, or one that was killed, has changed in the settings; what must be said about it.

    Args:
        before: What stood there before this load, where it has changed them.
    """
    name = context.plan.settings.index
    try:
        settings = retrying(context, lambda: restore_load_settings(context.engine, name, before))
        context.control.left_behind = ""
        if settings:
            log_event("settings_put_back", "refreshes and replicas are as they were before the load", settings=settings)
    except EngineError as error:
        return [not_restored_note(name, f" ({error.message})")]
    return []


def not_restored_note(name: str, why: str = "") -> str:
    """What must be said of an index whose settings were not put back."""
    return (
        f"Refreshes and replicas of {name} are still as they were for the load{why}: the next load puts them back, or "
        f"`es-sbert index repair {name}`"
    )
