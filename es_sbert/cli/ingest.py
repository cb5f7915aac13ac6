"""`es-sbert ingest`: embed documents and load them into an index."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import cloup

from es_sbert.cli.ingest_options import ingest_options, ingest_settings
from es_sbert.cli.interrupts import EXIT_INTERRUPTED, handle_signals
from es_sbert.cli.logs import is_json_logging, log_errors_only
from es_sbert.cli.options import encoder_arguments, engine_settings
from es_sbert.cli.output import print_report
from es_sbert.cli.setting_names import with_options
from es_sbert.config import EngineSettings

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.ingest.ingest_settings import IngestSettings
    from es_sbert.ingest.load_plan import LoadPlan
    from es_sbert.ingest.progress import LoadObserver
    from es_sbert.ingest.reconcile import PruneCandidates


@cloup.command()
@click.argument("files", metavar="[FILE]...", nargs=-1)
@ingest_options
def ingest(files: tuple[str, ...], yes: bool, quiet: bool, as_json: bool, **options: Any) -> int:
    """Embed documents and load them into an index.

    FILE is a path, a quoted pattern, an address such as s3://bucket/key or https://host/file, or - for stdin. Its
    format is JSON Lines (.jsonl, .ndjson, .json), CSV, TSV (both with a header) or plain text with one document per
    line (.txt), each also compressed (.gz, .zst), or Parquet (.parquet). Without
    FILE, the documents of the index that lack a current vector are embedded; their other fields are not changed.

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
    from es_sbert.engines.connect import connect
    from es_sbert.engines.retry import wait_for_engine
    from es_sbert.errors import ClusterError, EngineError, UsageError, require_extra
    from es_sbert.ingest.ingest_settings import resolve_sources
    from es_sbert.ingest.load import run_load
    from es_sbert.ingest.load_plan import plan_load
    from es_sbert.ingest.load_report import prepare_report_index, write_report
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.ingest.progress import choose_meter
    from es_sbert.ingest.sources.find_sources import STDIN
    from es_sbert.messages import log_event, log_message

    connection, encoder = engine_settings(options), encoder_arguments(options)
    settings, ray, report_index = ingest_settings(files, options), options["ray"], options["report_index"]
    if settings.dry_run is not None:
        return _dry_run(connection, settings, encoder, as_json=as_json)
    if settings.prune and not yes and (STDIN in files or not sys.stdin.isatty() or is_json_logging()):
        raise UsageError(
            "--prune asks before it removes documents, but there is no terminal to ask for confirmation", "Add --yes."
        )
    if ray is not None and (settings.watch_seconds is not None or settings.retry is not None):
        raise UsageError("--ray cannot be combined with --watch or --retry", "Leave out --ray, --watch or --retry.")
    if quiet:
        log_errors_only()
    control = LoadControl()
    with ExitStack() as stack:
        metrics = options["metrics"]
        observer = stack.enter_context(_serve_metrics(metrics)) if metrics is not None else None
        # Find the sources before waiting for the engine, so that a misspelled file name is reported at once.
        sources = resolve_sources(settings)
        # Until the load begins, Ctrl-C ends these waits like any other command.
        wait = partial(wait_for_engine, seconds=settings.retry_seconds)
        engine = stack.enter_context(closing(wait(lambda: connect(connection))))
        plan = wait(lambda: plan_load(engine, settings, sources))
        if report_index is not None:
            wait(lambda: prepare_report_index(engine, report_index))
        if ray is None:
            run = partial(run_load, engine, stack.enter_context(_load_encoder(plan, encoder)))
        else:
            require_extra("ray", "ray")
            from es_sbert.ingest.ray_runner import open_ray_runner

            runner = open_ray_runner(ray, plan, connection, count=options["ray_workers"], **encoder)
            run = partial(stack.enter_context(runner).run_load, engine)
        stack.enter_context(handle_signals(control, log_message))
        meter = choose_meter(sys.stderr, quiet=quiet, events=is_json_logging())
        try:
            confirm = (lambda gone: True) if yes else _confirm_prune
            report = run(plan, control, meter, confirm, observer)
        except (EngineError, ClusterError) as error:
            if not control.interrupted:
                raise
            # The interrupt ended a wait for the engine outside the pipeline.
            message = error.with_notes()
            log_event("interrupted", message, logging.WARNING, text=f"Interrupted: {message}")
            return EXIT_INTERRUPTED
        if report_index is not None:
            write_report(engine, report_index, report)
    if as_json:
        print_report(report.model_dump(mode="json"), (), as_json=True)
    return report.exit_code


def _dry_run(connection: EngineSettings, settings: IngestSettings, encoder: dict[str, Any], *, as_json: bool) -> int:
    """Show what a load would do. Ray and reports are not used, since nothing is written."""
    from es_sbert.engines.connect import connect
    from es_sbert.ingest.dry_run import DryRun, dry_run
    from es_sbert.ingest.ingest_settings import resolve_sources
    from es_sbert.ingest.load_plan import plan_load

    assert settings.dry_run is not None
    sources = resolve_sources(settings)
    with closing(connect(connection)) as engine:
        plan = plan_load(engine, settings, sources)
        with _load_encoder(plan, encoder) as opened:
            result = dry_run(engine, opened, plan, settings.dry_run)
    # Show options only in sentences of the library, which are problems and warnings; texts are those of the documents.
    shown = with_options(result.model_dump(exclude={"mapping"}))
    result = DryRun.model_validate(shown | {"mapping": result.mapping})
    click.echo(result.model_dump_json() if as_json else "\n".join(result.lines()))
    return 0


def _load_encoder(plan: LoadPlan, encoder: dict[str, Any]) -> Encoder:
    """Open the model that the user named, or that of the index, or the default one."""
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.messages import log_message

    stored = plan.stored
    if stored is None:
        return Encoder(report=log_message, **encoder)
    return Encoder.for_index(plan.settings.index, stored.model, stored.fingerprint, report=log_message, **encoder)


@contextmanager
def _serve_metrics(address: str) -> Iterator[LoadObserver]:
    """Serve metrics until the load ends.

    Raises:
        UsageError: the extra `metrics` is not installed, or the address is invalid.
    """
    from es_sbert.errors import require_extra
    from es_sbert.messages import log_event

    require_extra("metrics", "prometheus_client")
    from es_sbert.ingest.load_metrics import LoadMetrics, serve_metrics

    metrics = LoadMetrics()
    with serve_metrics(metrics, address) as url:
        if url is not None:
            log_event("metrics_served", f"metrics at {url}", text=f"Metrics at {url}", url=url)
        yield metrics


def _confirm_prune(gone: PruneCandidates) -> bool:
    """Ask whether to remove these documents."""
    from es_sbert.messages import escape_unprintable

    shown = escape_unprintable(", ".join(gone.sample)) + (", …" if gone.count > len(gone.sample) else "")
    question = f"{gone.count:,} of {gone.loaded:,} loaded documents are no longer in the source ({shown}). Remove them?"
    return click.confirm(question, err=True)
