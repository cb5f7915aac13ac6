"""`es-sbert index migrate`: move an index to another model, text or index type while it is in use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.interrupts import EXIT_INTERRUPTED, handle_signals, interrupt_by_any_signal
from es_sbert.cli.output import print_message, print_report, require_terminal
from es_sbert.messages import pluralize

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.engines.engine import Engine
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.migration.prepare_migration import MigrationRequest

max_hold_option = click.option(
    "--max-hold",
    type=shared.FiniteFloatRange(min=0, min_open=True),
    default=10.0,
    metavar="SECONDS",
    help="Maximum time to refuse writes, over all attempts to swap. After half of it, writes are accepted again, "
    "another round copies changes, and the swap is retried in the time that is left.",
)
replace_index_option = click.option(
    "--replace-index",
    is_flag=True,
    help="If the name is that of an index: replace the index with an alias of that name, deleting it in the same step.",
)


@cloup.command()
@click.argument("alias")
@option_group(
    "Options",
    click.option(
        "--index-type", help=f"Index type of the new vectors: {shared.INDEX_TYPES_HELP}.  [default: unchanged]"
    ),
    shared.element_type_option("unchanged"),
    click.option("--name", help="Name of the new index.  [default: ALIAS and the model's fingerprint]"),
    shared.text_field_option("Embed this field instead of the old text", "the text is unchanged"),
    click.option("--text-template", help="New text made of several fields, e.g. '{title}. {body}'."),
    click.option(
        "--block-writes/--no-block-writes",
        default=True,
        help="Refuse writes to the old index (403) from the last short round on, so that no write is lost. Without "
        "it, no write is refused, but a last-moment write to the old index is lost if the same document is written to "
        "the new one before it is copied.",
    ),
    max_hold_option,
    replace_index_option,
    click.option(
        "--rollback",
        is_flag=True,
        help="Before the swap: abort the migration and delete the new index. After it: return to the old index, if it "
        "still exists, with all writes since the swap.",
    ),
    click.option(
        "--cancel",
        is_flag=True,
        help="Before the swap: cancel the migration, deleting the new index, or the rollback, keeping the old index. "
        "Writes are accepted again.",
    ),
    click.option("--list", "list_kept", is_flag=True, help="List the indices that migrations of ALIAS have kept."),
    click.option("--drop", is_flag=True, help="Delete the indices that migrations of ALIAS have kept; asks first."),
    click.option("--yes", is_flag=True, help="Do not ask before an index is deleted."),
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
def migrate(
    alias: str, rollback: bool, cancel: bool, list_kept: bool, drop: bool, yes: bool, quiet: bool, **options: Any
) -> int:
    """Move the index of ALIAS to another model, text or index type while it is in use.

    A new index gets the old one's settings, mapping and documents, embedded with --model. Changes to the old one are
    copied too. Counts, documents and vectors are compared, then the alias (and every other alias of the old index) is
    swapped in one step. The index stays available for searches. Writes are refused for a few seconds before the swap;
    writers must retry them (HTTP 403, cluster_block_exception). The old index is kept, but accepts no writes, until
    --drop; --rollback returns to it. Run the same command again to resume a run that was stopped or killed, or cancel
    it with --cancel.

    Exit codes: 0 done, 1 done except for documents in the dead-letter file, 2 not possible, 130 stopped.

    \b
    Examples:
      es-sbert index migrate docs --model ./my-model
      es-sbert index migrate docs --index-type int8_hnsw
      es-sbert index migrate docs --dimensions 128 --element-type bfloat16
      es-sbert index migrate docs --text-template '{title}. {body}'
      es-sbert index migrate docs --list
      es-sbert index migrate docs --rollback
      es-sbert index migrate docs --cancel
      es-sbert index migrate docs --drop
    """
    from es_sbert.errors import UsageError
    from es_sbert.index.text_template import parse_text_options

    if rollback + cancel + list_kept + drop > 1:
        raise UsageError("--rollback, --cancel, --list and --drop cannot be combined", "Use one of them.")
    replace_index = options["replace_index"]
    if replace_index and not options["block_writes"]:
        reason = "--replace-index deletes the old index in the swap, so it cannot be combined with --no-block-writes"
        raise UsageError(reason, "Leave --no-block-writes out.")
    text = parse_text_options(options["text_fields"], options["text_template"])
    if (drop or replace_index) and not yes:
        require_terminal("an index would be deleted")
    question = f"Delete the index {alias} once the new one is ready?"
    if replace_index and not yes and not click.confirm(question, err=True):
        return 0

    def say(message: str) -> None:
        if not quiet:
            print_message(message)

    with shared.open_engine(options) as engine:
        options |= {"alias": alias, "text": text, "rollback": rollback}
        if list_kept:
            _list_kept(engine, alias, as_json=options["as_json"])
            return 0
        if drop:
            gone = _drop(engine, alias, yes=yes)
            say(f"deleted {', '.join(gone)}" if gone else "nothing was deleted")
            _print_deleted(gone, options)
            return 0
        if cancel:
            _cancel(engine, options, say)
            return 0
        if rollback:
            return _roll_back(engine, options, say, quiet=quiet)
        return _run_migration(engine, options, alias, say, quiet=quiet)


def _list_kept(engine: Engine, alias: str, *, as_json: bool) -> None:
    import orjson

    from es_sbert.messages import pluralize
    from es_sbert.migration.rollback import list_kept

    kept = list_kept(engine, alias)
    print_begun_migration(engine, alias)
    if as_json:
        click.echo(orjson.dumps([index.model_dump() for index in kept]))
        return
    for index in kept:
        model = f", {index.model}" if index.model else ""
        writes = "accepts no writes" if index.blocked else "accepts writes"
        back = "; --rollback returns to it" if index.is_previous else ""
        click.echo(f"{index.name}: {pluralize(index.documents, 'document')}{model}, {writes}{back}")
    if not kept:
        print_message(f"no migration of {alias} has kept an index")


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


def _drop(engine: Engine, alias: str, *, yes: bool) -> list[str]:
    from es_sbert.migration.alias_swap import drop_old_index

    def confirm(index: str, documents: int) -> bool:
        return yes or click.confirm(f"Delete the index {index} with its {pluralize(documents, 'document')}?", err=True)

    return drop_old_index(engine, alias, confirm)


def _print_deleted(indices: list[str], options: dict[str, Any]) -> None:
    import orjson

    if options["as_json"]:
        click.echo(orjson.dumps({"deleted": indices}))


def _cancel(engine: Engine, options: dict[str, Any], say: Callable[[str], None]) -> None:
    from es_sbert.migration.rollback import cancel_migration

    cancelled = cancel_migration(engine, options["alias"])
    fate = "is kept" if cancelled.is_rollback else "was deleted"
    say(f"cancelled: {cancelled.index} stays in use and accepts writes, {cancelled.target} {fate}")
    _print_deleted([] if cancelled.is_rollback else [cancelled.target], options)


def _roll_back(engine: Engine, options: dict[str, Any], say: Callable[[str], None], *, quiet: bool) -> int:
    """Abort a migration, or return to the index before it."""
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.migration.alias_swap import roll_back
    from es_sbert.migration.rollback import find_rollback

    alias = options["alias"]
    target = find_rollback(engine, alias, options["vector_field"])
    if target is None:
        gone = roll_back(engine, alias)
        say(f"deleted {gone}, which was never in use" if gone else f"no migration of {alias} is in progress")
        _print_deleted([gone] if gone else [], options)
        return 0
    if not target.fields:
        # No model is needed: only results of analyses had been removed from the index.
        return run_and_print(engine, None, _read_request(options), LoadControl(), options, say, quiet=quiet)
    if options["vector_field"] not in target.fields:
        options["vector_field"] = target.fields[0]
    return _run_migration(engine, options, target.index.name, say, quiet=quiet)


def _run_migration(
    engine: Engine, options: dict[str, Any], index: str, say: Callable[[str], None], *, quiet: bool
) -> int:
    """Run a migration or a rollback.

    Args:
        index: The index whose model is used unless the options name one: that of the alias, or the one to return to.
    """
    from es_sbert.bundle.model_lookup import find_index_model
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.encoder.model_loading import find_encoder
    from es_sbert.engines.retry import RetryPolicy, make_retrier
    from es_sbert.index.mapping import bytes_as_floats
    from es_sbert.index.text_languages import language_warning, sample_languages
    from es_sbert.index.vector_field import require_index, vector_field_from_state
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.migration.alias_swap import remove_leftover_block
    from es_sbert.migration.migration_state import migration_lock
    from es_sbert.migration.prepare_migration import check_migratable

    control, request = LoadControl(), _read_request(options)
    policy = RetryPolicy(options["retry_seconds"])
    retrying = make_retrier(policy, lambda reason: say(f"waiting for the engine: {reason}"), control.stop_retrying)
    with migration_lock(engine.info.url, request.alias):
        # Remove the block before a model is loaded: writers have waited since the run that blocked them was killed.
        lifted = retrying(lambda: remove_leftover_block(engine, request.alias))
    if lifted is not None:
        say(f"{lifted} accepts writes again; an earlier run had blocked them")
    state = retrying(lambda: require_index(engine, index))
    # A rollback to byte vectors is refused, because they are no longer written.
    state = state if request.rollback else bytes_as_floats(state)
    field = vector_field_from_state(engine, state, request.vector_field)
    meta = field.meta
    named = shared.encoder_arguments(options)
    named["model"] = shared.cut_index_model(named["model"], meta.model)
    if not request.rollback:
        # Before the model is exported, which can take long.
        if named["model"] is None:
            located = find_index_model(field.index, meta.model, meta.fingerprint)
            model = find_encoder(located.folder, located.name).model
        else:
            model = find_encoder(named["model"]).model
        with migration_lock(engine.info.url, request.alias), interrupt_by_any_signal():
            check_migratable(engine, request, model, retrying)
        texts = meta if request.text is None else meta.model_copy(update={"text": request.text.template})
        languages = sample_languages(engine, field.index, field.name, texts)
        warning = language_warning(languages, request.alias, model.name, model.fingerprint)
        if warning is not None:
            say(f"Warning: {warning}")
    with Encoder.for_index(field.index, meta.model, meta.fingerprint, report=say, **named) as encoder:
        if encoder.info.fingerprint != meta.fingerprint:
            name = encoder.info.model
            say(f"Gateways need {name} too, or they refuse searches after the swap: `serve --also-model {name}`")
        return run_and_print(engine, encoder, request, control, options, say, quiet=quiet)


def _read_request(options: dict[str, Any]) -> MigrationRequest:
    from es_sbert.migration.prepare_migration import MigrationRequest

    return MigrationRequest(**shared.select_options(options, MigrationRequest.__annotations__))


def run_and_print(
    engine: Engine,
    encoder: Encoder | None,
    request: MigrationRequest,
    control: LoadControl,
    options: dict[str, Any],
    say: Callable[[str], None],
    *,
    quiet: bool,
) -> int:
    """Run a migration or a rollback until it ends or is interrupted, and print the result. Returns the exit code.

    Args:
        encoder: None if the new index has no vectors.
        options: With `retry_seconds` and `as_json`, and perhaps `dead_letters`.
    """
    from es_sbert.errors import EngineError
    from es_sbert.ingest.progress import choose_meter
    from es_sbert.migration.migrate import migrate

    run_options = shared.select_options(options, ("dead_letters", "retry_seconds"))
    blocked = "Until then, writes to the old index may be blocked." if request.block_writes else ""
    with handle_signals(control, say, lambda: blocked):
        try:
            meter = partial(choose_meter, sys.stderr, quiet=quiet)
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
