"""Where a field's vectors stand: one in the field itself, or one a passage in nested objects."""

from __future__ import annotations

from collections.abc import Iterable

from es_sbert.engines.protocol import IndexState, Json
from es_sbert.index.meta import VectorFieldMeta

# Names inside the nested object of a passage. Offsets are in characters of the document's text, the end not included.
PASSAGE_VECTOR = "vector"
PASSAGE_START = "start"
PASSAGE_END = "end"


# Setting of an index: nested objects that a document may hold, and what both engines take without it.
NESTED_LIMIT = "index.mapping.nested_objects.limit"
_NESTED_LIMIT_DEFAULT = 10_000


def nested_limit(index: IndexState) -> int:
    """Nested objects, such as passages, that the index takes of a document."""
    return int(index.settings.get(NESTED_LIMIT, _NESTED_LIMIT_DEFAULT))


def vector_path(field: str, meta: VectorFieldMeta) -> str:
    """Full name of the field that holds the numbers."""
    return field if meta.passages is None else f"{field}.{PASSAGE_VECTOR}"


def passage_inner_hits(field: str, name: str) -> Json:
    """What a search is asked to tell of the best passage of each document.

    Args:
        name: Under which it is told; inner hits of one request need different ones.
    """
    return {"name": name, "size": 1, "_source": {"includes": [f"{field}.{PASSAGE_START}", f"{field}.{PASSAGE_END}"]}}


def has_vector(field: str, meta: VectorFieldMeta, name: str | None = None) -> Json:
    """Query for the documents that have a vector in this field.

    Args:
        name: What a hit's `matched_queries` calls it.
    """
    named = {} if name is None else {"_name": name}
    if meta.passages is None:
        return {"exists": {"field": field, **named}}
    inner: Json = {"exists": {"field": vector_path(field, meta)}}
    return {"nested": {"path": field, "query": inner, **named}}


def both(first: Json, second: Json | None) -> Json:
    """Query for the documents that match two queries; None for the second matches all."""
    return first if second is None else {"bool": {"filter": [first, second]}}


def in_random_order(query: Json | None, seed: int) -> Json:
    """A query for the same documents in an order that the seed decides, as long as the index is at rest.

    Args:
        query: None for all documents.
    """
    score: Json = {"random_score": {"seed": seed, "field": "_seq_no"}, "boost_mode": "replace"}
    return {"function_score": score if query is None else {"query": query, **score}}


def vectors_by_name(fields: Iterable[tuple[str, VectorFieldMeta]]) -> Json:
    """Query for all documents; `matched_queries` of a hit holds the numbers of the fields that have a vector."""
    should = [has_vector(field, meta, str(number)) for number, (field, meta) in enumerate(fields)]
    return {"bool": {"must": [{"match_all": {}}], "should": should}}


def passages_property(vector: Json) -> Json:
    """The mapping of a field of passages, around the mapping of one vector."""
    # Offsets are read from `_source` alone: nobody searches by them.
    offset: Json = {"type": "integer", "index": False, "doc_values": False}
    properties = {PASSAGE_VECTOR: vector, PASSAGE_START: offset, PASSAGE_END: dict(offset)}
    return {"type": "nested", "properties": properties}


def vector_property(field: Json) -> Json:
    """The inverse: the mapping of the vector, whether it stands in the field itself or in its passages."""
    if field.get("type") != "nested":
        return field
    inner: Json = field.get("properties", {}).get(PASSAGE_VECTOR, {})
    return inner
