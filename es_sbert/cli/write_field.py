"""Options of the commands that write what they find into a field of the documents, and how they report it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from cloup import option_group

from es_sbert.cli.options import Number, engine_settings
from es_sbert.config import EngineSettings
from es_sbert.errors import UsageError
from es_sbert.events import say
from es_sbert.printable import printable

if TYPE_CHECKING:
    from es_sbert.analysis import TextCollection
    from es_sbert.analysis.field_writer import FieldUpdateCounts, FieldWriter
    from es_sbert.engines.protocol import Json

F = TypeVar("F", bound=Callable[..., Any])

# Updates that were refused are shown one by one up to here.
_SHOWN = 10


def write_field_options(help: str) -> Callable[[F], F]:
    """--write-field, --dry-run and --retry-seconds.

    Args:
        help: What is written.
    """
    return option_group(
        "Writing",
        click.option("--write-field", metavar="FIELD", help=help),
        click.option("--dry-run", is_flag=True, help="With --write-field: write nothing, show how many would change."),
        click.option(
            "--retry-seconds",
            type=Number(min=0),
            default=300.0,
            show_default=True,
            help="With --write-field or kNN: how long to wait for an engine that is overloaded or does not answer.",
        ),
    )


@contextmanager
def field_writer(write_field: str | None, *, index: str | None, vector_field: str, distinct: bool, dry_run: bool,
                 retry_seconds: float, **reading: Any) -> Iterator[FieldWriter | None]:  # fmt: skip
    """The writer of a field, checked before hours of work; None where nothing is to be written.

    Args:
        reading: The command's other options, of which the connection is taken.

    Raises:
        UsageError: options that do not go together, or a field that may not be written.
        AccessDenied: the user may not write to the index.
        VectorIndexError, EngineError: see `FieldWriter`.
    """
    from es_sbert.engines.connect import connect
    from es_sbert.index.privileges import LOAD, require
    from es_sbert.ingest.retry import RetryPolicy

    if write_field is None:
        if dry_run:
            raise UsageError("--dry-run is given, but nothing would be written", "Add --write-field FIELD.")
        yield None
        return
    if index is None:
        raise UsageError("--write-field is given without --index", "Name the index whose documents are analysed.")
    if distinct:
        raise UsageError(
            "--distinct leaves out documents that --write-field would have to write", "Leave --distinct out."
        )
    from es_sbert.analysis.field_writer import FieldWriter

    with closing(connect(engine_settings(**connection_of(reading)))) as engine:
        if not dry_run:
            require(engine, index, LOAD)
        policy = RetryPolicy(retry_seconds)
        writer = FieldWriter(engine, index, vector_field, write_field, policy=policy, on_wait=say_wait)
        writer.check_owner()
        yield writer


def write_results(writer: FieldWriter, texts: TextCollection, values: Mapping[int, str], filter: Json | None, *,
                  dry_run: bool) -> int:  # fmt: skip
    """Write the field, remove it from all other documents that were analysed, and tell how it went.

    Args:
        values: Position in `texts` → value.
        filter: Query of the documents that were analysed.

    Returns:
        Exit code: 1 where a document did not get its value.
    """
    from es_sbert.analysis.field_writer import field_updates

    keys = texts.keys
    removals = writer.removals({keys[place] for place in values}, filter)
    updates = field_updates(texts, writer.name, values)
    if dry_run:
        say(
            f"{writer.name} would be written to {len(updates):,} documents and removed from {len(removals):,}; "
            f"{len(values) - len(updates):,} have the right value already"
        )
        return 0
    if updates:
        writer.add_to_mapping()
    counts = writer.write([*updates, *removals])
    for line in _lines(counts, writer.name, len(values) - len(updates)):
        say(line)
    return 1 if counts.changed or counts.refused else 0


def connection_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's options that say where the engine is."""
    return {name: value for name, value in options.items() if name in EngineSettings.model_fields}


def say_wait(reason: str) -> None:
    """Tell that a request is tried again."""
    say(f"waiting for the engine: {reason}")


def _lines(counts: FieldUpdateCounts, name: str, unchanged: int) -> Iterator[str]:
    yield (
        f"{name} written to {counts.written:,} documents and removed from {counts.removed:,}; {unchanged:,} had the "
        "right value already"
    )
    if counts.deleted:
        first = printable(counts.deleted[0])
        yield f"{len(counts.deleted):,} documents were deleted during the analysis (first: {first})"
    if counts.changed:
        yield (
            f"{len(counts.changed):,} documents were changed during the analysis and skipped (first: "
            f"{printable(counts.changed[0])}): embed them with `es-sbert ingest` and run the command again"
        )
    for number, ((name_of_document, _), reason) in enumerate(counts.refused.items()):
        if number == _SHOWN:
            yield f"{len(counts.refused) - _SHOWN:,} more updates were refused"
            break
        yield f"no update of {printable(name_of_document)}: {printable(reason)}"
