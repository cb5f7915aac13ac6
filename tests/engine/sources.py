"""Documents of an index, read in real time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json


def read_sources(engine: Engine, name: str, ids: Iterable[str], *, source_includes: Sequence[str]) -> dict[str, Json]:
    """Id → these fields of `_source`, with vectors. Ids that do not exist are left out."""
    documents = engine.mget(name, [(id, None) for id in ids], source_includes=source_includes or None)
    return {document["_id"]: document.get("_source", {}) for document in documents if document is not None}
