"""`es-sbert ingest`: embed documents and load them into an index."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.interrupts import EXIT_INTERRUPTED, handle_signals
from es_sbert.cli.logs import is_json_logging, log_errors_only, log_format_option
from es_sbert.cli.output import print_report
from es_sbert.ingest.ingest_settings import IngestSettings

if TYPE_CHECKING:
    from es_sbert.ingest.reconcile import PruneCandidates


_DRY_RUN_DOCUMENTS = 5


_setting_options = partial(shared.setting_options, IngestSettings)
# Options of an ordinary load come first.
_main_options = option_group(
    "Options",
    _setting_options("index", "id_field", "text_fields", "text_template", "strip_html", "passages TOKENS"),
    shared.model_option,
    shared.url_option,
    shared.setting_option(IngestSettings, "dry_run [N]", type=str, is_flag=False, flag_value=str(_DRY_RUN_DOCUMENTS)),
    shared.setting_option(IngestSettings, "watch_seconds --watch [SECONDS]", is_flag=False, flag_value=5.0),
    _setting_options("retry FILE"),
)
_document_options = option_group("Documents", shared.file_options(), _setting_options("routing_field"))
_vector_options = option_group(
    "Vectors",
    _setting_options("vector_field", "vectors NAME[=TEMPLATE]", "passage_overlap TOKENS", "index_type"),
    shared.device_options,
)
_load_options = option_group(
    "Loading",
    _setting_options("prune"),
    click.option("--yes", is_flag=True, help="Do not ask before --prune."),
    _setting_options(
        "max_errors N|N%|off", "dead_letters", "state", "batch_window N", "bulk_bytes BYTES", "retry_seconds SECONDS"
    ),
)
_output_options = option_group(
    "Output",
    shared.quiet_option,
    shared.json_option("Print the summary as one JSON object on stdout."),
    log_format_option,
)
_ingest_options = shared.combine_options(
    _main_options,
    _document_options,
    _vector_options,
    _load_options,
    _output_options,
    option_group("Connection", shared.credential_options, help=shared.connection_help),
    option_group("Ray cluster", _setting_options("ray ADDRESS", "ray_workers N")),
)


@cloup.command()
@click.argument("files", metavar="[FILE]...", nargs=-1)
@_ingest_options
def ingest(files: tuple[str, ...], yes: bool, quiet: bool, as_json: bool, **options: Any) -> int:
    """Embed documents and load them into an index.

    FILE is a path, a quoted pattern, or - for stdin. Its format is JSON Lines (.jsonl, .ndjson, .json), CSV, TSV
    (both with a header) or plain text with one document per line (.txt), each also compressed (.gz, .zst), or Parquet
    (.parquet). Without FILE, the documents of the index that lack a current vector are embedded; their other fields
    are not changed.

    Documents are embedded again only if their text changed. The first documents are checked before anything is
    written. Documents that cannot be loaded go to the dead-letter file, with the reason; documents without text
    are skipped and counted. Run the same command again to resume a load that was stopped or killed.

    Exit codes: 0 all documents loaded, 1 some are in the dead-letter file, missing from the index, or left for the
    next run, 2 none could be loaded, 130 interrupted. A watch that is stopped ends with 0, or with 1 if a document
    lacks its current vector.

    \b
    Examples:
      es-sbert ingest --index docs docs.jsonl.gz --id-field id
      es-sbert ingest --index docs 'parts/*.csv' --text-template '{title}. {body}' --dry-run
      zcat docs.gz | es-sbert ingest --index docs - --format jsonl
      es-sbert ingest --index docs --text-field body
      es-sbert ingest --index docs --retry docs.dead-letters.jsonl
    """
    from es_sbert.errors import ClusterError, EngineError, UsageError
    from es_sbert.ingest.load_files import LoadFilesOptions, load_files, preview_files
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.ingest.progress import choose_meter
    from es_sbert.ingest.sources.file_sources import STDIN
    from es_sbert.messages import log_event, log_message

    connection, index = shared.engine_settings(options), options["index"]
    chosen: Any = {"report": log_message} | shared.select_options(options, LoadFilesOptions.__annotations__)
    if options["dry_run"] is not None:
        count, files = _dry_run_arguments(options["dry_run"], files)
        result = preview_files(index, files, connection, count=count, **chosen)
        click.echo(result.model_dump_json() if as_json else "\n".join(result.lines()))
        return 0
    if options["prune"] and not yes and (STDIN in files or not sys.stdin.isatty() or is_json_logging()):
        raise UsageError(
            "--prune asks before it removes documents, but there is no terminal to ask for confirmation", "Add --yes."
        )
    if quiet:
        log_errors_only()
    with ExitStack() as stack:
        # Until the load begins, Ctrl-C ends waits like any other command.
        control = LoadControl(lambda: stack.enter_context(handle_signals(control, log_message)))
        try:
            report = load_files(
                index,
                files,
                connection,
                progress=choose_meter(sys.stderr, quiet=quiet, events=is_json_logging()),
                confirm=None if yes else _confirm_prune,
                control=control,
                **chosen,
            )
        except (EngineError, ClusterError) as error:
            if not control.interrupted:
                raise
            # The interrupt ended a wait for the engine outside the pipeline.
            message = error.with_notes()
            log_event("interrupted", message, logging.WARNING, text=f"Interrupted: {message}")
            return EXIT_INTERRUPTED
    if as_json:
        print_report(report.model_dump(mode="json"), (), as_json=True)
    return report.exit_code


def _dry_run_arguments(value: str, files: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return the number of documents to show and the files: click takes the first FILE after --dry-run for its value.

    Raises:
        UsageError: the number is below 1.
    """
    from es_sbert.arguments import check_range

    if not (value.isascii() and value.isdigit()):
        return _DRY_RUN_DOCUMENTS, (value, *files)
    check_range("dry_run", int(value), {"ge": 1})
    return int(value), files


def _confirm_prune(gone: PruneCandidates) -> bool:
    """Ask whether to remove these documents."""
    from es_sbert.messages import escape_unprintable

    shown = escape_unprintable(", ".join(gone.sample)) + (", …" if gone.count > len(gone.sample) else "")
    question = f"{gone.count:,} of {gone.loaded:,} loaded documents are no longer in the source ({shown}). Remove them?"
    return click.confirm(question, err=True)
