"""What the search log takes from answers as they pass."""

from __future__ import annotations

import gzip

import pytest

from es_sbert.gateway.search_log import TotalHitsParser

ANSWER = b'{"took":1,"timed_out":false,"_shards":{"total":1},"hits":{"total":{"value":17,"relation":"eq"},"hits":[]}}'


@pytest.mark.parametrize(
    ("answer", "totals"),
    [
        (ANSWER, [17]),
        (b'{"hits":{"total":3,"max_score":null,"hits":[]}}', [3]),
        (b'{"hits":{"max_score":1.5,"hits":[]}}', []),
        (gzip.compress(ANSWER), [17]),
        (gzip.compress(ANSWER)[:-8], [17]),
        (b"\x1f\x8b\x08\x00 damaged on its way", []),
        (b"", []),
    ],
    ids=["object", "number", "none", "gzip", "cut off", "damaged", "empty"],
)
def test_total_hits_are_parsed_from_partial_responses(answer: bytes, totals: list[int]) -> None:
    glance = TotalHitsParser(1000)
    for start in range(0, len(answer), 7):
        glance.part(answer[start : start + 7])
    assert glance.totals() == totals
