"""Options, input and output of `pairs`, `duplicates` and `cluster`.

Texts come from files or an index. Results are text, JSONL, an HTML page, or a field of the documents.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.logs import is_json_logging, log_format_option
from es_sbert.cli.output import check_output_file, write_output_file
from es_sbert.errors import SourceError, UsageError
from es_sbert.messages import be, escape_unprintable, log_message, pluralize
from es_sbert.settings import SearchOptions
from es_sbert.version import __version__

if TYPE_CHECKING:
    from es_sbert.analysis.field_writer import FieldWriter
    from es_sbert.analysis.html_report import ReportGroup
    from es_sbert.analysis.text_collection import OnProgress, TextCollection
    from es_sbert.engines.rest import Json

# Characters of a text that are shown on the terminal.
_EXCERPT_CHARACTERS = 200
# Maximum number of refused updates to show one by one.
_MAX_REFUSALS_SHOWN = 10

# The options for the input. Pass all of them, and the files, to `read_texts`.
source_options = shared.combine_options(
    option_group(
        "Texts",
        click.option("--index", help="Read documents and their vectors from this index or alias."),
        shared.setting_option(SearchOptions, "filter JSON", help="With --index: query that every document must match."),
        shared.vector_field_option,
        shared.text_options,
        click.option("--id-field", help="Field of the id.  [default: texts are named FILE:LINE]"),
        shared.file_options(),
        shared.retry_seconds_option,
    ),
    shared.encoder_options,
    shared.connection_options,
)


# Check the files with `check_output_file`.
output_options = option_group(
    "Output",
    click.option("-o", "--output", type=shared.OUTPUT_FILE_TYPE, help="Write JSONL to this file instead of printing."),
    shared.json_option("Print JSONL: one JSON object per line."),
    click.option(
        "--html",
        type=shared.OUTPUT_FILE_TYPE,
        help="Write an HTML page of the texts instead of printing; it works offline.",
    ),
    log_format_option,
)


def check_options(files: Sequence[str], options: Mapping[str, Any]) -> None:
    """Check the options for input and output, before texts are read and embedded.

    Raises:
        UsageError: options conflict.
        OutputError: a folder is missing, or not accessible to this user.
    """
    index, context = options["index"], click.get_current_context()
    if bool(files) == (index is not None):
        reason = f"exactly one of FILES and --index is required, but {'both are' if files else 'neither is'} given"
        raise UsageError(reason, f"Use one of them, e.g. `{context.command_path} --index docs`.")
    if index is None and options["filter"] is not None:
        raise UsageError("--filter requires --index", "Leave --filter out, or add --index NAME.")
    # ES_SBERT_MODEL in the environment does not conflict with --index.
    has_model = context.get_parameter_source("model") is ParameterSource.COMMANDLINE
    named = ("text_fields", "text_template", "id_field", "delimiter", "encoding", "format")
    if index is not None and (has_model or any(options[name] for name in named)):
        raise UsageError(
            "--index cannot be combined with a model or options for files: the index has its own vectors, texts and "
            "ids",
            "Leave out --text-field, --text-template, --id-field, --delimiter, --encoding, --format and --model.",
        )
    for path in (options["output"], options["html"]):
        if path is not None:
            check_output_file(path, "Choose a file in another folder.")


def read_texts(files: Sequence[str], options: Mapping[str, Any], fields: Sequence[str] = ()) -> TextCollection:
    """Read the texts of an index or of files, and log what was left out.

    Args:
        files: The files, if --index is not given.
        options: All options of the command.
        fields: Further fields of each document of the index to keep.

    Raises:
        SourceError, ModelError, EngineError: the texts cannot be read or embedded, or there are fewer than two.
    """
    from es_sbert.analysis.text_collection import read_files, read_index
    from es_sbert.encoder.encoder import Encoder, report_warnings

    if options["index"] is not None:
        reading = shared.select_options(options, ("vector_field", "filter", "retry_seconds"))
        with shared.open_engine(options) as engine, progress_meter() as show:
            found = read_index(options["index"], engine, fields=fields, on_progress=show, **reading)
    else:
        reading = {**file_reading(options), "id_field": options["id_field"]}
        with Encoder(report=log_message, **shared.encoder_arguments(options)) as encoder:
            report_warnings(encoder, log_message)
            with progress_meter() as show:
                found = read_files(files, encoder, on_progress=show, **reading)
    for line in found.skipped.lines():
        log_message(line)
    check_two_texts(len(found), options)
    return found


def check_two_texts(count: int, options: Mapping[str, Any]) -> None:
    """Check that there are texts to compare.

    Raises:
        SourceError: there are fewer than two texts.
    """
    if count < 2:
        remedy = "Pass more texts."
        if options["index"] is not None:
            remedy = "Check --vector-field and --filter, or load documents with `es-sbert ingest`."
        raise SourceError(f"a comparison needs two texts, but there is {'one' if count else 'none'}", remedy)


@contextmanager
def progress_meter() -> Iterator[OnProgress]:
    """Show progress: a bar on a terminal, a line every few seconds elsewhere."""
    from es_sbert.ingest.progress import ProgressTracker, choose_meter

    tracker = ProgressTracker()
    with closing(choose_meter(sys.stderr, quiet=False, events=is_json_logging())) as meter:
        yield lambda done, total: meter.show(tracker.snapshot(done, done, done / total if total else None))


def file_reading(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a command's options for reading files to arguments of `read_file_texts`.

    Raises:
        UsageError: the options conflict, or the text template is invalid.
    """
    from es_sbert.index.text_template import TextTemplate, parse_text_options
    from es_sbert.io.file_formats import FileOptions

    template = parse_text_options(options["text_fields"], options["text_template"])
    return {
        "template": template or TextTemplate.from_fields(("text",)),
        "options": FileOptions(**shared.select_options(options, FileOptions.__annotations__)),
    }


