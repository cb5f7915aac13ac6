"""The output of `pairs`, `duplicates` and `cluster`: JSONL files, HTML reports, and a field of the documents."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click
from cloup import option_group

from es_sbert import __version__
from es_sbert.cli import analysis_input
from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import OUTPUT_FILE_TYPE, F, open_engine
from es_sbert.cli.output import check_output_file, write_output_file
from es_sbert.errors import UsageError, require_extra
from es_sbert.messages import be, escape_unprintable, have, log_message, pluralize

if TYPE_CHECKING:
    from es_sbert.analysis import TextCollection
    from es_sbert.analysis.field_writer import FieldUpdateCounts, FieldWriter
    from es_sbert.analysis.html_report import ReportGroup, ReportKind
    from es_sbert.engines.rest import Json


# Characters of a text that are shown on the terminal.
_EXCERPT_CHARACTERS = 200

# Check the files with `check_output_files`.
output_options = option_group(
    "Output",
    click.option("-o", "--output", type=OUTPUT_FILE_TYPE, help="Write JSONL to this file instead of printing."),
    click.option("--json", "as_json", is_flag=True, help="Print JSONL: one JSON object per line."),
    click.option(
        "--html",
        type=OUTPUT_FILE_TYPE,
        help="Write an HTML page with a map of the texts instead of printing; it works offline.",
    ),
    log_format_option,
)


def check_output_files(options: Mapping[str, Any]) -> None:
    """Check that files can be written, before texts are read and embedded.

    Raises:
        OutputError: a folder is missing, or not accessible to this user.
        UsageError: the library that makes the page is not installed.
    """
    if options["html"] is not None:
        require_extra("analysis", "sklearn")
    for path in (options["output"], options["html"]):
        if path is not None:
            check_output_file(path, "Choose a file in another folder.")


def text_excerpt(collection: TextCollection, position: int) -> str:
    """Id and beginning of a text, for the terminal."""
    text = escape_unprintable(" ".join(collection.texts[position].split()))
    excerpt = text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"
    return f"{escape_unprintable(collection.ids[position])}  {excerpt}"


def write_output(
    objects: Iterable[Json], lines: Iterable[str], report: Callable[[], bytes], options: Mapping[str, Any]
) -> None:
    """Write the result in the form that the options select.

    Args:
        objects: The result as JSON objects, for JSONL.
        lines: The result as text, for stdout if no other form is selected.
        report: Creates the HTML page.
        options: All options of the command.

    Raises:
        OutputError: a file cannot be written.
    """
    from es_sbert.io.json_numbers import dump_object

    remedy = "Choose another file, or free disk space."
    output, html = options["output"], options["html"]
    if html is not None:
        write_output_file(html, [report()], remedy)
    encoded = (dump_object(one) + b"\n" for one in objects)
    if output is not None:
        write_output_file(output, encoded, remedy)
    elif options["as_json"]:
        sys.stdout.buffer.writelines(encoded)
        sys.stdout.buffer.flush()
    elif html is None:
        for line in lines:
            click.echo(line)


def describe_source(files: Sequence[str], index: str | None) -> str:
    """Describe the source of the texts briefly."""
    if index is not None:
        return index
    return files[0] if len(files) == 1 else f"{len(files):,} files"


def report_page(
    kind: ReportKind, title: str, texts: TextCollection, groups: Sequence[ReportGroup], facts: list[tuple[str, str]]
) -> bytes:
    """Create the HTML page of a command.

    Args:
        texts: All texts; those of two collections, one after the other.
        facts: The settings and figures of the result.
    """
    from es_sbert.analysis.html_report import AnalysisReport, map_points, report_bytes

    left_out = sum(texts.skipped.counts.values())
    all_facts = [("texts", f"{len(texts):,}"), ("model", texts.model), *facts]
    all_facts += [("left out", f"{left_out:,}")] if left_out else []
    all_facts.append(("made by", f"es-sbert {__version__}"))
    points, projection = map_points(texts.vectors, texts.starts)
    return report_bytes(AnalysisReport(kind, title, all_facts, texts.ids, texts.texts, groups, points, projection))


# Maximum number of refused updates to show one by one.
_MAX_REFUSALS_SHOWN = 10


def write_field_options(*fields: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[F], F]:
    """Combine options that name fields to write with --dry-run."""
    dry_run = click.option("--dry-run", is_flag=True, help="Write nothing; show how many documents would change.")
    return option_group("Writing", *fields, dry_run)


@contextmanager
def field_writers(options: Mapping[str, Any], *names: str) -> Iterator[dict[str, FieldWriter]]:
    """Open the writers of the fields to write, by option name. Fields are checked here, before hours of work.

    Args:
        options: All options of the command.
        names: The options that name a field.

    Raises:
        UsageError: options conflict, or a field may not be written.
        AccessDenied: the user may not write to the index.
        VectorIndexError, EngineError: see `FieldWriter`.
    """
    from es_sbert.engines.retry import RetryPolicy
    from es_sbert.index.privileges import LOAD, require_privileges

    fields = {name: options[name] for name in names if options[name] is not None}
    index, dry_run = options["index"], options["dry_run"]
    flags = " or ".join(_flag(name) for name in fields or names)
    if not fields:
        if dry_run:
            raise UsageError("--dry-run requires a field to write", f"Add {flags} FIELD.")
        yield {}
        return
    if index is None:
        raise UsageError(f"{flags} requires --index", "Add --index NAME, the index whose documents are analyzed.")
    if options["distinct"]:
        raise UsageError(
            f"--distinct cannot be combined with {flags}: it leaves out documents", "Leave --distinct out."
        )
    if len({*fields.values()}) < len(fields):
        raise UsageError(f"{flags} would write the same field", "Use a different field for each.")
    from es_sbert.analysis.field_writer import FieldWriter

    with open_engine(options) as engine:
        if not dry_run:
            analysis_input.engine_retrier(options)(lambda: require_privileges(engine, index, LOAD))
        policy = RetryPolicy(options["retry_seconds"])
        writers = {
            name: FieldWriter(
                engine, index, options["vector_field"], field, policy=policy, on_wait=analysis_input.log_wait
            )
            for name, field in fields.items()
        }
        for writer in writers.values():
            writer.check_owner()
        yield writers


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def write_field_values(
    writer: FieldWriter,
    texts: TextCollection,
    values: Mapping[int, str],
    filter: Json | None,
    *,
    own_ids: bool = False,
    dry_run: bool,
) -> int:
    """Write the field and print the result.

    Args:
        values: Position in `texts` → value.
        filter: Query of the documents that were analyzed.
        own_ids: Whether all other documents that match the filter get their own id. Otherwise they lose the field.

    Returns:
        Exit code: 1 if a document did not get its value.
    """
    from es_sbert.analysis.field_writer import field_updates

    keys, name = texts.keys, writer.name
    assigned = {keys[place] for place in values}
    updates = field_updates(texts, name, values)
    others = writer.plan_own_ids(assigned, filter) if own_ids else writer.plan_removals(assigned, filter)
    if dry_run:
        changed, count = len(updates), sum(1 for _ in others)
        log_message(
            f"{name} would be written to {pluralize(changed + count, 'document')}"
            if own_ids
            else f"{name} would be written to {pluralize(changed, 'document')} and removed from {count:,}; "
            f"{pluralize(len(values) - changed, 'document')} already {have(len(values) - changed)} the right value"
        )
        return 0
    if updates or own_ids:
        writer.add_to_mapping()
    counts = writer.write(chain(updates, others))
    unchanged = None if own_ids else len(values) - len(updates)
    for line in _field_update_lines(counts, name, unchanged):
        log_message(line)
    return 1 if counts.changed or counts.refused else 0


def _field_update_lines(counts: FieldUpdateCounts, name: str, unchanged: int | None) -> Iterator[str]:
    """Report the results of the updates; `unchanged` is None if no value is removed."""
    written = f"{name} written to {pluralize(counts.written, 'document')}"
    if unchanged is None:
        yield written
    else:
        yield (
            f"{written} and removed from {counts.removed:,}; {pluralize(unchanged, 'document')} already had the "
            "right value"
        )
    if counts.deleted:
        first = escape_unprintable(counts.deleted[0])
        were = be(len(counts.deleted), past=True)
        yield f"{pluralize(len(counts.deleted), 'document')} {were} deleted during the analysis (first: {first})"
    if counts.changed:
        were = be(len(counts.changed), past=True)
        yield (
            f"{pluralize(len(counts.changed), 'document')} {were} changed during the analysis and skipped (first: "
            f"{escape_unprintable(counts.changed[0])}): embed them with `es-sbert ingest` and run the command again"
        )
    for (name_of_document, _), reason in islice(counts.refused.items(), _MAX_REFUSALS_SHOWN):
        yield f"no update of {escape_unprintable(name_of_document)}: {escape_unprintable(reason)}"
    if len(counts.refused) > _MAX_REFUSALS_SHOWN:
        more = pluralize(len(counts.refused) - _MAX_REFUSALS_SHOWN, "more update")
        yield f"{more} of {name} refused"
