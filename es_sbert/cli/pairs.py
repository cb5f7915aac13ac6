"""`es-sbert pairs`: find the most similar pairs of texts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import cloup
from cloup import option_group

from es_sbert.cli.analysis_input import check_two_texts, read_text_collections, source_options
from es_sbert.cli.analysis_output import (
    check_output_files,
    describe_source,
    output_options,
    pairs_page,
    text_excerpt,
    write_output,
)
from es_sbert.cli.options import FiniteFloatRange
from es_sbert.errors import SourceError, UsageError
from es_sbert.messages import escape_unprintable, log_message

if TYPE_CHECKING:
    from es_sbert.analysis import TextCollection
    from es_sbert.engines.protocol import Json


class _ScoredPair(NamedTuple):
    """A pair, as it is printed."""

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
        "-k", "k", type=click.IntRange(min=1), help="Most pairs to print.  [default: 100; all with --between]"
    ),
    click.option(
        "--min-cosine", type=FiniteFloatRange(-1, 1), default=-1.0, help="Drop pairs whose cosine is below this value."
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
@source_options
@output_options
def pairs(
    files: tuple[str, ...],
    index: str | None,
    between: tuple[str, str] | None,
    k: int | None,
    min_cosine: float,
    min_margin: float | None,
    neighbors: int | None,
    as_json: bool,
    output: Path | None,
    html: Path | None,
    **reading: Any,
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
    given = [bool(files), index is not None, between is not None]
    if sum(given) != 1:
        raise UsageError(
            "texts come from FILES, from --index or from --between, and "
            f"{'none of them is' if not any(given) else 'more than one of them is'} given",
            "Name one of them, e.g. `es-sbert pairs sentences.txt`.",
        )
    if between is None and (min_margin is not None or neighbors is not None):
        raise UsageError("a margin is measured between two collections", "Add --between FILE FILE.")
    check_output_files(output, html)
    collections = read_text_collections(
        [files] if between is None else [[one] for one in between], index=index, **reading
    )
    first, second = collections[0], collections[-1]
    begin = time.perf_counter()
    if between is None:
        found = _find_similar(first, k, min_cosine)
        compared = f"{len(first):,} texts"
    else:
        for name, collection in zip(between, collections, strict=True):
            if not len(collection):
                raise SourceError(f"{escape_unprintable(name)} holds no text", "Give two files with texts.")
        found = _align(first, second, k, min_cosine, min_margin or 0.0, neighbors)
        compared = f"{len(first):,} and {len(second):,} texts"
    seconds = time.perf_counter() - begin
    page = partial(_html_page, found, collections, " and ".join(between) if between else describe_source(files, index))
    write_output(
        _json_objects(found, first, second),
        _text_lines(found, first, second),
        output,
        as_json=as_json,
        html=html,
        report=page,
    )
    log_message(f"{len(found):,} pairs of {compared}, compared in {seconds:.1f} s")


def _find_similar(texts: TextCollection, k: int | None, min_cosine: float) -> list[_ScoredPair]:
    from es_sbert.analysis import most_similar_pairs
    from es_sbert.analysis.similarity import DEFAULT_K

    check_two_texts(len(texts))
    pairs = most_similar_pairs(texts.vectors, k or DEFAULT_K, min_cosine=min_cosine, starts=texts.starts)
    return [_ScoredPair(*pair, None) for pair in pairs]


def _align(
    first: TextCollection,
    second: TextCollection,
    k: int | None,
    min_cosine: float,
    min_margin: float,
    neighbors: int | None,
) -> list[_ScoredPair]:
    from es_sbert.analysis import margin_pairs
    from es_sbert.analysis.similarity import DEFAULT_MARGIN_NEIGHBORS

    pairs = margin_pairs(
        first.vectors,
        second.vectors,
        k,
        neighbors=neighbors or DEFAULT_MARGIN_NEIGHBORS,
        min_cosine=min_cosine,
        min_margin=min_margin,
    )
    return [_ScoredPair(pair.first, pair.second, pair.cosine, pair.margin) for pair in pairs]


def _html_page(found: Sequence[_ScoredPair], collections: Sequence[TextCollection], source: str) -> list[bytes]:
    from es_sbert.analysis.text_collection import concatenate_collections

    shift = len(collections[0]) if len(collections) > 1 else 0
    pairs = [(pair.first, pair.second + shift, pair.cosine, pair.margin) for pair in found]
    return [pairs_page(concatenate_collections(collections), pairs, source, [("pairs", f"{len(pairs):,}")])]


def _json_objects(found: Sequence[_ScoredPair], first: TextCollection, second: TextCollection) -> Iterator[Json]:
    for pair in found:
        scores = {"cosine": pair.cosine} | ({} if pair.margin is None else {"margin": pair.margin})
        yield {
            **scores,
            "first": {"id": first.ids[pair.first], "text": first.texts[pair.first]},
            "second": {"id": second.ids[pair.second], "text": second.texts[pair.second]},
        }


def _text_lines(found: Sequence[_ScoredPair], first: TextCollection, second: TextCollection) -> Iterator[str]:
    for pair in found:
        yield f"{pair.cosine:.5f}" + ("" if pair.margin is None else f"  margin {pair.margin:.5f}")
        yield f"  {text_excerpt(first, pair.first)}"
        yield f"  {text_excerpt(second, pair.second)}"
