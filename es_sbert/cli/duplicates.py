"""`es-sbert duplicates`: find groups of near-duplicates."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import analysis_input, analysis_output
from es_sbert.cli.interrupts import EXIT_INTERRUPTED
from es_sbert.cli.options import OUTPUT_FILE_TYPE, FiniteFloatRange, open_engine
from es_sbert.errors import UsageError
from es_sbert.messages import be, log_message, pluralize

if TYPE_CHECKING:
    from es_sbert.analysis import DuplicateGroup, TextCollection
    from es_sbert.analysis.duplicates import DuplicateRecall, DuplicateSearchResult, DuplicateSearchSettings
    from es_sbert.engines.rest import Json


_SHOWN_IN_TERMINAL = 10  # groups, and duplicates of each

_KNN_OPTIONS = {
    "neighbors": "--neighbors",
    "num_candidates": "--num-candidates",
    "sample": "--recall-sample",
    "state": "--state",
}


@cloup.command()
@click.argument("files", nargs=-1)
@option_group(
    "Options",
    click.option(
        "--min-cosine",
        type=FiniteFloatRange(-1, 1),
        default=0.95,
        help="Texts with at least this cosine are near-duplicates.",
    ),
    click.option(
        "--keep",
        type=click.Choice(["first", "longest", "newest"]),
        default="first",
        help="Text of a group to keep: the first of the files (of an index, the lowest id), the longest, or the newest "
        "by --date-field. Ties go to the first.",
    ),
    click.option("--date-field", metavar="FIELD", help="With --keep newest: field of the date."),
    click.option(
        "--method",
        type=click.Choice(["auto", "exact", "knn"]),
        default="auto",
        help="exact: compare all pairs in memory. knn: search the index for the neighbors of each document, and "
        "measure the recall. auto: exact for files, and for indices with up to 1 GiB of vectors (700,000 of 384 "
        "dimensions).",
    ),
    click.option(
        "--neighbors",
        type=click.IntRange(1, 9_999),
        help="knn: number of nearest neighbors of each search; more if all of them are near-duplicates.  [default: 20]",
    ),
    click.option(
        "--num-candidates",
        type=click.IntRange(2, 10_000),
        help="knn: candidates per shard in a search; higher is slower and finds more.  [default: 100]",
    ),
    click.option(
        "--recall-sample",
        "sample",
        type=click.IntRange(0, 10_000),
        help="knn: random documents that are compared with all others to measure the recall.  [default: 1000]",
    ),
    click.option(
        "--state",
        type=OUTPUT_FILE_TYPE,
        help="knn: file from which a search that was stopped or killed resumes; deleted once all is done.  "
        "[default: INDEX.duplicates.state]",
    ),
)
@analysis_output.write_field_options(
    click.option(
        "--write-field",
        metavar="FIELD",
        help="With --index: write the group of each document into this keyword field (e.g. duplicate_group): the id of "
        "the kept document, or its own id if it has no near-duplicate. A search with `collapse` on the field shows one "
        "hit of each group.",
    ),
    click.option(
        "--mark-duplicates",
        metavar="FIELD",
        help="With --index: write the id of the kept document into this keyword field (e.g. duplicate_of) of its "
        "duplicates, so that a filter can leave them out; remove the field from all other documents.",
    ),
)
@analysis_input.source_options
@analysis_output.output_options
def duplicates(
    files: tuple[str, ...], min_cosine: float, keep: str, date_field: str | None, method: str, **options: Any
) -> int:
    """Find groups of near-duplicates.

    The texts come from FILES, which are embedded first, or from an index, whose vectors are read. A group holds all
    texts that a chain of near-duplicates connects. One text of each group is kept; each other text is shown with its
    cosine to the kept one, which may be below --min-cosine in a chain. The largest groups come first; a terminal shows
    ten of them.

    All pairs are compared. For a large index, the engine's kNN search finds candidate pairs instead; the command then
    reports the estimated recall, and resumes if you run it again after an interruption.

    Documents without text or vector are left out and counted. Nothing is written to the index without --write-field
    or --mark-duplicates.

    Exit codes: 0 done, 1 some documents did not get their value of a field, 2 error, 130 interrupted.

    \b
    Examples:
      es-sbert duplicates tickets.jsonl --text-field title --id-field id
      es-sbert duplicates --index docs --min-cosine 0.98 --keep longest -o duplicates.jsonl
      es-sbert duplicates --index docs --html duplicates.html
      es-sbert duplicates --index docs --keep newest --date-field created_at --html copies.html
    """
    from es_sbert.analysis import duplicate_groups
    from es_sbert.analysis.duplicates import DuplicateSearchSettings, KeepPolicy, keep_priorities
    from es_sbert.filesystem import safe_file_name

    index, dry_run = options["index"], options["dry_run"]
    written = [options[name] for name in ("write_field", "mark_duplicates") if options[name] is not None]
    _check_options(files, index, keep, date_field, written)
    analysis_output.check_output_files(options)
    filter = analysis_input.read_filter(options)
    fields = written if date_field is None else [date_field, *written]
    knn = {name: options[name] for name in _KNN_OPTIONS if options[name] is not None}

    def priority(texts: TextCollection) -> list[float] | None:
        return keep_priorities(texts, KeepPolicy(keep), date_field)

    with analysis_output.field_writers(options, "write_field", "mark_duplicates") as writers:
        begin = time.perf_counter()
        if _uses_knn(method, options):
            path = knn.pop("state", None) or Path(f"{safe_file_name(index)}.duplicates.state")
            search_settings = DuplicateSearchSettings(min_cosine, filter, **knn)
            found = _search_by_knn(path, search_settings, fields, priority, options)
            if found is None:
                return EXIT_INTERRUPTED
            analysis_input.check_two_texts(found.compared)
            texts, groups = found.texts, found.groups
            for line in _knn_lines(found):
                log_message(line)
            done = f"{found.compared:,}, found by kNN"
        else:
            _refuse_knn_options(knn)
            path = None
            texts = analysis_input.read_texts(files, options, fields)
            analysis_input.check_two_texts(len(texts))
            groups = duplicate_groups(texts.vectors, min_cosine, starts=texts.starts, priority=priority(texts))
            done = f"{len(texts):,},"
        seconds = time.perf_counter() - begin
        page = partial(_html_page, texts, groups, analysis_output.describe_source(files, index), min_cosine, keep)
        shown = _SHOWN_IN_TERMINAL if sys.stdout.isatty() else None
        lines = _text_lines(groups, texts, min_cosine, shown)
        analysis_output.write_output(_json_objects(groups, texts), lines, page, options)
        extra = pluralize(sum(len(group.members) - 1 for group in groups), "near-duplicate")
        log_message(f"{extra} of {pluralize(len(groups), 'text')} among {done} in {seconds:.1f} s")
        if (chains := _chains_line(groups, min_cosine)) is not None:
            log_message(chains)
        kept = {one: texts.ids[group.kept] for group in groups for one in group.members}
        duplicates_alone = {one: kept[one] for group in groups for one in group.members if one != group.kept}
        code = 0
        for name, writer in writers.items():
            own_ids = name == "write_field"
            values = kept if own_ids else duplicates_alone
            code |= analysis_output.write_field_values(writer, texts, values, filter, own_ids=own_ids, dry_run=dry_run)
        if path is not None and dry_run:
            log_message(f"the search is kept in {path}: the same command without --dry-run writes its result")
        elif path is not None and code == 0:
            path.unlink(missing_ok=True)
    return code


def _check_options(
    files: Sequence[str], index: str | None, keep: str, date_field: str | None, written: Sequence[str]
) -> None:
    analysis_input.check_files_or_index(files, index)
    if date_field in written:
        raise UsageError(f"--date-field {date_field} cannot also be a field to write", "Write to a different field.")
    if (keep == "newest") != (date_field is not None):
        remedy = "Use both, e.g. --keep newest --date-field created_at."
        raise UsageError("--keep newest and --date-field require each other", remedy)


def _refuse_knn_options(knn_options: dict[str, Any]) -> None:
    if knn_options:
        names = " and ".join(_KNN_OPTIONS[name] for name in knn_options)
        raise UsageError(
            f"{names} {'is' if len(knn_options) == 1 else 'are'} only valid with kNN, but all pairs are compared",
            "Add --method knn, or leave out the options for kNN.",
        )


def _uses_knn(method: str, options: dict[str, Any]) -> bool:
    """Whether to search for near-duplicates by kNN."""
    from es_sbert.analysis.duplicate_search import fits_memory

    index = options["index"]
    if index is None:
        if method == "knn":
            raise UsageError(
                "--method knn requires --index", "Load the files with `es-sbert ingest`, or leave --method out."
            )
        return False
    analysis_input.check_source_options(options)
    if method != "auto":
        return method == "knn"
    with open_engine(options) as engine:
        filter, retrying = analysis_input.read_filter(options), analysis_input.engine_retrier(options)
        return not retrying(lambda: fits_memory(engine, index, options["vector_field"], filter))


def _search_by_knn(
    path: Path,
    search_settings: DuplicateSearchSettings,
    fields: Sequence[str],
    priority: Callable[[TextCollection], list[float] | None],
    options: dict[str, Any],
) -> DuplicateSearchResult | None:
    """Search for near-duplicates by the index's kNN; None if the user stopped the search."""
    from es_sbert.analysis.duplicate_search import DuplicateSearch
    from es_sbert.analysis.duplicates import DuplicateSearchState
    from es_sbert.engines.retry import RetryPolicy
    from es_sbert.index.mapping import IndexType

    if options["distinct"]:
        raise UsageError("--distinct cannot be combined with a search by kNN", "Leave --distinct out.")
    index, policy = options["index"], RetryPolicy(options["retry_seconds"])
    on_wait = analysis_input.log_wait
    with ExitStack() as stack:
        engine = stack.enter_context(open_engine(options))
        search = DuplicateSearch(
            engine, index, options["vector_field"], search_settings, policy=policy, on_wait=on_wait
        )
        if search.index_type is IndexType.FLAT:
            log_message(f"{index} has the index type flat: each search compares all vectors")
        candidates = stack.enter_context(DuplicateSearchState(path, search.identity))
        if candidates.resumed:
            log_message(
                f"resumed from {path}: {pluralize(candidates.compared, 'document')} "
                f"{be(candidates.compared, past=True)} compared already"
            )
        try:
            with analysis_input.progress_meter(candidates.compared) as show:
                return search.run(candidates, fields=fields, priority=priority, on_progress=show)
        except KeyboardInterrupt:
            done = pluralize(candidates.compared, "document")
            log_message(f"Interrupted after {done}; run the same command again to resume ({path}).")
            return None


