"""Switch refreshes and replicas of an index off during a load."""

from __future__ import annotations

from collections.abc import Mapping

from es_sbert.errors import AccessDenied, EngineError, VectorIndexError
from es_sbert.index.load_settings import (
    BULK_LOAD_SETTINGS,
    apply_load_settings,
    restore_load_settings,
    unrestored_settings,
)
from es_sbert.index.privileges import CHANGE_LOAD_SETTINGS, require_privileges
from es_sbert.ingest.load_context import LoadContext
from es_sbert.messages import log_event


class TemporarySettings:
    """The settings of an index during a load.

    Args:
        context: The load.
        change: Whether to switch refreshes and replicas off. Otherwise, only settings that an earlier load left
            switched off are restored.

    Attributes:
        notes: Notes for the report.
    """

    def __init__(self, context: LoadContext, *, change: bool) -> None:
        self._context = context
        self._change = change
        self._left_by_earlier_load = unrestored_settings(context.index.state) is not None
        self._previous: Mapping[str, str | None] | None = None  # before this load changed them
        self.notes: list[str] = []

    @property
    def _must_restore(self) -> bool:
        return self._change or self._left_by_earlier_load

    def apply(self) -> None:
        """Switch refreshes and replicas off, if the user may.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed.
        """
        context = self._context
        if self._must_restore:
            context.control.exit_warning = f"{self._unrestored_note()}."  # before the settings are changed
        if not self._change:
            return
        try:
            context.retrying(require_privileges, context.engine, context.index.concrete, CHANGE_LOAD_SETTINGS)
            # The index is read again, or a concurrent change of the mapping would be overwritten.
            index = context.check_index_unchanged()
            self._previous = context.retrying(apply_load_settings, context.engine, index)
        except AccessDenied as error:
            if not self._left_by_earlier_load:
                context.control.exit_warning = ""
            self.notes.append(f"Refreshes and replicas are not changed during the load: {error.message}")
            return
        changed = {setting: BULK_LOAD_SETTINGS[setting] for setting in self._previous}
        log_event("settings_changed", "refreshes and replicas are off until the load ends", settings=changed)

    def restore(self) -> None:
        """Restore the settings that this load, or one that was killed, has changed. A failure becomes a note."""
        if not self._must_restore:
            return
        context = self._context
        try:
            restored = context.retrying(restore_load_settings, context.engine, context.index.concrete, self._previous)
        except (EngineError, VectorIndexError) as error:
            self.notes.append(self._unrestored_note(f" ({error.message})"))
            return
        context.control.exit_warning = ""
        if restored:
            message = "refreshes and replicas are as they were before the load"
            log_event("settings_put_back", message, settings=restored)

    def _unrestored_note(self, reason: str = "") -> str:
        name = self._context.index.concrete  # the alias may have moved since
        return (
            f"Refreshes and replicas of {name} are still disabled{reason}: the next load restores them, or run "
            f"`es-sbert index repair {name}`"
        )
