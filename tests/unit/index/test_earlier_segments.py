"""Which share of the documents is in the present index type, by the segments that were noted."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from es_sbert.engines.index_state import Segment, ShardCopy
from es_sbert.index.earlier_segments import EarlierSegments, are_rewritten, present_share
from es_sbert.index.mapping import EARLIER_SEGMENTS, VectorFieldMeta, merge_field_meta


def copy(node: str, *segments: tuple[int, int, int]) -> ShardCopy:
    """Segments as generation, documents, deleted documents."""
    return ShardCopy(node, tuple(Segment(*numbers, is_searched=True) for numbers in segments))


def noted(copies: Mapping[str, list[tuple[int, int]]], *, is_complete: bool = True) -> EarlierSegments:
    return EarlierSegments(index_uuid="u", index_type="bbq_hnsw", is_complete=is_complete, segments={0: dict(copies)})


@pytest.mark.parametrize(
    ("copies", "share"),
    [
        ([copy("a", (3, 90, 0), (4, 10, 0))], 0.0),
        ([copy("a", (3, 60, 30), (4, 0, 10), (5, 30, 0), (6, 30, 0))], 0.5),  # deletions do not change a segment
        ([copy("a", (4, 0, 10), (7, 100, 0))], 1.0),  # merged, but for one without documents
        ([copy("a")], 1.0),
        # Another node: made from a copy that was noted, it has that one's segments and goes on counting.
        ([copy("b", (3, 90, 0), (5, 10, 0))], 0.1),
        ([copy("a", (7, 100, 0)), copy("b", (3, 90, 0), (4, 10, 0))], 0.5),
    ],
)
def test_share_is_that_of_segments_that_were_not_noted(copies: list[ShardCopy], share: float) -> None:
    assert present_share(noted({"a": [(3, 90), (4, 10)]}), {0: copies}) == pytest.approx(share)


def test_share_is_unknown_where_copies_cannot_be_told_apart() -> None:
    both = noted({"a": [(3, 100)], "b": [(1, 100)]})
    # Either made from the copy on a, or merged by b itself.
    assert present_share(both, {0: [copy("b", (3, 100, 0))]}) is None
    assert present_share(both, {0: [copy("a", (3, 100, 0)), copy("b", (2, 100, 0))]}) == 0.5
    # A copy that was away may have come back with segments that were not noted.
    away = noted({"a": [(3, 100)]}, is_complete=False)
    assert present_share(away, {0: [copy("a", (4, 100, 0))]}) == 1.0
    assert present_share(away, {0: [copy("a", (4, 100, 0)), copy("b", (2, 100, 0))]}) is None


def test_merge_is_over_where_every_copy_has_later_segments_only() -> None:
    before = {0: [copy("a", (3, 90, 0)), copy("b", (8, 90, 0))]}
    assert are_rewritten(before, {0: [copy("a", (5, 90, 0)), copy("b", (9, 90, 0))]})
    assert not are_rewritten(before, {0: [copy("a", (5, 90, 0)), copy("b", (8, 90, 0))]})
    assert not are_rewritten(before, {0: [copy("a", (5, 90, 0)), copy("c", (9, 90, 0))]})
    assert not are_rewritten(before, {0: [copy("a", (5, 90, 0))]})


def test_entry_of_another_type_leaves_the_segments_unknown() -> None:
    meta = VectorFieldMeta(fingerprint="f" * 32, model="m", dimensions=64, index_type="hnsw")
    new = merge_field_meta({}, "v", meta, is_new=True)["es_sbert"]
    assert EARLIER_SEGMENTS not in new
    assert EARLIER_SEGMENTS not in merge_field_meta({"es_sbert": new}, "v", meta.changed(text="{t}"))["es_sbert"]
    changed = merge_field_meta({"es_sbert": new}, "v", meta.changed(index_type="bbq_hnsw"))["es_sbert"]
    assert changed[EARLIER_SEGMENTS] == {"v": {}}
    # An entry that was erased says nothing about the types before.
    assert merge_field_meta({}, "v", meta)["es_sbert"][EARLIER_SEGMENTS] == {"v": {}}
    other = merge_field_meta({"es_sbert": changed}, "w", meta, is_new=True)["es_sbert"]
    assert other[EARLIER_SEGMENTS] == {"v": {}}
