"""`es-sbert duplicates`: find groups of near-duplicates."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import analysis
from es_sbert.cli.options import open_engine, select_options, setting_options
from es_sbert.errors import UsageError
from es_sbert.messages import log_message, pluralize
from es_sbert.settings import DuplicateOptions

if TYPE_CHECKING:
    from es_sbert.analysis.duplicates import DuplicateGroup, DuplicateSearchResult
    from es_sbert.analysis.text_collection import TextCollection
    from es_sbert.engines.rest import Json


_SHOWN_IN_TERMINAL = 10  # groups, and duplicates of each


@cloup.command()
@click.argument("files", nargs=-1)
@option_group("Options", setting_options(DuplicateOptions, "min_cosine", "num_candidates"))
@analysis.write_field_option(
    "With --index: write the group of each document into this keyword field (e.g. duplicate_group): the id of the "
    "kept document, or its own id if it has no near-duplicate. A search with `collapse` on the field shows one hit of "
    "each group."
)
@analysis.source_options
@analysis.output_options
def duplicates(files: tuple[str, ...], min_cosine: float, **options: Any) -> int:
    """Find groups of near-duplicates.

    The texts come from FILES, which are embedded first, or from an index, whose vectors are read. A group holds all
    texts that a chain of near-duplicates connects. The first text of each group is kept (of an index, the one with the
    lowest id); each other text is shown with its cosine to the kept one, which may be below --min-cosine in a chain.
    The largest groups come first; a terminal shows ten of them.

    All pairs are compared. For a large index, the engine's kNN search finds candidate pairs instead, which may miss
    some.

    Documents without text or vector are left out and counted. Nothing is written to the index without --write-field.

    Exit codes: 0 done, 1 some documents did not get their value of --write-field, 2 error, 130 interrupted.

    \b
    Examples:
      es-sbert duplicates tickets.jsonl --text-field title --id-field id
      es-sbert duplicates --index docs --min-cosine 0.98 -o duplicates.jsonl
      es-sbert duplicates --index docs --html duplicates.html
    """
    from es_sbert.analysis import duplicate_groups

    analysis.check_options(files, options)
    fields = [] if options["write_field"] is None else [options["write_field"]]
    with analysis.field_writer(options) as writer:
        begin = time.perf_counter()
        if _uses_knn(options):
            found = _search_by_knn(min_cosine, fields, options)
            texts, groups, compared = found.texts, found.groups, found.compared
            done = f"{compared:,}, found by kNN"
        else:
            texts = analysis.read_texts(files, options, fields)
            groups = duplicate_groups(texts.vectors, min_cosine, starts=texts.starts)
            compared = len(texts)
            done = f"{compared:,},"
        seconds = time.perf_counter() - begin
        analysis.write_output(_findings(groups, texts, min_cosine, compared), files, options)
        extra = pluralize(sum(len(group.members) - 1 for group in groups), "near-duplicate")
        log_message(f"{extra} of {pluralize(len(groups), 'text')} among {done} in {seconds:.1f} s")
        kept = {one: texts.ids[group.kept] for group in groups for one in group.members}
        return analysis.write_field_values(writer, texts, kept, options, own_ids=True)


def _uses_knn(options: dict[str, Any]) -> bool:
    """Whether to search for near-duplicates by kNN.

    Raises:
        UsageError: --num-candidates is given without an index.
        EngineError: the engine failed.
    """
    from es_sbert.analysis.duplicates import fits_memory
    from es_sbert.engines.retry import retry_for

    index, is_requested = options["index"], options["num_candidates"] is not None
    if index is None and is_requested:
        raise UsageError(
            "--num-candidates requires --index",
            "Load the files with `es-sbert ingest`, or leave --num-candidates out.",
        )
    if index is None or is_requested:
        return is_requested
    with open_engine(options) as engine:
        filter, retrying = options["filter"], retry_for(options["retry_seconds"])
        return not retrying(lambda: fits_memory(engine, index, options["vector_field"], filter))


def _search_by_knn(min_cosine: float, fields: Sequence[str], options: dict[str, Any]) -> DuplicateSearchResult:
    """Search for near-duplicates by the index's kNN, and log what was left out."""
    from es_sbert.analysis import search_duplicates

    with open_engine(options) as engine, analysis.progress_meter() as show:
        found = search_duplicates(
            options["index"],
            engine,
            min_cosine=min_cosine,
            fields=fields,
            on_progress=show,
            **select_options(options, ("vector_field", "filter", "num_candidates", "retry_seconds")),
        )
    for line in found.texts.skipped.lines():
        log_message(line)
    analysis.check_two_texts(found.compared, options)
    log_message("near-duplicates that kNN misses are not shown; a higher --num-candidates finds more")
    return found


def _findings(
    found: Sequence[DuplicateGroup], texts: TextCollection, min_cosine: float, compared: int
) -> analysis.Findings:
    from es_sbert.analysis.html_report import ReportGroup

    removable = sum(len(group.members) - 1 for group in found)
    facts = [
        ("removable texts", f"{removable:,} ({removable / compared:.0%})"),
        ("groups", f"{len(found):,}"), ("minimum cosine", f"{min_cosine:g}"),
    ]  # fmt: skip
    groups = [
        ReportGroup(str(number), group.members, group.cosines, group.kept) for number, group in enumerate(found, 1)
    ]
    shown = _SHOWN_IN_TERMINAL if sys.stdout.isatty() else None
    objects, lines = _json_objects(found, texts), _text_lines(found, texts, min_cosine, shown)
    return analysis.Findings("duplicates", "Near-duplicates", texts, groups, facts, objects, lines)


def _json_objects(groups: Sequence[DuplicateGroup], texts: TextCollection) -> Iterator[Json]:
    for number, group in enumerate(groups, 1):
        for member, cosine in zip(group.members, group.cosines, strict=True):
            ranked = {"group": number, "id": texts.ids[member], "cosine": cosine, "kept": member == group.kept}
            yield ranked | {"text": texts.texts[member]}


def _text_lines(
    groups: Sequence[DuplicateGroup], texts: TextCollection, min_cosine: float, shown: int | None
) -> Iterator[str]:
    """Format the groups as lines of text.

    Args:
        shown: Maximum number of groups, and of duplicates of each; None shows all.
    """
    for number, group in enumerate(groups[:shown], 1):
        # The tolerance is for rounding in float32.
        is_chain = min(group.cosines) < min_cosine - 1e-5
        chain = f", lowest cosine {min(group.cosines):.5f} (a chain)" if is_chain else ""
        yield f"group {number}: {pluralize(len(group.members), 'text')}{chain}"
        yield f"  kept     {analysis.text_excerpt(texts, group.kept)}"
        others = [pair for pair in zip(group.members, group.cosines, strict=True) if pair[0] != group.kept]
        for member, cosine in others[:shown]:
            yield f"  {cosine:.5f}  {analysis.text_excerpt(texts, member)}"
        if shown is not None and len(others) > shown:
            yield f"  … and {pluralize(len(others) - shown, 'more text')}"
    if shown is not None and len(groups) > shown:
        yield f"… and {pluralize(len(groups) - shown, 'more group')}: -o FILE writes all, --html FILE shows them"
