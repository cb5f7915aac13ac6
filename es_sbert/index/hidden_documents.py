"""Count documents in two independent ways, to notice those that the user's searches do not show.

Document-level security of a role can hide documents from every read. A copy would then lack them, a load in place would
not embed them, and counting by searches would not show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.vector_field import require_index
from es_sbert.messages import pluralize

# Attempts to count while nobody writes to the index.
_ATTEMPTS = 3


def count_all_documents(engine: Engine, index: str, retrying: Retrier) -> int:
    """Refresh an index, count its documents by a search, and compare that with the documents on disk.

    While documents are written, the counts may differ by the number of writes.

    Args:
        retrying: Retries each request.

    Returns:
        The number of documents, without nested objects.

    Raises:
        IndexMismatch: searches of this user do not show all documents.
        IndexMissing, EngineError: see `Engine`.
    """
    nested = list(_nested_paths(retrying(lambda: require_index(engine, index)).mappings))
    body = {"size": 0, "aggs": {str(number): {"nested": {"path": path}} for number, path in enumerate(nested)}}
    for _ in range(_ATTEMPTS):
        before = retrying(lambda: engine.shard_states(index))
        retrying(lambda: engine.refresh(index))
        documents = retrying(lambda: engine.count(index))
        found = retrying(lambda: engine.search(index, body))["aggregations"] if nested else {}
        objects = sum(int(bucket["doc_count"]) for bucket in found.values())
        after = retrying(lambda: engine.shard_states(index))
        stored = sum(shard.documents for shard in after.values())
        writes = sum(shard.max_seq_no - before[number].max_seq_no for number, shard in after.items())
        if writes and nested:
            continue  # a write changes any number of nested objects
        if abs(stored - documents - objects) <= writes:
            return documents
        objects_found = f" with {pluralize(objects, 'nested object')}" if nested else ""
        raise IndexMismatch(
            f"{index} holds {pluralize(stored, 'document')}{' and nested objects' if nested else ''}, but searches of "
            f"this user find only {documents:,}{objects_found}",
            "Use a user or API key whose role shows all documents of the index (no document-level security), and take "
            f"out a search pipeline that hides documents (`GET {index}/_settings?include_defaults=true`).",
        )
    return documents


def require_all_visible(engine: Engine, index: str, retrying: Retrier) -> None:
    """Check that searches of this user show all documents, if the user has the index privilege `monitor`.

    Raises:
        IndexMismatch, EngineError: see `count_all_documents`.
    """
    with suppress(AccessDenied):  # only the privilege monitor shows what is hidden
        count_all_documents(engine, index, retrying)


def _nested_paths(mapping: Json) -> Iterator[str]:
    for path, field in mapped_fields(mapping.get("properties", {})):
        if field.get("type") == "nested":
            yield path
        if field.get("type") == "semantic_text":
            yield f"{path}.inference.chunks"
