"""Filters that users write as JSON."""

from __future__ import annotations

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError


def parse_filter(text: str) -> Json:
    """A filter given as JSON text.

    Raises:
        UsageError: not JSON, or not an object.
    """
    example = """Write a query, e.g. '{"term": {"language": "en"}}'."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the filter is not JSON: {error}", example) from None
    if not isinstance(value, dict) or not value:
        raise UsageError("the filter is JSON, but not a query", example)
    return value
