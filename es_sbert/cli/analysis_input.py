"""The input of `pairs`, `duplicates` and `cluster`: options, checks and reading of texts from files or an index."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.logs import is_json_logging
from es_sbert.errors import SourceError, UsageError
from es_sbert.messages import log_message

if TYPE_CHECKING:
    from es_sbert.analysis import TextCollection
    from es_sbert.analysis.text_collection import OnProgress
    from es_sbert.engines.rest import Json
    from es_sbert.engines.retry import Retrier


# The options for the input. Pass all of them, and the files, to `read_texts`.
source_options = shared.combine_options(
    option_group(
        "Texts",
        click.option("--index", help="Read documents and their vectors from this index or alias."),
        click.option(
            "--filter", "filter_text", metavar="JSON", help="With --index: query that every document must match."
        ),
        shared.vector_field_option,
        shared.text_field_option("Field of the text", "text"),
        shared.text_template_option,
        click.option("--id-field", help="Field of the id.  [default: texts are named FILE:LINE]"),
        click.option("--distinct", is_flag=True, help="Use identical texts only once."),
        shared.file_options,
        shared.retry_seconds_option,
    ),
    shared.encoder_options,
    shared.connection_options,
)


_WITHOUT_INDEX = (
    "Leave out --text-field, --text-template, --id-field, --delimiter, --encoding, --format, --model and --dimensions."
)


def read_filter(options: Mapping[str, Any]) -> Json | None:
    """Parse the query of --filter.

    Raises:
        UsageError: --filter is not a query.
    """
    from es_sbert.search.vector_query import parse_filter

    return None if options["filter_text"] is None else parse_filter(options["filter_text"])


def read_texts(files: Sequence[str], options: Mapping[str, Any], fields: Sequence[str] = ()) -> TextCollection:
    """Read the texts of an index or of files, and log what was left out.

    Args:
        files: The files, if --index is not given.
        options: All options of the command.
        fields: Further fields to keep of each record or document.

    Raises:
        UsageError: options conflict.
        SourceError, ModelError, EngineError: the texts cannot be read or embedded.
    """
    check_source_options(options)
    found = _read_files(files, options, fields) if options["index"] is None else _read_index(options, fields)
    if options["distinct"]:
        found = found.distinct()
    for line in found.skipped.lines():
        log_message(line)
    return found


@contextmanager
def progress_meter(before: int = 0) -> Iterator[OnProgress]:
    """Show progress: a bar on a terminal, a line every few seconds elsewhere.

    Args:
        before: Number of documents that an earlier run has processed.
    """
    from es_sbert.ingest.progress import ProgressTracker, choose_meter

    tracker = ProgressTracker()
    with closing(choose_meter(sys.stderr, quiet=False, events=is_json_logging())) as meter:

        def show(done: int, total: int) -> None:
            fraction = (done - before) / (total - before) if total > before else None
            meter.show(tracker.snapshot(done - before, done - before, fraction))

        yield show


def check_files_or_index(files: Sequence[str], index: str | None) -> None:
    """Check that texts come from either files or an index.

    Raises:
        UsageError: neither files nor an index are given, or both are.
    """
    if bool(files) == (index is not None):
        command = click.get_current_context().command_path
        reason = f"exactly one of FILES and --index is required, but {'both are' if files else 'neither is'} given"
        raise UsageError(reason, f"Use one of them, e.g. `{command} --index docs`.")


def check_source_options(options: Mapping[str, Any]) -> None:
    """Check that options for an index and options for files are not combined.

    Raises:
        UsageError: --filter is used without --index, or --index with options for files or a model.
    """
    if options["index"] is None:
        if options["filter_text"] is not None:
            raise UsageError("--filter requires --index", "Leave --filter out, or add --index NAME.")
        return
    # ES_SBERT_MODEL in the environment does not conflict with --index.
    source = click.get_current_context().get_parameter_source
    has_model = ParameterSource.COMMANDLINE in (source("model"), source("dimensions"))
    named = ("text_fields", "text_template", "id_field", "delimiter", "encoding")
    for_files = (*(options[name] for name in named), options["format"] != "auto")
    if has_model or any(for_files):
        reason = (
            "--index cannot be combined with a model or options for files: the index has its own vectors, texts and ids"
        )
        raise UsageError(reason, _WITHOUT_INDEX)


def check_two_texts(count: int) -> None:
    """Check that there are texts to compare.

    Raises:
        SourceError: there are fewer than two texts.
    """
    if count < 2:
        remedy = "Pass more texts."
        if click.get_current_context().params.get("index") is not None:
            remedy = "Check --vector-field and --filter, or load documents with `es-sbert ingest`."
        raise SourceError(f"a comparison needs two texts, but there is {'one' if count else 'none'}", remedy)


def _read_index(options: Mapping[str, Any], fields: Sequence[str]) -> TextCollection:
    from es_sbert.analysis import read_index

    names, filter = (options["index"], options["vector_field"]), read_filter(options)
    with shared.open_engine(options) as engine, progress_meter() as show:
        retrying = engine_retrier(options)
        return read_index(engine, *names, filter=filter, fields=fields, on_progress=show, retrying=retrying)


def engine_retrier(options: Mapping[str, Any]) -> Retrier:
    """Return a retrier that retries requests for --retry-seconds and logs each wait."""
    from es_sbert.engines.retry import RetryPolicy, make_retrier

    return make_retrier(RetryPolicy(options["retry_seconds"]), log_wait)


def log_wait(reason: str) -> None:
    """Log that a request is retried."""
    log_message(f"waiting for the engine: {reason}")


def file_reading(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a command's options for reading files to arguments of `read_file_texts`.

    Raises:
        UsageError: the options conflict, or the text template is invalid.
    """
    from es_sbert.index.text_template import TextTemplate, parse_text_options
    from es_sbert.ingest.sources.find_sources import FileOptions
    from es_sbert.io.file_formats import FileFormat

    template = parse_text_options(options["text_fields"], options["text_template"])
    return {
        "template": template or TextTemplate.from_fields(("text",)),
        "options": FileOptions(
            None if options["format"] == "auto" else FileFormat(options["format"]),
            options["delimiter"],
            options["encoding"],
        ),
    }


def _read_files(files: Sequence[str], options: Mapping[str, Any], fields: Sequence[str]) -> TextCollection:
    from es_sbert.analysis import read_files
    from es_sbert.encoder.encoder import Encoder, report_warnings

    reading = {**file_reading(options), "id_field": options["id_field"], "fields": fields}
    with Encoder(report=log_message, **shared.encoder_arguments(options)) as encoder:
        report_warnings(encoder, log_message)
        with progress_meter() as show:
            return read_files(files, encoder, on_progress=show, **reading)
