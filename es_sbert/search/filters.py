"""Queries that users give in the engine's own language."""

from __future__ import annotations

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError

_EXAMPLE = """Write one query, e.g. '{"term": {"language": "en"}}'; several go into '{"bool": {"filter": […]}}'."""


def parse_filter(text: str) -> Json:
    """A filter given as JSON text.

    Raises:
        UsageError: not JSON, or not an object.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the filter is not JSON: {error}", _EXAMPLE) from None
    check_query(value, "the filter")
    query: Json = value
    return query


def check_query(value: object, what: str) -> None:
    """Refuse what cannot be a query; whether the engine knows it, the engine says.

    Raises:
        UsageError: not an object, or an empty one.
    """
    if not isinstance(value, dict) or not value:
        raise UsageError(f"{what} is no query but {str(value)[:80]!r}", _EXAMPLE)