def _knn_lines(found: DuplicateSearchResult) -> Iterator[str]:
    yield from found.texts.skipped.lines()
    if found.unread:
        yield (
            f"{pluralize(found.unread, 'document')} written while the search ended {be(found.unread)} not compared: "
            "run the command again when no documents are being written"
        )
    yield _recall_line(found.recall)


def _recall_line(recall: DuplicateRecall) -> str:
    from es_sbert.confidence_interval import mean_confidence_interval

    if not recall.sampled:
        return "the recall was not measured: --recall-sample is 0"
    if not recall.pairs:
        return (
            f"the recall cannot be estimated: none of {pluralize(recall.sampled, 'random document')} has a "
            "near-duplicate; "
            "a larger --recall-sample may find some"
        )
    # Compute the interval over documents: near-duplicates of one document are found or missed together.
    estimate = mean_confidence_interval(recall.shares, 1)
    return (
        f"recall {estimate.mean:.1%} ({estimate.low:.1%} to {estimate.high:.1%} with 95 % confidence): "
        f"{recall.found:,} of {recall.pairs:,} near-duplicates of "
        f"{pluralize(recall.sampled, 'random document')}, found exactly, "
        "are in the same group" + ("" if recall.found == recall.pairs else "; a higher --num-candidates finds more")
    )