def text_excerpt(collection: TextCollection, position: int) -> str:
    """Id and beginning of a text, for the terminal."""
    text = escape_unprintable(" ".join(collection.texts[position].split()))
    excerpt = text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"
    return f"{escape_unprintable(collection.ids[position])}  {excerpt}"


@dataclass(frozen=True)
class Findings:
    """The result of a command, for every form of output.

    Attributes:
        kind: A `ReportKind`.
        title: Title of the page, without the source of the texts.
        texts: All texts.
        groups: The groups on the page.
        facts: Settings and figures on the page.
        objects: The result as JSON objects, for JSONL.
        lines: The result as text, for stdout.
    """

    kind: str
    title: str
    texts: TextCollection
    groups: Sequence[ReportGroup]
    facts: Sequence[tuple[str, str]]
    objects: Iterable[Json]
    lines: Iterable[str]


def write_output(found: Findings, files: Sequence[str], options: Mapping[str, Any]) -> None:
    """Write the result in the form that the options select.

    Raises:
        OutputError: a file cannot be written.
    """
    from es_sbert.io.json_text import dump_object

    remedy = "Choose another file, or free disk space."
    output, html = options["output"], options["html"]
    if html is not None:
        write_output_file(html, [_report_page(found, files, options["index"])], remedy)
    encoded = (dump_object(one) + b"\n" for one in found.objects)
    if output is not None:
        write_output_file(output, encoded, remedy)
    elif options["as_json"]:
        sys.stdout.buffer.writelines(encoded)
        sys.stdout.buffer.flush()
    elif html is None:
        for line in found.lines:
            click.echo(line)


def _report_page(found: Findings, files: Sequence[str], index: str | None) -> bytes:
    import numpy as np

    from es_sbert.analysis.html_report import AnalysisReport, ReportKind, map_points, report_bytes

    texts, left_out = found.texts, sum(found.texts.skipped.counts.values())
    source = index or (Path(files[0]).name if len(files) == 1 else f"{len(files):,} files")
    facts = [*found.facts, ("texts", f"{len(texts):,}"), ("model", texts.model)]
    facts += [("left out", f"{left_out:,}")] if left_out else []
    facts.append(("made by", f"es-sbert {__version__}"))
    kind, title = ReportKind(found.kind), f"{found.title} of {source}"
    # Pairs are shown without a map.
    is_mapped = kind is not ReportKind.PAIRS
    none = np.zeros((len(texts), 2), np.float32)
    points = map_points(texts.vectors, texts.starts, texts.texts) if is_mapped else none
    return report_bytes(AnalysisReport(kind, title, facts, texts.ids, texts.texts, found.groups, points))


def write_field_option(help: str) -> Callable[[shared.F], shared.F]:
    """The option `--write-field`, with this help text."""
    return option_group("Writing", click.option("--write-field", metavar="FIELD", help=help))


@contextmanager
def field_writer(options: Mapping[str, Any]) -> Iterator[FieldWriter | None]:
    """Open the writer of --write-field, if it is given. The field is checked here, before hours of work.

    Raises:
        UsageError: options conflict, or the field may not be written.
        AccessDenied: the user may not write to the index.
        VectorIndexError, EngineError: see `FieldWriter`.
    """
    from es_sbert.engines.retry import RetryPolicy, log_wait, retry_for
    from es_sbert.index.privileges import LOAD, require_privileges

    index, field = options["index"], options["write_field"]
    if field is None:
        yield None
        return
    if index is None:
        raise UsageError("--write-field requires --index", "Add --index NAME, the index whose documents are analyzed.")
    from es_sbert.analysis.field_writer import FieldWriter

    with shared.open_engine(options) as engine:
        retry_for(options["retry_seconds"])(lambda: require_privileges(engine, index, LOAD))
        policy = RetryPolicy(options["retry_seconds"])
        writer = FieldWriter(engine, index, options["vector_field"], field, policy=policy, on_wait=log_wait)
        writer.check_owner()
        yield writer


def write_field_values(
    writer: FieldWriter | None,
    texts: TextCollection,
    values: Mapping[int, str],
    options: Mapping[str, Any],
    *,
    own_ids: bool = False,
) -> int:
    """Write the field, if there is one to write, and print the result.

    Args:
        values: Position in `texts` → value.
        options: All options of the command.
        own_ids: Whether all other documents that match the filter get their own id. Otherwise they lose the field.

    Returns:
        Exit code: 1 if a document did not get its value.
    """
    if writer is None:
        return 0
    counts = writer.write(writer.plan(texts, values, options["filter"], own_ids=own_ids))
    log_message(f"{writer.name} written to {pluralize(counts.written, 'document')} and removed from {counts.removed:,}")
    if counts.changed:
        first, were = escape_unprintable(counts.changed[0]), be(len(counts.changed), past=True)
        log_message(
            f"{pluralize(len(counts.changed), 'document')} {were} changed during the analysis and skipped (first: "
            f"{first}): embed them with `es-sbert ingest` and run the command again"
        )
    if counts.deleted:
        were = be(counts.deleted, past=True)
        log_message(f"{pluralize(counts.deleted, 'document')} {were} deleted during the analysis")
    for (document_id, _), reason in islice(counts.refused.items(), _MAX_REFUSALS_SHOWN):
        log_message(f"no update of {escape_unprintable(document_id)}: {escape_unprintable(reason)}")
    if (more := len(counts.refused) - _MAX_REFUSALS_SHOWN) > 0:
        log_message(f"{pluralize(more, 'more update')} of {writer.name} refused")
    return 1 if counts.changed or counts.refused else 0
