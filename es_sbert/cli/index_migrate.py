"""`es-sbert index migrate`: move an index to another model, text or index type while it is in use."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.interrupts import EXIT_INTERRUPTED, handle_signals
from es_sbert.cli.output import print_message, print_report, require_terminal
from es_sbert.settings import MigrationOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from es_sbert.engines.engine import Engine


@cloup.command()
@click.argument("alias")
@option_group(
    "Options",
    shared.setting_option(MigrationOptions, "index_type"),
    click.option("--name", help="Name of the new index.  [default: ALIAS and the model's fingerprint]"),
    shared.text_field_option("Embed this field instead of the old text", "the text is unchanged"),
    click.option("--text-template", help="New text made of several fields, e.g. '{title}. {body}'."),
    click.option(
        "--max-write-block",
        type=shared.FiniteFloatRange(min=0, min_open=True),
        default=10.0,
        metavar="SECONDS",
        help="Maximum time to refuse writes, over all attempts to swap. After half of it, writes are accepted again, "
        "another round copies changes, and the swap is tried once more in the time that is left.",
    ),
    click.option(
        "--replace-index",
        is_flag=True,
        help="If ALIAS is an index: replace the index with an alias of that name, deleting it in the same step.",
    ),
    click.option("--yes", is_flag=True, help="With --replace-index: do not ask before the index is deleted."),
    click.option(
        "--cancel",
        is_flag=True,
        help="Before the swap: cancel the migration and delete the new index. Writes are accepted again.",
    ),
    click.option(
        "--dead-letters",
        type=shared.FILE_TYPE,
        help="Append documents that cannot be embedded to this file.  [default: NEW-INDEX.dead-letters.jsonl]",
    ),
    shared.retry_seconds_option,
    shared.quiet_option,
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."),
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
    from es_sbert.index.text_template import parse_text_options

    options["text"] = parse_text_options(options["text_fields"], options["text_template"])
    if options["replace_index"] and not yes:
        require_terminal("an index would be deleted")
        if not click.confirm(f"Delete the index {alias} once the new one is ready?", err=True):
            return 0

    def say(message: str) -> None:
        if not quiet:
            print_message(message)

    with shared.open_engine(options) as engine:
        if not cancel:
            return _migrate(engine, alias, options, say, quiet=quiet)
        from es_sbert.migration.alias_swap import cancel_migration

        index, deleted = cancel_migration(engine, alias)
        say(f"cancelled: {index} stays in use, {deleted} was deleted")
        if options["as_json"]:
            print_report({"deleted": [deleted]}, (), as_json=True)
        return 0


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


def _migrate(engine: Engine, alias: str, options: dict[str, Any], say: Callable[[str], None], *, quiet: bool) -> int:
    """Run the migration until it ends or is interrupted, and print its result. Returns the exit code."""
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.engines.retry import RetryPolicy, make_retrier
    from es_sbert.errors import EngineError
    from es_sbert.index.mapping import with_float_vectors
    from es_sbert.index.text_languages import language_warning, sample_languages
    from es_sbert.index.vector_field import require_index, vector_field_from_state
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.ingest.progress import choose_meter
    from es_sbert.migration.alias_swap import remove_leftover_block
    from es_sbert.migration.migrate import migrate
    from es_sbert.migration.migration_state import migration_lock
    from es_sbert.migration.prepare_migration import MigrationRequest

    control = LoadControl()
    request = MigrationRequest(**shared.select_options({"alias": alias} | options, MigrationRequest.__annotations__))
    policy = RetryPolicy(options["retry_seconds"])
    retrying = make_retrier(policy, lambda reason: say(f"waiting for the engine: {reason}"), control.stop_retrying)
    with migration_lock(engine.info.url, alias):
        # Remove the block before a model is loaded: writers have waited since the run that blocked them was killed.
        lifted = retrying(lambda: remove_leftover_block(engine, alias))
    if lifted is not None:
        say(f"{lifted} accepts writes again; an earlier run had blocked them")
    state = with_float_vectors(retrying(lambda: require_index(engine, alias)))
    field = vector_field_from_state(engine, state, request.vector_field)
    meta = field.meta
    named = shared.encoder_arguments(options)
    with (
        Encoder.for_index(field.index, meta.model, meta.fingerprint, report=say, **named) as encoder,
        handle_signals(control, say, lambda: "Until then, writes to the old index may be blocked."),
    ):
        name = encoder.info.model
        texts = meta if request.text is None else meta.changed(text=request.text.template)
        languages = sample_languages(engine, field.index, field.name, texts)
        warning = language_warning(languages, alias, name, encoder.info.fingerprint)
        if warning is not None:
            say(f"Warning: {'. '.join(warning)}")
        if encoder.info.fingerprint != meta.fingerprint:
            say(f"Gateways need {name} too, or they refuse searches after the swap: `serve --also-model {name}`")
        run_options = shared.select_options(options, ("dead_letters", "retry_seconds"))
        meter = partial(choose_meter, sys.stderr, quiet=quiet)
        try:
            result = migrate(engine, encoder, request, control, meter, report=say, **run_options)
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
