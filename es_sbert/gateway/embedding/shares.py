"""How the places of a batch are shared among those who wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def fair_shares(wanted: Sequence[int], places: int) -> list[int]:
    """Divide places as evenly as wishes allow (max-min fairness): nobody gets more than another who wants more.

    Args:
        wanted: How many places each would like, at least one, first come first.
        places: How many there are.

    Returns:
        How many each gets; where not everyone can have one, those who came first do. Their sum is the smaller of
        `places` and what all want together.
    """
    # The modest are served first, so that what they leave is divided among the others; where not everyone gets one,
    # that would let newcomers overtake for ever.
    order: Iterable[int] = range(len(wanted))
    if len(wanted) <= places:
        order = sorted(order, key=lambda number: wanted[number])
    shares = [0] * len(wanted)
    for done, number in enumerate(order):
        shares[number] = min(wanted[number], -(-places // (len(wanted) - done)))
        places -= shares[number]
    return shares
