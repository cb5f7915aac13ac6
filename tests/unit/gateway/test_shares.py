"""Places of a batch go round fairly."""

from hypothesis import given
from hypothesis import strategies as st

from es_sbert.gateway.embedding.shares import fair_shares


def test_few_texts_do_not_wait_for_many() -> None:
    assert fair_shares([1000, 1, 3], 64) == [60, 1, 3]
    assert fair_shares([1000, 1000, 1], 65) == [32, 32, 1]
    assert fair_shares([], 8) == []


def test_who_came_first_is_served_where_not_everyone_can_be() -> None:
    assert fair_shares([10, 1, 1], 2) == [1, 1, 0]


@given(st.lists(st.integers(1, 50)), st.integers(1, 100))
def test_places_are_used_and_nobody_gets_more_than_another_who_wants_more(wanted: list[int], places: int) -> None:
    shares = fair_shares(wanted, places)
    assert sum(shares) == min(places, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    for share, want in zip(shares, wanted, strict=True):
        # Whoever got less than wanted got at most one less than anybody (places cannot be cut in two).
        assert share == want or share >= max(shares) - 1
