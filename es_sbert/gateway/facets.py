"""Choose facets for an index from its mapping and the values of its fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from es_sbert.engines.rest import Json

MAX_SURVEYED_FIELDS = 40
MAX_FACETS = 8
MAX_VALUES = 10
_CARDINALITY_PRECISION = 1000
# Ranges of numbers and dates hold equal shares of the documents, so that outliers do not move boundaries. The first
# percentile is the minimum, below which no range is needed.
_PERCENTS = (0, 25, 50, 75)
_DIGITS = 3  # of the boundary of a number
# Format of dates in ranges and filters of the page: years 1 to 9999, in milliseconds.
_DATE_FORMAT = "strict_date_time"
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000, 253_402_300_799_999
# Type of a field → kind of its values, and whether its numbers are integers.
_FIELD_TYPES = {
    **dict.fromkeys(("keyword", "constant_keyword", "boolean", "ip", "version"), ("terms", False)),
    **dict.fromkeys(("byte", "short", "integer", "long", "unsigned_long"), ("number", True)),
    **dict.fromkeys(("half_float", "float", "double", "scaled_float"), ("number", False)),
    **dict.fromkeys(("date", "date_nanos"), ("date", False)),
}


def facet_fields(mappings: Iterable[Json], hidden: Collection[str]) -> list[Json]:
    """Find the fields that may be facets, in the order of the mappings.

    A field with different types is left out: a search that aggregates it would fail in some indices and lose hits.

    Args:
        mappings: The `properties` of each index.
        hidden: Fields to leave out: vectors, their metadata, and embedded texts.

    Returns:
        For each field: its name in queries (`field`), its name for display (`label`), the `kind` of its values, and
        whether its numbers are integers (`whole`).
    """
    facets: dict[str, Json] = {}
    types: defaultdict[str, set[str]] = defaultdict(set)
    for properties in mappings:
        for field, label, mapping in _walk(properties, ""):
            types[field].add(mapping["type"])
            is_searchable = mapping.get("index", True) and mapping.get("doc_values", True)
            is_hidden = any(label == name or label.startswith(f"{name}.") for name in hidden)
            if is_searchable and mapping["type"] in _FIELD_TYPES and not is_hidden:
                kind, whole = _FIELD_TYPES[mapping["type"]]
                facets.setdefault(field, {"field": field, "label": label, "kind": kind, "whole": whole})
    return [facet for field, facet in facets.items() if len(types[field]) == 1][:MAX_SURVEYED_FIELDS]


def _walk(properties: Json, prefix: str) -> Iterator[tuple[str, str, Json]]:
    """Yield each field, its name for display and its mapping, and the keyword subfield that dynamic mappings add."""
    for name, mapping in properties.items():
        path = prefix + name
        if mapping.get("type", "object") == "object":
            yield from _walk(mapping.get("properties", {}), f"{path}.")
            continue
        yield path, path, mapping
        keywords = [inner for inner, sub in mapping.get("fields", {}).items() if sub["type"] == "keyword"]
        if mapping["type"] in ("text", "match_only_text") and keywords:
            yield f"{path}.{keywords[0]}", path, mapping["fields"][keywords[0]]


def survey_body(fields: Sequence[Json]) -> Json:
    """Create the body of a search whose response `choose_facets` reads."""
    aggregations: Json = {}
    for number, facet in enumerate(fields):
        distinct = {"field": facet["field"], "precision_threshold": _CARDINALITY_PRECISION}
        aggregations[f"{number}_distinct"] = {"cardinality": distinct}
        if facet["kind"] != "terms":
            quantiles = {"field": facet["field"], "percents": _PERCENTS, "keyed": False}
            aggregations[f"{number}_quantiles"] = {"percentiles": quantiles}
    return {"size": 0, "track_total_hits": True, "aggs": aggregations}


def choose_facets(fields: Sequence[Json], answer: Json) -> list[Json]:
    """Choose useful facets: fields with several values, but far fewer values than documents.

    Args:
        answer: The response to `survey_body(fields)`.

    Returns:
        The fields with the `aggregation` that counts their values: of numbers and dates by value if there are few, else
        by ranges. A bucket's value is `key_as_string` or `key`: a single value, or a range `FROM..TO` that includes
        FROM and excludes TO, either of which may be missing.
    """
    total = answer["hits"]["total"]["value"]
    shown: list[Json] = []
    for number, facet in enumerate(fields):
        distinct = answer["aggregations"][f"{number}_distinct"]["value"]
        terms = {"field": facet["field"], "size": MAX_VALUES}
        form = {"format": _DATE_FORMAT} if facet["kind"] == "date" else {}
        if distinct < 2 or (facet["kind"] == "terms" and distinct > min(total - 1, max(MAX_VALUES, total / 3))):
            continue
        if facet["kind"] == "terms":
            aggregation: Json = {"terms": terms}
        elif distinct <= MAX_VALUES:
            aggregation = {"terms": {**terms, "order": {"_key": "asc"}, **form}}
        else:
            quantiles = [entry["value"] for entry in answer["aggregations"][f"{number}_quantiles"]["values"]]
            bounds = _boundaries(facet, quantiles)
            if not bounds:
                continue
            spans = zip([None, *bounds], [*bounds, None], strict=True)
            ranges = {"field": facet["field"], "ranges": [_range(*span) for span in spans], **form}
            aggregation = {"date_range" if form else "range": ranges}
        shown.append({**facet, "aggregation": aggregation})
    return shown[:MAX_FACETS]


def _boundaries(facet: Json, quantiles: Sequence[float]) -> list[str]:
    """Round quantiles, of which the first is the minimum, to boundaries in ascending order that have values below them.

    Numbers are rounded to a few digits, times to days in UTC.
    """
    if facet["kind"] == "date":
        times = [max(quantiles[0], _FIRST_TIME), *(time for time in quantiles[1:] if time >= _FIRST_TIME)]
        days = [np.datetime64(int(time), "ms").astype("datetime64[D]") for time in times if time <= _LAST_TIME]
        return [f"{day}T00:00:00.000Z" for day in sorted({day for day in days if day > days[0]})]
    numbers = [float(f"{value:.{_DIGITS}g}") for value in quantiles]
    bounds = sorted({number for number in numbers if number > numbers[0]})
    return [str(int(number)) if facet["whole"] else repr(number).removesuffix(".0") for number in bounds]


def _range(begin: str | None, end: str | None) -> Json:
    span: Json = {"key": f"{begin or ''}..{end or ''}"}
    return span | ({} if begin is None else {"from": begin}) | ({} if end is None else {"to": end})
