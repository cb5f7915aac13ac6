"""The versions that a load has written, compared with those of the index."""

from __future__ import annotations

import pytest

from es_sbert.engines.engine import DocumentKey
from es_sbert.ingest.ledger import Version, VersionComparison, VersionMatch, WrittenVersions, pack_versions
from es_sbert.ingest.reconcile import Primaries

EARLIER, SAME, LATER, UNKNOWN = VersionMatch.EARLIER, VersionMatch.SAME, VersionMatch.LATER, VersionMatch.UNKNOWN


def written(*documents: tuple[DocumentKey, Version]) -> VersionComparison:
    versions = WrittenVersions()
    for document in documents:
        versions.add(pack_versions([document]), 1)
    return VersionComparison(versions.packed())


def key(document_id: str, routing: str | None = None) -> DocumentKey:
    return document_id, routing


@pytest.mark.parametrize(
    ("found", "match"),
    [
        ((7, 2), SAME),
        ((8, 2), LATER),
        ((6, 2), EARLIER),
        ((3, 1), EARLIER),
        # A new primary gives the numbers of lost writes again.
        ((5, 3), LATER),
        ((9, 1), EARLIER),
        ((1 << 43, 1), EARLIER),
    ],
)
def test_terms_are_compared_before_sequence_numbers(found: Version, match: VersionMatch) -> None:
    assert written((key("a"), (7, 2))).compare(pack_versions([(key("a"), found)])) == [match]


def test_documents_are_told_apart_by_id_and_routing() -> None:
    comparison = written((key("a"), (1, 1)), (key("a", "r"), (2, 1)), (key("ü"), (3, 1)))
    found = pack_versions([(key("a", "r"), (2, 1)), (key("a", "s"), (2, 1)), (key("a"), (2, 1)), (key("b"), (1, 1))])
    assert comparison.compare(found) == [SAME, UNKNOWN, LATER, UNKNOWN]
    assert comparison.absent_terms == {1: 1}
    assert written().compare(found) == [UNKNOWN] * 4


def test_last_write_of_a_document_counts() -> None:
    comparison = written((key("a"), (1, 1)), (key("b"), (2, 1)), (key("a"), (3, 1)))
    assert comparison.compare(pack_versions([(key("a"), (1, 1)), (key("b"), (2, 1))])) == [EARLIER, SAME]


def test_absent_documents_are_counted_by_term() -> None:
    comparison = written((key("a"), (1, 1)), (key("b"), (2, 1)), (key("c"), (3, 2)), (key("d"), (4, 2)))
    assert comparison.absent_terms == {1: 2, 2: 2}
    comparison.compare(pack_versions([(key("a"), (1, 1)), (key("d"), (9, 2)), (key("c"), (1, 1))]))
    assert comparison.absent_terms == {1: 1}


@pytest.mark.parametrize(
    ("start", "now", "retried", "unchanged", "lost"),
    [
        ({0: 1, 1: 4}, {0: 1, 1: 4}, True, True, set()),
        ({0: 1, 1: 4}, {0: 2, 1: 4}, False, False, {1}),
        ({0: 1, 1: 4}, {0: 1, 1: 6}, False, False, {1, 2, 3, 4, 5}),  # which shard holds it is not known
        (None, {0: 1}, False, True, set()),
        (None, {0: 1}, True, False, {1, 2, 3, 4, 5, 6}),
    ],
)
def test_only_writes_of_an_earlier_primary_may_be_lost(
    start: dict[int, int] | None, now: dict[int, int], retried: bool, unchanged: bool, lost: set[int]
) -> None:
    primaries = Primaries(start, now, may_have_failed=retried)
    assert primaries.are_unchanged is unchanged
    assert {term for term in range(1, 7) if primaries.may_have_lost(term)} == lost