def _html_page(
    texts: TextCollection, found: Sequence[DuplicateGroup], source: str, min_cosine: float, keep: str
) -> bytes:
    from es_sbert.analysis.html_report import ReportGroup, ReportKind

    facts = [
        ("near-duplicates", f"{sum(len(group.members) - 1 for group in found):,}"),
        ("groups", f"{len(found):,}"), ("minimum cosine", f"{min_cosine:g}"), ("kept", keep),
    ]  # fmt: skip
    groups = [
        ReportGroup(str(number), group.members, group.cosines, group.kept) for number, group in enumerate(found, 1)
    ]
    return analysis_output.report_page(ReportKind.DUPLICATES, f"Near-duplicates of {source}", texts, groups, facts)


def _json_objects(groups: Sequence[DuplicateGroup], texts: TextCollection) -> Iterator[Json]:
    for number, group in enumerate(groups, 1):
        for member, cosine in zip(group.members, group.cosines, strict=True):
            ranked = {"group": number, "id": texts.ids[member], "cosine": cosine, "kept": member == group.kept}
            yield ranked | {"text": texts.texts[member]}


def _is_chain(group: DuplicateGroup, min_cosine: float) -> bool:
    """Whether a member is not a near-duplicate of the kept text, with a tolerance for rounding in float32."""
    return min(group.cosines) < min_cosine - 1e-5


def _chains_line(groups: Sequence[DuplicateGroup], min_cosine: float) -> str | None:
    """Explain why texts of a group are less similar than the threshold; None if none are."""
    chains = [group for group in groups if _is_chain(group, min_cosine)]
    if not chains:
        return None
    lowest = min(min(group.cosines) for group in chains)
    return (
        f"{pluralize(len(chains), 'group')} with cosines below --min-cosine {min_cosine:g} (the lowest: {lowest:.5f}): "
        "each text is a near-duplicate of another one of its group, but not of the kept one. A higher --min-cosine "
        "splits such groups."
    )


def _text_lines(
    groups: Sequence[DuplicateGroup], texts: TextCollection, min_cosine: float, shown: int | None
) -> Iterator[str]:
    """Format the groups as lines of text.

    Args:
        shown: Maximum number of groups, and of duplicates of each; None shows all.
    """
    for number, group in enumerate(groups[:shown], 1):
        chain = f", lowest cosine {min(group.cosines):.5f} (a chain)" if _is_chain(group, min_cosine) else ""
        yield f"group {number}: {pluralize(len(group.members), 'text')}{chain}"
        yield f"  kept     {analysis_output.text_excerpt(texts, group.kept)}"
        others = [pair for pair in zip(group.members, group.cosines, strict=True) if pair[0] != group.kept]
        for member, cosine in others[:shown]:
            yield f"  {cosine:.5f}  {analysis_output.text_excerpt(texts, member)}"
        if shown is not None and len(others) > shown:
            yield f"  … and {pluralize(len(others) - shown, 'more text')}"
    if shown is not None and len(groups) > shown:
        yield f"… and {pluralize(len(groups) - shown, 'more group')}: -o FILE writes all, --html FILE shows them"
