"""The page that `pairs`, `duplicates` and `cluster` write with --html."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from es_sbert import __version__

if TYPE_CHECKING:
    from es_sbert.analysis import Clustering, DuplicateGroup, TextCollection
    from es_sbert.analysis.report import ReportGroup, ReportKind

Facts = Sequence[tuple[str, str]]


def pairs_page(texts: TextCollection, pairs: Sequence[tuple[int, int, float, float | None]], source: str,
               facts: Facts) -> bytes:  # fmt: skip
    """The page of `pairs`.

    Args:
        texts: All texts; of two collections, one after the other.
        pairs: First and second position, cosine, and the margin where there is one.
        source: Where the texts come from.
        facts: What was asked for.
    """
    from es_sbert.analysis.report import ReportGroup, ReportKind

    groups = [
        ReportGroup(
            str(number) if margin is None else f"Pair {number}, margin {margin:.5f}", (first, second), (cosine,) * 2
        )
        for number, (first, second, cosine, margin) in enumerate(pairs, 1)
    ]
    return _page(ReportKind.PAIRS, f"Most similar pairs of {source}", texts, groups, facts)


def duplicates_page(texts: TextCollection, found: Sequence[DuplicateGroup], source: str, facts: Facts) -> bytes:
    """The page of `duplicates`; see `pairs_page`."""
    from es_sbert.analysis.report import ReportGroup, ReportKind

    groups = [
        ReportGroup(str(number), group.members, group.cosines, group.kept) for number, group in enumerate(found, 1)
    ]
    return _page(ReportKind.DUPLICATES, f"Near-duplicates of {source}", texts, groups, facts)


def clusters_page(texts: TextCollection, found: Clustering, names: Sequence[str], source: str, facts: Facts) -> bytes:
    """The page of `cluster`; see `pairs_page`."""
    from es_sbert.analysis.report import ReportGroup, ReportKind

    groups = [
        ReportGroup(name, cluster.members, cluster.cosines)
        for name, cluster in zip(names, found.clusters, strict=True)
    ]  # fmt: skip
    return _page(ReportKind.CLUSTERS, f"Clusters of {source}", texts, groups, facts)


def source_name(files: Sequence[str], index: str | None) -> str:
    """Where texts come from, in a few words."""
    if index is not None:
        return index
    return files[0] if len(files) == 1 else f"{len(files):,} files"


def _page(kind: ReportKind, title: str, texts: TextCollection, groups: Sequence[ReportGroup], facts: Facts) -> bytes:
    from es_sbert.analysis.report import Report, map_points, report_bytes

    points, projection = map_points(texts.vectors, texts.starts)
    report = Report(
        kind, title, list(_facts(texts, facts)), texts.ids, texts.texts, groups, points, projection
    )  # fmt: skip
    return report_bytes(report)


def _facts(texts: TextCollection, facts: Facts) -> Iterator[tuple[str, str]]:
    yield "texts", f"{len(texts):,}"
    yield "model", texts.model
    yield from facts
    left_out = sum(texts.skipped.counts.values())
    if left_out:
        yield "left out", f"{left_out:,}"
    yield "made by", f"es-sbert {__version__}"
