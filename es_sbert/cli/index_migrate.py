"""`es-sbert index migrate`: move an index to another model, text or index type while it is in use."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.interrupts import EXIT_INTERRUPTED, handle_signals
from es_sbert.cli.output import print_message, print_report, require_terminal
from es_sbert.settings import MigrationOptions

if TYPE_CHECKING:
    from es_sbert.engines.engine import Engine


@cloup.command()
@click.argument("alias")
@option_group(
    "Options",
    shared.setting_options(
        MigrationOptions,
        "index_type",
        "name",
        "text_fields",
        "text_template",
        "max_write_block SECONDS",
        "replace_index",
    ),
    click.option("--yes", is_flag=True, help="With --replace-index: do not ask before the index is deleted."),
    click.option(
        "--cancel",
        is_flag=True,
        help="Before the swap: cancel the migration and delete the new index. Writes are accepted again.",
    ),
    shared.setting_option(MigrationOptions, "dead_letters"),
    shared.retry_seconds_option,
    shared.quiet_option,
    shared.json_option("Print the result as one JSON object on stdout."),
    shared.vector_field_option,
)
@shared.connection_options
@shared.encoder_options
def migrate(alias: str, cancel: bool, yes: bool, quiet: bool, **options: Any) -> int:
    """Move the index of ALIAS to another model, text or index type while it is in use.

    A new index gets the old one's settings, mapping and documents, embedded with --model. Changes to the old one are
    copied too. Counts, documents and vectors are compared, then the alias (and every other alias of the old index) is
    swapped in one step. The index stays available for searches. Writes are refused for a few seconds before the swap;
    writers must retry them (HTTP 403, cluster_block_exception). The old index is kept, but accepts no writes: delete it
    when it is not needed any more. Run the same command again to resume a run that was stopped or killed, or cancel it
    with --cancel.

    Exit codes: 0 done, 1 done except for documents in the dead-letter file, 2 not possible, 130 stopped.

    \b
    Examples:
      es-sbert index migrate docs --model ./my-model
      es-sbert index migrate docs --index-type int8_hnsw
      es-sbert index migrate docs --model all-MiniLM-L6-v2@128
      es-sbert index migrate docs --text-template '{title}. {body}'
      es-sbert index migrate docs --cancel
    """
    from es_sbert.errors import EngineError
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.ingest.progress import choose_meter
    from es_sbert.migration.alias_swap import cancel_migration
    from es_sbert.migration.migrate import MigrateOptions, migrate_index

    if options["replace_index"] and not yes:
        require_terminal("an index would be deleted")
        if not click.confirm(f"Delete the index {alias} once the new one is ready?", err=True):
            return 0

    def say(message: str) -> None:
        if not quiet:
            print_message(message)

    with shared.open_engine(options) as engine, ExitStack() as stack:
        if cancel:
            index, deleted = cancel_migration(alias, engine)
            say(f"cancelled: {index} stays in use, {deleted} was deleted")
            if options["as_json"]:
                print_report({"deleted": [deleted]}, (), as_json=True)
            return 0
        blocked = "Until then, writes to the old index may be blocked."
        control = LoadControl(lambda: stack.enter_context(handle_signals(control, say, lambda: blocked)))
        meter = choose_meter(sys.stderr, quiet=quiet)
        chosen = shared.select_options(options, MigrateOptions.__annotations__)
        try:
            result = migrate_index(alias, engine, progress=meter, control=control, report=say, **chosen)
        except EngineError as error:
            if not control.interrupted:
                raise
            # The interrupt ended a wait for the engine.
            say(f"Interrupted: {error.with_notes()}; run the same command again to resume.")
            return EXIT_INTERRUPTED
    for line in result.lines():
        say(line)
    if options["as_json"]:
        print_report(result.model_dump(mode="json"), (), as_json=True)
    return result.exit_code


def print_begun_migration(engine: Engine, name: str) -> None:
    """Print a warning about each migration of an index or alias that is not finished, if this user may read it."""
    from contextlib import suppress

    from es_sbert.errors import EsSbertError
    from es_sbert.migration.migration_state import find_begun

    with suppress(EsSbertError):
        for index in engine.resolve_indices(name):
            begun = find_begun(engine, index)
            if begun is not None:
                error = begun.error()
                print_message(f"Warning: {error.message}. {error.remedy}")
