"""The output of `pairs`, `duplicates` and `cluster`: JSONL files, HTML reports, and a field of the documents."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from cloup import option_group

from es_sbert import __version__
from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import FiniteFloatRange, engine_settings
from es_sbert.config import EngineSettings
from es_sbert.errors import OutputError, UsageError, require_extra
from es_sbert.filesystem import is_stream, open_output
from es_sbert.messages import escape_unprintable, log_message

if TYPE_CHECKING:
    from es_sbert.analysis import Clustering, DuplicateGroup, TextCollection
    from es_sbert.analysis.field_writer import FieldUpdateCounts, FieldWriter
    from es_sbert.analysis.html_report import ReportGroup, ReportKind
    from es_sbert.engines.protocol import Json


# Characters of a text that are shown to people.
_EXCERPT_CHARACTERS = 200

_FILE_TYPE = click.Path(path_type=Path, dir_okay=False)
# Check the files with `check_outputs`.
output_options = option_group(
    "Output",
    click.option("-o", "--output", type=_FILE_TYPE, help="Write JSONL to this file instead of printing."),
    click.option("--json", "as_json", is_flag=True, help="Print JSONL: one JSON object a line."),
    click.option(
        "--html",
        type=_FILE_TYPE,
        help="Write an HTML page with a map of the texts instead of printing; it works offline.",
    ),
    log_format_option,
)


def check_output_files(output: Path | None, html: Path | None) -> None:
    """Make sure that files can be written, before texts are read and embedded.

    Raises:
        OutputError: a folder is missing, or closed to this user.
        UsageError: what makes the page is not installed.
    """
    if html is not None:
        require_extra("analysis", "sklearn")
    for path in (output, html):
        if path is None or is_stream(path):
            continue
        folder = path.resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            reason = "this user may not write to its folder" if folder.is_dir() else "its folder does not exist"
            raise OutputError(f"{path} cannot be written: {reason}", "Name a file in another folder.")


def text_excerpt(collection: TextCollection, position: int) -> str:
    """Id and beginning of a text, for people."""
    text = escape_unprintable(" ".join(collection.texts[position].split()))
    excerpt = text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"
    return f"{escape_unprintable(collection.ids[position])}  {excerpt}"


def write_output(
    objects: Iterable[Json],
    lines: Iterable[str],
    output: Path | None,
    *,
    as_json: bool,
    html: Path | None = None,
    report: Callable[[], Iterable[bytes]] | None = None,
) -> None:
    """Write what was found.

    Args:
        objects: For machines: to the output, or with `as_json` to stdout.
        lines: For people, on stdout, where no other form is asked for.
        html: Gets the page that `report` makes.

    Raises:
        OutputError: a file cannot be written.
    """
    from es_sbert.io.text_formats import dump_object

    if html is not None and report is not None:
        _write_file(html, report())
    if output is None and not as_json:
        for line in lines if html is None else ():
            click.echo(line)
        return
    encoded = (dump_object(one) + b"\n" for one in objects)
    if output is not None:
        _write_file(output, encoded)
        return
    sys.stdout.buffer.writelines(encoded)
    sys.stdout.buffer.flush()


def _write_file(path: Path, parts: Iterable[bytes]) -> None:
    try:
        with open_output(path) as target:
            target.writelines(parts)
            target.flush()
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "Name another file, or free disk space."
        ) from error


ReportFacts = Sequence[tuple[str, str]]


def pairs_page(
    texts: TextCollection, pairs: Sequence[tuple[int, int, float, float | None]], source: str, facts: ReportFacts
) -> bytes:
    """The page of `pairs`.

    Args:
        texts: All texts; of two collections, one after the other.
        pairs: First and second position, cosine, and the margin where there is one.
        source: Where the texts come from.
        facts: What was asked for.
    """
    from es_sbert.analysis.html_report import ReportGroup, ReportKind

    groups = [
        ReportGroup(
            str(number) if margin is None else f"Pair {number}, margin {margin:.5f}", (first, second), (cosine,) * 2
        )
        for number, (first, second, cosine, margin) in enumerate(pairs, 1)
    ]
    return _report_page(ReportKind.PAIRS, f"Most similar pairs of {source}", texts, groups, facts)


def duplicates_page(texts: TextCollection, found: Sequence[DuplicateGroup], source: str, facts: ReportFacts) -> bytes:
    """The page of `duplicates`; see `pairs_page`."""
    from es_sbert.analysis.html_report import ReportGroup, ReportKind

    groups = [
        ReportGroup(str(number), group.members, group.cosines, group.kept) for number, group in enumerate(found, 1)
    ]
    return _report_page(ReportKind.DUPLICATES, f"Near-duplicates of {source}", texts, groups, facts)


def clusters_page(
    texts: TextCollection, found: Clustering, names: Sequence[str], source: str, facts: ReportFacts
) -> bytes:
    """The page of `cluster`; see `pairs_page`."""
    from es_sbert.analysis.html_report import ReportGroup, ReportKind

    groups = [
        ReportGroup(name, cluster.members, cluster.cosines) for name, cluster in zip(names, found.clusters, strict=True)
    ]
    return _report_page(ReportKind.CLUSTERS, f"Clusters of {source}", texts, groups, facts)


def describe_source(files: Sequence[str], index: str | None) -> str:
    """Where texts come from, in a few words."""
    if index is not None:
        return index
    return files[0] if len(files) == 1 else f"{len(files):,} files"


def _report_page(
    kind: ReportKind, title: str, texts: TextCollection, groups: Sequence[ReportGroup], facts: ReportFacts
) -> bytes:
    from es_sbert.analysis.html_report import AnalysisReport, map_points, report_bytes

    points, projection = map_points(texts.vectors, texts.starts)
    report = AnalysisReport(
        kind, title, list(_report_facts(texts, facts)), texts.ids, texts.texts, groups, points, projection
    )
    return report_bytes(report)


def _report_facts(texts: TextCollection, facts: ReportFacts) -> Iterator[tuple[str, str]]:
    yield "texts", f"{len(texts):,}"
    yield "model", texts.model
    yield from facts
    left_out = sum(texts.skipped.counts.values())
    if left_out:
        yield "left out", f"{left_out:,}"
    yield "made by", f"es-sbert {__version__}"


F = TypeVar("F", bound=Callable[..., Any])

# Updates that were refused are shown one by one up to here.
_MAX_REFUSALS_SHOWN = 10


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
            type=FiniteFloatRange(min=0),
            default=300.0,
            show_default=True,
            help="With --write-field or kNN: how long to wait for an engine that is overloaded or does not answer.",
        ),
    )


@contextmanager
def field_writer(
    write_field: str | None,
    *,
    index: str | None,
    vector_field: str,
    distinct: bool,
    dry_run: bool,
    retry_seconds: float,
    **reading: Any,
) -> Iterator[FieldWriter | None]:
    """The writer of a field, checked before hours of work; None where nothing is to be written.

    Args:
        reading: The command's other options, of which the connection is taken.

    Raises:
        UsageError: options that do not go together, or a field that may not be written.
        AccessDenied: the user may not write to the index.
        VectorIndexError, EngineError: see `FieldWriter`.
    """
    from es_sbert.engines.connect import connect
    from es_sbert.engines.retry import RetryPolicy
    from es_sbert.index.privileges import LOAD, require_privileges

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

    with closing(connect(engine_settings(**connection_of_options(reading)))) as engine:
        if not dry_run:
            require_privileges(engine, index, LOAD)
        policy = RetryPolicy(retry_seconds)
        writer = FieldWriter(engine, index, vector_field, write_field, policy=policy, on_wait=log_wait)
        writer.check_owner()
        yield writer


def write_field_values(
    writer: FieldWriter, texts: TextCollection, values: Mapping[int, str], filter: Json | None, *, dry_run: bool
) -> int:
    """Write the field, remove it from all other documents that were analysed, and tell how it went.

    Args:
        values: Position in `texts` → value.
        filter: Query of the documents that were analysed.

    Returns:
        Exit code: 1 where a document did not get its value.
    """
    from es_sbert.analysis.field_writer import field_updates

    keys = texts.keys
    removals = writer.plan_removals({keys[place] for place in values}, filter)
    updates = field_updates(texts, writer.name, values)
    if dry_run:
        log_message(
            f"{writer.name} would be written to {len(updates):,} documents and removed from {len(removals):,}; "
            f"{len(values) - len(updates):,} have the right value already"
        )
        return 0
    if updates:
        writer.add_to_mapping()
    counts = writer.write([*updates, *removals])
    for line in _field_update_lines(counts, writer.name, len(values) - len(updates)):
        log_message(line)
    return 1 if counts.changed or counts.refused else 0


def connection_of_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's options that say where the engine is."""
    return {name: value for name, value in options.items() if name in EngineSettings.model_fields}


def log_wait(reason: str) -> None:
    """Tell that a request is tried again."""
    log_message(f"waiting for the engine: {reason}")


def _field_update_lines(counts: FieldUpdateCounts, name: str, unchanged: int) -> Iterator[str]:
    yield (
        f"{name} written to {counts.written:,} documents and removed from {counts.removed:,}; {unchanged:,} had the "
        "right value already"
    )
    if counts.deleted:
        first = escape_unprintable(counts.deleted[0])
        yield f"{len(counts.deleted):,} documents were deleted during the analysis (first: {first})"
    if counts.changed:
        yield (
            f"{len(counts.changed):,} documents were changed during the analysis and skipped (first: "
            f"{escape_unprintable(counts.changed[0])}): embed them with `es-sbert ingest` and run the command again"
        )
    for number, ((name_of_document, _), reason) in enumerate(counts.refused.items()):
        if number == _MAX_REFUSALS_SHOWN:
            yield f"{len(counts.refused) - _MAX_REFUSALS_SHOWN:,} more updates were refused"
            break
        yield f"no update of {escape_unprintable(name_of_document)}: {escape_unprintable(reason)}"
