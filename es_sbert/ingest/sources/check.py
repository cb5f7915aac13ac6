"""A look at the beginning of every source before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from es_sbert.errors import SourceError
from es_sbert.ingest.sources.source import Source, SourceLost, WantedColumns
from es_sbert.streams.lines import StreamBroken


def check_sources(sources: Sequence[Source], max_bytes: int, text_fields: Sequence[str], id_field: str | None) -> None:
    """Open every source that can be read twice and check what its first bytes tell; pipes are left alone.

    Args:
        text_fields: Fields of which a header must name at least one.
        id_field: Field that a header must name, where one is asked for.

    Raises:
        SourceError: a source cannot be opened, is not what its name says, or lacks the columns asked for.
        UsageError: a library that reads it is not installed.
    """
    wanted = WantedColumns(text_fields, id_field)
    for source in sources:
        try:
            source.check(max_bytes, wanted)
        except OSError as error:
            raise SourceError(
                f"{source.name} cannot be read: {error.strerror or error}", "Check that this user may read it."
            ) from error
        except StreamBroken as broken:
            raise SourceError(f"{source.name}: {broken}", "Mend or convert the file and run again.") from broken
        except SourceLost as lost:
            raise SourceError(
                f"{source.name} cannot be read: {lost}", "Run the same command again when it can be reached."
            ) from lost
