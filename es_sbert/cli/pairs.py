"""`es-sbert pairs`: find the most similar pairs of texts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import cloup
from cloup import option_group

from es_sbert.cli import analysis_input, analysis_output
from es_sbert.cli.options import FiniteFloatRange
from es_sbert.errors import SourceError, UsageError
from es_sbert.messages import escape_unprintable, log_message, pluralize

if TYPE_CHECKING:
    from es_sbert.analysis import TextCollection
    from es_sbert.engines.rest import Json


class _ScoredPair(NamedTuple):
    """A pair as printed."""

    first: int
    second: int
    cosine: float
    margin: float | None


@cloup.command()
@click.argument("files", nargs=-1)
@option_group(
    "Options",
    click.option(
        "--between",
        nargs=2,
        metavar="FILE FILE",
        help="Align two collections, such as translations: each text is in one pair at most, ranked by margin.",
    ),
    click.option(
        "-k",
        "k",
        type=click.IntRange(min=1),
        help="Maximum number of pairs to print.  [default: 100; all with --between]",
    ),
    click.option(
        "--min-cosine",
        type=FiniteFloatRange(-1, 1),
        default=-1.0,
        show_default=False,
        help="Drop pairs whose cosine is below this value.",
    ),
    click.option(
        "--min-margin",
        type=FiniteFloatRange(0),
        help="With --between: drop pairs whose margin is below this value.  [default: 0]",
    ),
    click.option(
        "--neighbors",
        type=click.IntRange(min=1),
        help="With --between: number of nearest neighbors used to compute the margin.  [default: 4]",
    ),
)
@analysis_input.source_options
@analysis_output.output_options
def pairs(
    files: tuple[str, ...], between: tuple[str, str] | None, k: int | None, min_cosine: float, **options: Any
) -> None:
    """Find the most similar pairs of texts.

    The texts come from FILES, which are embedded first, or from an index, whose vectors are read. All pairs are
    compared: the result is exact. Cosines are rounded to five decimals, and pairs with equal cosines are ordered by
    the position of their first, then of their second text. A document that is split into chunks counts once, by its
    most similar chunks.

    Documents without text or vector are left out and counted.

    \b
    Examples:
      es-sbert pairs tickets.jsonl --text-field title --id-field id
      es-sbert pairs --index docs --min-cosine 0.9 -k 1000 --json
      es-sbert pairs --index docs --html pairs.html
      es-sbert pairs --between english.txt french.txt --min-margin 1.05 -o aligned.jsonl
    """
    from es_sbert.analysis import margin_pairs, most_similar_pairs
    from es_sbert.analysis.similarity import DEFAULT_K

    index = options["index"]
    sources = [bool(files), index is not None, between is not None]
    if sum(sources) != 1:
        raise UsageError(
            "exactly one of FILES, --index and --between is required, but "
            f"{'none of them is' if not any(sources) else 'more than one of them is'} given",
            "Use one of them, e.g. `es-sbert pairs sentences.txt`.",
        )
    limits = {name: options[name] for name in ("min_margin", "neighbors") if options[name] is not None}
    if between is None and limits:
        raise UsageError("--min-margin and --neighbors require --between", "Add --between FILE FILE.")
    analysis_output.check_output_files(options)
    inputs = [files] if between is None else [[file] for file in between]
    collections = analysis_input.read_text_collections(inputs, options)
    first, second = collections[0], collections[-1]
    begin = time.perf_counter()
    if between is None:
        analysis_input.check_two_texts(len(first))
        similar = most_similar_pairs(first.vectors, k or DEFAULT_K, min_cosine=min_cosine, starts=first.starts)
        found = [_ScoredPair(*pair, None) for pair in similar]
        compared = pluralize(len(first), "text")
    else:
        for name, collection in zip(between, collections, strict=True):
            if not len(collection):
                raise SourceError(f"{escape_unprintable(name)} contains no text", "Both files must contain text.")
        aligned = margin_pairs(first.vectors, second.vectors, k, min_cosine=min_cosine, **limits)
        found = [_ScoredPair(pair.first, pair.second, pair.cosine, pair.margin) for pair in aligned]
        compared = f"{len(first):,} and {pluralize(len(second), 'text')}"
    seconds = time.perf_counter() - begin
    source = " and ".join(between) if between else analysis_output.describe_source(files, index)
    page = partial(_html_page, found, collections, source)
    analysis_output.write_output(_json_objects(found, first, second), _text_lines(found, first, second), page, options)
    log_message(f"{pluralize(len(found), 'pair')} of {compared}, compared in {seconds:.1f} s")


def _html_page(found: Sequence[_ScoredPair], collections: Sequence[TextCollection], source: str) -> bytes:
    from es_sbert.analysis.html_report import ReportGroup, ReportKind
    from es_sbert.analysis.text_collection import concatenate_collections

    shift = len(collections[0]) if len(collections) > 1 else 0
    groups = [
        ReportGroup(
            str(number) if pair.margin is None else f"Pair {number}, margin {pair.margin:.5f}",
            (pair.first, pair.second + shift),
            (pair.cosine,) * 2,
        )
        for number, pair in enumerate(found, 1)
    ]
    facts = [("pairs", f"{len(found):,}")]
    texts = concatenate_collections(collections)
    return analysis_output.report_page(ReportKind.PAIRS, f"Most similar pairs of {source}", texts, groups, facts)


def _json_objects(found: Sequence[_ScoredPair], first: TextCollection, second: TextCollection) -> Iterator[Json]:
    for pair in found:
        scores = {"cosine": pair.cosine} | ({} if pair.margin is None else {"margin": pair.margin})
        one = {"id": first.ids[pair.first], "text": first.texts[pair.first]}
        two = {"id": second.ids[pair.second], "text": second.texts[pair.second]}
        yield scores | {"first": one, "second": two}


def _text_lines(found: Sequence[_ScoredPair], first: TextCollection, second: TextCollection) -> Iterator[str]:
    for pair in found:
        yield f"{pair.cosine:.5f}" + ("" if pair.margin is None else f"  margin {pair.margin:.5f}")
        yield f"  {analysis_output.text_excerpt(first, pair.first)}"
        yield f"  {analysis_output.text_excerpt(second, pair.second)}"
