"""The virtual field where it is not understood: the engine knows no such field, and would silently find nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.rewrite.compound import as_list
from es_sbert.gateway.rewrite.query_string import may_name
from es_sbert.gateway.rewrite.semantic import Reader
from es_sbert.gateway.targets import FieldTarget

# Queries that hold what they look for under the field's name.
_BY_FIELD = frozenset({
    "common", "fuzzy", "geo_bounding_box", "geo_distance", "geo_grid", "geo_polygon", "geo_shape", "intervals", "knn",
    "match", "match_bool_prefix", "match_phrase", "match_phrase_prefix", "neural", "neural_sparse", "prefix", "range",
    "regexp", "shape", "span_term", "sparse_vector", "term", "terms", "terms_set", "text_expansion", "weighted_tokens",
    "wildcard", "xy_shape",
})  # fmt: skip
# Parts of a search in which a name is no field that is searched: what hits show, and the application's own objects.
_NOT_SEARCHED = frozenset({
    "_source", "docvalue_fields", "document", "documents", "ext", "fields", "meta", "params", "query_vector", "script",
    "script_fields", "stored_fields", "vector",
})  # fmt: skip
_OFF = "X-Es-Sbert: off passes the request as it is."


def refuse_leftovers(body: Json, reader: Reader) -> None:
    """Look through a search in the engine's words for the virtual field.

    Args:
        body: As it would be sent.
        reader: Knows what the virtual field is called, and where it is no ordinary one.

    Raises:
        BadRequest: it stands where nothing can be found by it.
        IndexMismatch: it is followed by the name of a vector field that there is not.
    """
    for part, said in _objects(body):
        for where, name in (*_searched(part, said, reader), *_shown(part, said)):
            target = reader.names.only_virtual(name)
            if target is not None:
                raise BadRequest(f"{where} on {name} finds nothing: the name means vectors", _remedy(name, target))


def _objects(body: Json) -> Iterator[tuple[str, Json]]:
    """Every object of a search, with the name that it stands under; one that stands in many places there once."""
    found: list[tuple[str, Any]] = [("", body)]
    seen: set[tuple[str, int]] = set()
    while found:
        part, value = found.pop()
        if (part, id(value)) in seen:
            continue
        seen.add((part, id(value)))
        if isinstance(value, dict):
            yield part, value
            # `fields` of a search are shown, those of its highlights are objects that may hold queries.
            found += ((name, inner) for name, inner in value.items()
                      if name not in _NOT_SEARCHED or (name == "fields" and part == "highlight"))  # fmt: skip
        elif isinstance(value, list):
            found += ((part, inner) for inner in value if isinstance(inner, dict | list))


def _searched(part: str, said: Json, reader: Reader) -> Iterator[tuple[str, str]]:
    """The fields that an object looks into, each with what it is to do there."""
    if part in _BY_FIELD:
        yield from ((f"a {part} query", name) for name in said)
    if part == "kql" and may_name(str(said.get("query")), reader.meaning.virtual_field):
        yield "a kql query, which the engine reads by itself,", reader.meaning.virtual_field
    if isinstance(said.get("field"), str):
        yield part or "a field", said["field"]
    if isinstance(said.get("fields"), list) and (isinstance(said.get("query"), str) or "like" in said):
        yield from ((part, name) for name in said["fields"] if isinstance(name, str))


def _shown(part: str, said: Json) -> Iterator[tuple[str, str]]:
    """The fields that hits are sorted by, and those whose words are marked in them."""
    order = said.get("sort") if part != "bucket_sort" else None  # which sorts by names of aggregations
    for by in order if isinstance(order, list) else [order]:
        yield from (("sort", name) for name in ([by] if isinstance(by, str) else by if isinstance(by, dict) else ()))
    if part == "highlight":
        fields = said.get("fields")
        yield from (("highlight", name) for field in as_list(fields) for name in field)


def _remedy(name: str, target: FieldTarget) -> str:
    words = f'Search it by words, as {{"match": {{"{name}": "…"}}}}, and sort by _score;'
    return f"{words} elsewhere name a field that documents have, such as {target.name}. {_OFF}"
