"""The body of a bulk request, read to its end."""

from __future__ import annotations

from es_sbert.gateway.writes.items import BulkBody


def read_bulk(body: bytes, index: str = "", routing: str | None = None, most_names: int = 1000) -> BulkBody | None:
    """As `BulkBody.read_in_steps`, all steps at once."""
    steps = BulkBody.read_in_steps(body, index, routing, most_names)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            bulk: BulkBody | None = end.value
            return bulk
