"""Choose facets for an index from its mapping and the values of its fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from es_sbert.engines.rest import Json

MAX_SURVEYED_FIELDS = 40
MAX_FACETS = 8
MAX_VALUES = 10
# Buckets of numbers and dates hold equal shares of the documents, so that outliers do not move boundaries.
_BUCKETS = 6
_PERCENTS = tuple(round(100 * share / _BUCKETS, 3) for share in range(_BUCKETS + 1))
_CARDINALITY_PRECISION = 1000
# Format of dates in buckets and filters of the page.
_DATE_FORMAT = "strict_date_time"


class FacetKind(StrEnum):
    """Kind of a field's values."""

    TERMS = "terms"
    NUMBER = "number"
    DATE = "date"


# Type of a field → kind of its values, and whether its numbers are integers.
_FIELD_TYPES = {
    **dict.fromkeys(("keyword", "constant_keyword", "boolean", "ip", "version"), (FacetKind.TERMS, False)),
    **dict.fromkeys(("byte", "short", "integer", "long", "unsigned_long"), (FacetKind.NUMBER, True)),
    **dict.fromkeys(("half_float", "float", "double", "scaled_float"), (FacetKind.NUMBER, False)),
    **dict.fromkeys(("date", "date_nanos"), (FacetKind.DATE, False)),
}


@dataclass(frozen=True)
class FacetField:
    """A field that may be a facet.

    Attributes:
        field: Name in queries.
        label: Name for display, without `.keyword`.
        kind: Kind of its values.
        whole: Whether its numbers are integers.
    """

    field: str
    label: str
    kind: FacetKind
    whole: bool = False


def facet_fields(mappings: Iterable[Json], hidden: Collection[str]) -> list[FacetField]:
    """Find the fields that may be facets, in the order of the mappings.

    A field with different types is left out: a search that aggregates it would fail in some indices and lose hits.

    Args:
        mappings: The `properties` of each index.
        hidden: Fields to leave out: vectors, their metadata, and embedded texts.
    """
    facets: dict[str, FacetField] = {}
    types: dict[str, str] = {}
    mixed: set[str] = set()
    for properties in mappings:
        for field, type_, facet in _walk(properties, ""):
            if types.setdefault(field, type_) != type_:
                mixed.add(field)
            elif facet is not None and not _is_hidden(facet.label, hidden):
                facets.setdefault(field, facet)
    return [facet for field, facet in facets.items() if field not in mixed][:MAX_SURVEYED_FIELDS]


def _walk(properties: Json, prefix: str) -> Iterator[tuple[str, str, FacetField | None]]:
    """Yield each field with its type, and the facet that it may be."""
    for name, definition in properties.items():
        path, type_ = prefix + name, definition.get("type", "object")
        if type_ == "object":
            yield from _walk(definition.get("properties", {}), f"{path}.")
            continue
        yield path, type_, _facet(path, path, definition)
        if type_ in ("text", "match_only_text"):
            # Dynamic mappings add a keyword subfield to a text.
            for name, inner in definition.get("fields", {}).items():
                if inner["type"] == "keyword":
                    field = f"{path}.{name}"
                    yield field, "keyword", _facet(field, path, inner)
                    break


def _facet(field: str, label: str, mapping: Json) -> FacetField | None:
    """Return the facet of a field with this mapping; None if it cannot be one."""
    is_searchable = mapping.get("index", True) and mapping.get("doc_values", True)
    if not is_searchable or mapping["type"] not in _FIELD_TYPES:
        return None
    return FacetField(field, label, *_FIELD_TYPES[mapping["type"]])


def _is_hidden(label: str, hidden: Collection[str]) -> bool:
    return any(label == name or label.startswith(f"{name}.") for name in hidden)


def survey_body(fields: list[FacetField]) -> Json:
    """Create the body of a search whose response `choose_facets` reads."""
    aggregations: Json = {}
    for number, facet in enumerate(fields):
        distinct = {"field": facet.field, "precision_threshold": _CARDINALITY_PRECISION}
        aggregations[f"{number}_distinct"] = {"cardinality": distinct}
        if facet.kind is not FacetKind.TERMS:
            quantiles = {"field": facet.field, "percents": _PERCENTS, "keyed": False}
            aggregations[f"{number}_quantiles"] = {"percentiles": quantiles}
    return {"size": 0, "track_total_hits": True, "aggs": aggregations}


def choose_facets(fields: list[FacetField], answer: Json) -> list[Json]:
    """Choose useful facets: fields with several values, but far fewer values than documents.

    Args:
        answer: The response to `survey_body(fields)`.

    Returns:
        For each facet: `field`, `label`, `kind`, whether its numbers are `whole`, and the `aggregation` that counts its
        values. A bucket's value is `key_as_string` or `key`: a single value, or a range `FROM..TO` of numbers or dates
        that includes FROM and excludes TO, either of which may be missing.
    """
    total = answer["hits"]["total"]["value"]
    held = answer.get("aggregations", {})
    shown: list[Json] = []
    for number, facet in enumerate(fields):
        distinct = held[f"{number}_distinct"]["value"]
        if facet.kind is FacetKind.TERMS:
            aggregation = _terms_aggregation(facet, distinct, total)
        else:
            values = (entry["value"] for entry in held[f"{number}_quantiles"]["values"])
            aggregation = _range_aggregation(
                facet, distinct, [value for value in values if isinstance(value, float | int)]
            )
        if aggregation is not None:
            entry = {"field": facet.field, "label": facet.label, "kind": facet.kind, "whole": facet.whole}
            shown.append(entry | {"aggregation": aggregation})
    return shown[:MAX_FACETS]


