"""The body of a bulk request, read to its end."""

from __future__ import annotations

import asyncio

from es_sbert.gateway.concurrency import offload_steps
from es_sbert.gateway.writes.bulk_items import BulkBody


def read_bulk(body: bytes, index: str = "", routing: str | None = None, most_names: int = 1000) -> BulkBody | None:
    """As `BulkBody.read_in_steps`, all steps at once."""
    return asyncio.run(offload_steps(len(body), BulkBody.read_in_steps(body, index, routing, most_names)))
