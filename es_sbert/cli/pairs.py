"""`es-sbert pairs`: find the most similar pairs of texts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.analysis.similarity import most_similar_pairs
from es_sbert.cli import analysis
from es_sbert.cli.options import setting_option
from es_sbert.messages import log_message, pluralize

if TYPE_CHECKING:
    from es_sbert.analysis.html_report import ReportGroup
    from es_sbert.analysis.similarity import SimilarPair
    from es_sbert.analysis.text_collection import TextCollection
    from es_sbert.engines.rest import Json


@cloup.command()
@click.argument("files", nargs=-1)
@option_group(
    "Options",
    setting_option(most_similar_pairs, "k -k", help="Maximum number of pairs to print."),
    setting_option(most_similar_pairs, "min_cosine", show_default=False),
)
@analysis.source_options
@analysis.output_options
def pairs(files: tuple[str, ...], k: int, min_cosine: float, **options: Any) -> None:
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
    """
    analysis.check_options(files, options)
    texts = analysis.read_texts(files, options)
    begin = time.perf_counter()
    found = most_similar_pairs(texts.vectors, k, min_cosine=min_cosine, starts=texts.starts)
    seconds = time.perf_counter() - begin
    groups = _different_pairs(found, texts)
    facts = [("pairs", f"{len(found):,}")]
    facts += [("of different texts", f"{len(groups):,}")] if len(groups) < len(found) else []
    objects, lines = _json_objects(found, texts), _text_lines(found, texts)
    findings = analysis.Findings("pairs", "Most similar pairs", texts, groups, facts, objects, lines)
    analysis.write_output(findings, files, options)
    log_message(f"{pluralize(len(found), 'pair')} of {pluralize(len(texts), 'text')}, compared in {seconds:.1f} s")


def _different_pairs(found: Sequence[SimilarPair], texts: TextCollection) -> list[ReportGroup]:
    """Group the pairs of identical texts: a page shows each of these groups once."""
    from es_sbert.analysis.html_report import ReportGroup

    folded: dict[frozenset[str | int], tuple[dict[int, None], float]] = {}
    for pair in found:
        # Texts that are not known are not identical.
        key = frozenset(texts.texts[each] or each for each in pair[:2])
        members, _ = folded.setdefault(key, ({}, pair.cosine))
        members |= dict.fromkeys(pair[:2])
    return [
        ReportGroup(str(number), tuple(members), (cosine,) * len(members))
        for number, (members, cosine) in enumerate(folded.values(), 1)
    ]


def _json_objects(found: Sequence[SimilarPair], texts: TextCollection) -> Iterator[Json]:
    for pair in found:
        one, two = ({"id": texts.ids[each], "text": texts.texts[each]} for each in (pair.first, pair.second))
        yield {"cosine": pair.cosine, "first": one, "second": two}


def _text_lines(found: Sequence[SimilarPair], texts: TextCollection) -> Iterator[str]:
    for pair in found:
        yield f"{pair.cosine:.5f}"
        yield f"  {analysis.text_excerpt(texts, pair.first)}"
        yield f"  {analysis.text_excerpt(texts, pair.second)}"
