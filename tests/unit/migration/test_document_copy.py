"""Ranges of sequence numbers in which something is gone: found by counts alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from es_sbert.migration.document_copy import CountSeqNoRanges, SeqNoRange, changed_ranges


def counted(numbers: set[int], asked: list[int] | None = None) -> CountSeqNoRanges:
    ordered = sorted(numbers)

    def count(ranges: Sequence[SeqNoRange]) -> list[int]:
        if asked is not None:
            asked.append(len(ranges))
        return [bisect_right(ordered, high) - bisect_right(ordered, low) for low, high in ranges]

    return count


@given(st.sets(st.integers(0, 5000), max_size=300), st.data())
def test_every_deleted_number_is_in_a_changed_range(before: set[int], data: st.DataObject) -> None:
    now = data.draw(st.sets(st.sampled_from(sorted(before)))) if before else set()
    up_to = data.draw(st.integers(-1, 5000))
    found = changed_ranges(up_to, counted(before), counted(now))
    covered = {number for number in before if any(low < number <= high for low, high in found)}
    gone = {number for number in before - now if number <= up_to}
    assert gone <= covered
    assert all(number <= up_to for number in covered)
    # No range is there for nothing, and none holds many that are still there.
    assert all(any(low < number <= high for number in gone) for low, high in found)
    assert len(covered - gone) <= 16 * len(found)


def test_few_changes_need_few_counts() -> None:
    asked: list[int] = []
    before = set(range(200_000))
    ranges = changed_ranges(199_999, counted(before, asked), counted(before - {7, 150_000}))
    assert len(ranges) == 2
    assert sum(asked) < 200