def _terms_aggregation(facet: FacetField, distinct: int, total: int) -> Json | None:
    if distinct < 2 or distinct >= total or distinct > max(MAX_VALUES, total / 3):
        return None
    return {"terms": {"field": facet.field, "size": MAX_VALUES}}


def _range_aggregation(facet: FacetField, distinct: int, quantiles: list[float]) -> Json | None:
    """Aggregate numbers or dates: by value if there are few, else by ranges with about as many documents each."""
    if distinct < 2:
        return None
    is_date = facet.kind is FacetKind.DATE
    form = {"format": _DATE_FORMAT} if is_date else {}
    if distinct <= MAX_VALUES:
        return {"terms": {"field": facet.field, "size": MAX_VALUES, "order": {"_key": "asc"}, **form}}
    bounds = time_boundaries(quantiles) if is_date else number_boundaries(quantiles, whole=facet.whole)
    if not bounds:
        return None  # nearly all documents have the same value
    spans = zip([None, *bounds], [*bounds, None], strict=True)
    ranges = {"field": facet.field, "ranges": [_range(*span) for span in spans], **form}
    return {"date_range" if is_date else "range": ranges}


def _range(begin: str | None, end: str | None) -> Json:
    span: Json = {"key": f"{begin or ''}..{end or ''}"}
    return span | ({} if begin is None else {"from": begin}) | ({} if end is None else {"to": end})


# Maximum shift of a boundary when it is rounded, as a fraction of the distance to the next boundary.
_MAX_SHIFT = 1 / 3
# The calendar of `strict_date_time`, years 1 to 9999, in milliseconds.
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000, 253_402_300_799_999
_TIME_UNITS = ("Y", "M", "D", "h", "m", "s")


def number_boundaries(quantiles: Sequence[float], *, whole: bool) -> list[str]:
    """Choose bucket boundaries of a numeric field.

    Args:
        quantiles: Quantiles of the field in equal steps, with minimum and maximum.
        whole: Whether its values are integers.

    Returns:
        Numbers in ascending order, at most one for each inner quantile. Each is the first value of its bucket. Empty if
        all inner quantiles equal the minimum.
    """
    bounds = _round_quantiles(quantiles, lambda value, most: _round_number(value, most, whole=whole))
    return [str(int(bound)) if whole else repr(bound).removesuffix(".0") for bound in bounds]


def time_boundaries(quantiles: Sequence[float]) -> list[str]:
    """Choose bucket boundaries of a date field; see `number_boundaries`.

    Args:
        quantiles: Milliseconds since 1970.

    Returns:
        Dates in the format `strict_date_time`, in UTC. Dates outside the years 1 to 9999 are left out.
    """
    bounds = [bound for bound in _round_quantiles(quantiles, _round_time) if _FIRST_TIME <= bound <= _LAST_TIME]
    return [f"{np.datetime64(int(bound), 'ms')}Z" for bound in bounds]


def _round_quantiles(quantiles: Sequence[float], rounded: Callable[[float, float], float]) -> list[float]:
    """Round the inner quantiles above the minimum, each by `rounded(value, maximum shift)`."""
    finite = [value for value in quantiles if math.isfinite(value)]
    if len(finite) < 3:
        return []
    least = finite[0]
    inner = sorted({value for value in finite[1:-1] if value > least})
    # The distance to the maximum does not count, since that may be an outlier.
    gaps = [value - before for before, value in pairwise([least, *inner])]
    bounds: list[float] = []
    for place, value in enumerate(inner):
        bound = rounded(value, min(gaps[place : place + 2]) * _MAX_SHIFT)
        if bound > max(bounds, default=least):
            bounds.append(bound)
    return bounds


def _round_number(value: float, most: float, *, whole: bool) -> float:
    """Find the number within `most` of a value that has the fewest digits."""
    for digits in range(18):
        near = float(f"{value:.{digits}g}") if digits else 0.0
        if abs(near - value) <= most and not (whole and near % 1):
            return near
    return float(math.ceil(value)) if whole else value


def _round_time(value: float, most: float) -> float:
    """Find the beginning of a year, month, day and so on within `most` of a value, both in milliseconds."""
    if not _FIRST_TIME <= value <= _LAST_TIME:
        return value
    for unit in _TIME_UNITS:
        begin = np.datetime64(math.floor(value), "ms").astype(f"datetime64[{unit}]")
        around = [float(near.astype("datetime64[ms]").astype(np.int64)) for near in (begin, begin + 1)]
        nearest = min(around, key=lambda near: abs(near - value))
        if abs(nearest - value) <= most:
            return nearest
    return float(math.ceil(value))
