"""`es-sbert ingest`: documents in, an index that is searchable by meaning out."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from es_sbert.cli.logs import is_json, log_format_option, only_errors
from es_sbert.cli.options import connection_options, encoder_options, engine_settings, vector_field_option

if TYPE_CHECKING:
    from es_sbert.ingest.observer import Observer
    from es_sbert.ingest.prune import Gone


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option("--index", required=True, help="Index or alias; created where it does not exist.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "jsonl", "csv", "tsv", "lines", "parquet", "arrow"]),
    default="auto",
    show_default=True,
    help="Format inside the compression; auto goes by each file's name.",
)
@click.option("--sql", metavar="QUERY", help="Load the rows of this query, in place of FILE.")
@click.option(
    "--database",
    envvar="ES_SBERT_DATABASE",
    show_envvar=True,
    metavar="URL",
    help="Database to ask, as SQLAlchemy writes its address; with a password, better by the variable or a file.",
)
@click.option("--database-file", type=click.Path(path_type=Path), help="File that holds the address of the database.")
@click.option(
    "--text-field",
    "text_fields",
    multiple=True,
    help="Field of the text, dotted for nested ones; several are joined, each on its own lines.  "
    "[default: what the index was loaded with, else text]",
)
@click.option("--text-template", help="Text made of several fields, e.g. '{title}. {body}'.")
@click.option(
    "--vector",
    "vectors",
    multiple=True,
    metavar="NAME[=TEMPLATE]",
    help="In place of --vector-field and --text-…: a vector field and its text, e.g. 'title_vector={title}'; repeat it "
    "for several. TEMPLATE may be left out where the index has the field.",
)
@click.option(
    "--passages",
    multiple=True,
    metavar="[NAME=]TOKENS",
    help="Cut long texts, on ends of sentences, into passages of at most TOKENS tokens, each with a vector of its own; "
    "for a new vector field.  [default: one vector of what the model reads]",
)
@click.option(
    "--passage-overlap",
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Most tokens that a passage shares with the next.  [default: an eighth of --passages]",
)
@click.option("--id-field", help="Field of the id.  [default: a hash of the content]")
@click.option(
    "--index-type", help="Index type of a new vector field: hnsw, int8_hnsw, flat, …; see `es-sbert index create`."
)
@click.option(
    "--dead-letters",
    type=click.Path(path_type=Path),
    help="Documents that cannot be loaded are appended here.  [default: INDEX.dead-letters.jsonl]",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="What a load that is killed goes on from; removed at its end.  [default: beside the first FILE]",
)
@click.option(
    "--load-settings",
    type=click.Choice(["auto", "fast", "keep"]),
    default="auto",
    show_default=True,
    help="Switch refreshes and replicas off until the load ends: auto, in an index that it creates; fast, in any.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="At the end, remove documents that an earlier load wrote and that the source no longer has; asks first.",
)
@click.option("--yes", is_flag=True, help="Do not ask before --prune removes documents.")
@click.option(
    "--watch",
    is_flag=False,
    flag_value=5.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="[SECONDS]",
    help="With no FILE: afterwards, go on embedding what other writers add or change, looking every SECONDS (5).",
)
@click.option(
    "--retry",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Try the documents of a dead-letter file once more; those that fail again end in --dead-letters.",
)
@click.option(
    "--max-document-bytes",
    type=click.IntRange(min=1024),
    default=16 << 20,
    show_default=True,
    help="Longer documents are not loaded.",
)
@click.option(
    "--batch-window",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Texts that are sorted by length and embedded together.",
)
@click.option(
    "--bulk-bytes",
    type=click.IntRange(min=1024),
    default=5 << 20,
    show_default=True,
    help="Largest body of a bulk request.",
)
@click.option(
    "--retry-seconds",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="How long to wait for an engine that is overloaded or does not answer.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve Prometheus metrics of the load at this port, to this machine alone where no host is given.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Load on the machines of a Ray cluster: host:port, auto where this machine belongs to it, or local.",
)
@click.option(
    "--ray-workers",
    type=click.IntRange(min=1),
    help="Workers on the Ray cluster, each with a GPU or --threads CPUs.  [default: all that fit]",
)
@click.option(
    "--ray-part-bytes",
    type=click.IntRange(min=1024),
    default=16 << 20,
    show_default=True,
    help="Long files are cut into parts of so many bytes for the workers.",
)
@click.option("--quiet", is_flag=True, help="No progress and no summary; errors are still shown.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on stdout.")
@log_format_option
@vector_field_option
@connection_options
@encoder_options
def ingest(files: tuple[str, ...], index: str, form: str, sql: str | None, database: str | None,
           database_file: Path | None, text_fields: tuple[str, ...], text_template: str | None,
           vectors: tuple[str, ...], passages: tuple[str, ...], passage_overlap: int | None,
           id_field: str | None, index_type: str | None, dead_letters: Path | None, state: Path | None,
           load_settings: str, prune: bool, yes: bool, watch: float | None, retry: Path | None,
           max_document_bytes: int, batch_window: int, bulk_bytes: int, retry_seconds: float, metrics: str | None,
           ray: str | None, ray_workers: int | None, ray_part_bytes: int, quiet: bool, as_json: bool,
           vector_field: str, model: str | None, device: str, precision: str, threads: int | None,
           **connection: Any) -> int:  # fmt: skip
    """Embed documents and load them into an index.

    FILE is JSON Lines (.jsonl, .ndjson, .json), CSV, TSV (both with a header), plain text with one document a
    line (.txt), each as it is or compressed (.gz, .zst), Parquet (.parquet) or Arrow (.arrow, .feather): a
    path, or an address such as s3://bucket/key or https://host/file. Patterns in quotes are expanded; - is
    stdin. --sql loads the rows of a query. With neither, the documents that the index already holds are
    embedded where they lack a current vector; their other fields are left alone.

    Documents that are in the index already are not embedded again unless their text changed. Documents that
    cannot be loaded end in the dead-letter file, with the reason. Documents without text are skipped. A load
    that was stopped, in whatever way, goes on where it was when the same command is run again.

    Exit codes: 0 all in, 1 some in the dead-letter file, 2 nothing could be done, 130 interrupted.

    \b
    Examples:
      es-sbert ingest --index docs docs.jsonl.gz --id-field id
      es-sbert ingest --index docs 'parts/*.csv' --text-template '{title}. {body}'
      zcat docs.gz | es-sbert ingest --index docs - --format jsonl
      es-sbert ingest --index docs 's3://bucket/docs/*.parquet' --id-field id
      es-sbert ingest --index docs --sql 'SELECT id, text FROM articles' --database sqlite:///articles.db
      es-sbert ingest --index docs --text-field body
      es-sbert ingest --index docs articles.jsonl --text-field body --passages 256
      es-sbert ingest --index docs articles.jsonl --vector 'title_vector={title}' --vector 'body_vector={body}'
      es-sbert ingest --index docs --retry docs.dead-letters.jsonl
    """
    from pydantic import SecretStr

    from es_sbert.config import DEFAULT_MODEL
    from es_sbert.credentials import read_secret_file
    from es_sbert.engines.connect import connect
    from es_sbert.errors import UsageError
    from es_sbert.events import say
    from es_sbert.extras import require
    from es_sbert.ingest.control import Control
    from es_sbert.ingest.local import LocalRunner
    from es_sbert.ingest.plan import plan
    from es_sbert.ingest.progress import meter_for
    from es_sbert.ingest.run import run
    from es_sbert.ingest.runner import Runner
    from es_sbert.ingest.settings import IngestSettings, LoadSettings
    from es_sbert.ingest.sources.formats import Format
    from es_sbert.ingest.sources.local import STDIN
    from es_sbert.loading import load_encoder

    address = read_secret_file(database_file, "database's address") if database_file else database
    settings = IngestSettings(
        index=index,
        files=files,
        format=None if form == "auto" else Format(form),
        text_fields=text_fields,
        text_template=text_template,
        id_field=id_field,
        vector_field=vector_field,
        vectors=vectors,
        passages=passages,
        passage_overlap=passage_overlap,
        index_type=index_type,
        batch_window=batch_window,
        bulk_bytes=bulk_bytes,
        retry_seconds=retry_seconds,
        max_document_bytes=max_document_bytes,
        dead_letters=dead_letters,
        state=state,
        load_settings=LoadSettings(load_settings),
        prune=prune,
        retry=retry,
        watch_seconds=watch,
        sql=sql,
        database=None if address is None else SecretStr(address),
    )
    if prune and not yes and (STDIN in files or not sys.stdin.isatty() or is_json()):
        raise UsageError("--prune asks before it removes documents, and nobody is there to answer", "Add --yes.")

    if ray is not None and (watch is not None or retry is not None):
        raise UsageError("--ray is for files and for whole indices", "Leave out --ray, --watch or --retry.")
    if ray is not None:
        require("ray", "ray")
    if quiet:
        only_errors()
    control = Control()
    with ExitStack() as stack:
        observer = stack.enter_context(_observed(metrics)) if metrics is not None else None
        where = engine_settings(**connection)
        engine = stack.enter_context(closing(connect(where)))
        wanted = plan(engine, settings)
        if ray is None:
            encoder = load_encoder(
                model or wanted.model, device=device, precision=precision, threads=threads, report=say
            )
            runner: Runner = LocalRunner(stack.enter_context(encoder))
        else:
            from es_sbert.ingest.cluster.runner import ray_runner

            name = model or wanted.model or DEFAULT_MODEL
            runner = stack.enter_context(
                ray_runner(ray, name, where, device=device, precision=precision, threads=threads, count=ray_workers,
                           part_bytes=ray_part_bytes)
            )  # fmt: skip

        # Whoever sends the signal twice does not want to wait: the second goes to Python's own handler.
        def interrupt(number: int, frame: FrameType | None) -> None:
            signal.signal(number, signal.default_int_handler)
            control.interrupt()
            say("Finishing what is in flight; once more to give it up.")

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            meter = meter_for(sys.stderr, quiet=quiet, events=is_json())
            summary = run(engine, runner, wanted, control, meter, _always if yes else _ask, observer)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if as_json:
        click.echo(summary.model_dump_json())
    return summary.exit_code


@contextmanager
def _observed(address: str) -> Iterator[Observer]:
    """Metrics, served until the load ends.

    Raises:
        UsageError: the extra is not installed, or the address is taken or no address.
    """
    from es_sbert.events import record
    from es_sbert.extras import require

    require("metrics", "prometheus_client")
    from es_sbert.ingest.metrics import LoadMetrics, served

    metrics = LoadMetrics()
    with served(metrics, address) as url:
        record("metrics_served", f"metrics at {url}", text=f"Metrics at {url}", url=url)
        yield metrics


def _always(gone: Gone) -> bool:
    return True


def _ask(gone: Gone) -> bool:
    """Whether the user wants these documents removed."""
    from es_sbert.printable import printable

    shown = printable(", ".join(gone.sample)) + (", …" if gone.count > len(gone.sample) else "")
    question = f"{gone.count:,} of {gone.loaded:,} loaded documents are no longer in the source ({shown}). Remove them?"
    return click.confirm(question, err=True)
