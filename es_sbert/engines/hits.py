"""What is read of a hit."""

from __future__ import annotations

from es_sbert.engines.protocol import Json

Key = tuple[str, str | None]


def key_of(hit: Json) -> Key:
    """What tells documents apart: ids are unique within a routing only."""
    return hit["_id"], hit.get("_routing")
