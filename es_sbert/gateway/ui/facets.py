"""Fields of an index that hits can be narrowed down by: chosen from its mapping and from what the fields hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from es_sbert.engines.protocol import Json

MOST_LOOKED_AT = 40
MOST_SHOWN = 8
VALUES_SHOWN = 10
_STEPS = 8  # about so many buckets of a numeric field
_WHOLE = frozenset({"byte", "short", "integer", "long", "unsigned_long"})
_FRACTIONS = frozenset({"half_float", "float", "double", "scaled_float"})
_TERMS = frozenset({"keyword", "constant_keyword", "boolean", "ip", "version"})
_DATES = frozenset({"date", "date_nanos"})
_MINUTE, _HOUR, _DAY = 60e3, 3600e3, 86400e3  # milliseconds
_CALENDAR = (("minute", _MINUTE), ("hour", _HOUR), ("day", _DAY), ("month", 30 * _DAY), ("year", 365 * _DAY))
_MOST_DATES = 24


class Kind(StrEnum):
    """How the values of a field are put together."""

    TERMS = "terms"
    NUMBER = "number"
    DATE = "date"


@dataclass(frozen=True)
class FacetField:
    """A field that may be a facet.

    Attributes:
        field: Its name in queries.
        label: Its name for people: without `.keyword`.
        kind: Of its values.
        whole: Whether its numbers are whole.
    """

    field: str
    label: str
    kind: Kind
    whole: bool = False


def facet_fields(mappings: Iterable[Json], hidden: Collection[str]) -> list[FacetField]:
    """Fields with values to choose from, in the mappings' order.

    A field that has another type in one of the indices is none: where values cannot be counted a search fails, and its
    hits there are lost.

    Args:
        mappings: The `properties` of each index.
        hidden: Fields that are none: vectors, what stands beside them, and texts that are embedded.
    """
    found: dict[str, FacetField] = {}
    types: dict[str, str] = {}
    mixed: set[str] = set()
    for properties in mappings:
        for field, type_, facet in _walk(properties, ""):
            if types.setdefault(field, type_) != type_:
                mixed.add(field)
            elif facet is not None and not _is_hidden(facet.label, hidden):
                found.setdefault(field, facet)
    return [facet for field, facet in found.items() if field not in mixed][:MOST_LOOKED_AT]


def _walk(properties: Json, prefix: str) -> Iterator[tuple[str, str, FacetField | None]]:
    """Each field with its type, and the facet that it may be."""
    for name, said in properties.items():
        path, type_ = prefix + name, said.get("type", "object")
        if type_ == "object":
            yield from _walk(said.get("properties", {}), f"{path}.")
            continue
        yield path, type_, _facet(path, path, said)
        if type_ in ("text", "match_only_text"):
            # As the engines map a text by themselves: with its exact value beside.
            exact = ((f"{path}.{sub}", inner) for sub, inner in said.get("fields", {}).items())
            for field, inner in exact:
                if inner["type"] == "keyword":
                    yield field, "keyword", _facet(field, path, inner)
                    break


def _facet(field: str, label: str, said: Json) -> FacetField | None:
    """Of a field that has this entry in the mapping."""
    if not (said.get("index", True) and said.get("doc_values", True)):
        return None
    type_ = said["type"]
    if type_ in _TERMS:
        return FacetField(field, label, Kind.TERMS)
    if type_ in _WHOLE or type_ in _FRACTIONS:
        return FacetField(field, label, Kind.NUMBER, whole=type_ in _WHOLE)
    return FacetField(field, label, Kind.DATE) if type_ in _DATES else None


def _is_hidden(label: str, hidden: Collection[str]) -> bool:
    return any(label == name or label.startswith(f"{name}.") for name in hidden)


def survey(fields: list[FacetField]) -> Json:
    """Body of a search that tells what the fields hold, for `facets`."""
    aggregations: Json = {}
    for number, facet in enumerate(fields):
        if facet.kind is Kind.TERMS:
            aggregations[f"{number}"] = {"cardinality": {"field": facet.field, "precision_threshold": 1000}}
        else:
            aggregations[f"{number}"] = {"stats": {"field": facet.field}}
    return {"size": 0, "track_total_hits": True, "aggs": aggregations}


def facets(fields: list[FacetField], answer: Json) -> list[Json]:
    """The facets worth showing: fields with several values, and not nearly as many as documents.

    Args:
        answer: The engine's, to `survey(fields)`.

    Returns:
        Of each `field`, `label`, `kind` and the `aggregation` that counts its values; of a numeric one `interval`
        and whether its numbers are `whole`, of a date `unit`.
    """
    total = answer["hits"]["total"]["value"]
    held = answer.get("aggregations", {})
    shown = (_shown(facet, held[f"{number}"], total) for number, facet in enumerate(fields))
    return [facet for facet in shown if facet is not None][:MOST_SHOWN]


def _shown(facet: FacetField, held: Json, total: int) -> Json | None:
    said: Json = {"field": facet.field, "label": facet.label, "kind": facet.kind}
    if facet.kind is Kind.TERMS:
        distinct = held["value"]
        if distinct < 2 or distinct >= total or distinct > max(VALUES_SHOWN, total / 3):
            return None
        return said | {"aggregation": {"terms": {"field": facet.field, "size": VALUES_SHOWN}}}
    least, most = _bounds(held)
    if not least < most:
        return None
    if facet.kind is Kind.NUMBER:
        interval = step(least, most, whole=facet.whole)
        counted: Json = {"histogram": {"field": facet.field, "interval": interval, "min_doc_count": 1}}
        return said | {"aggregation": counted, "interval": interval, "whole": facet.whole}
    unit = calendar_unit(most - least)
    # The format in which the page reads a bucket's beginning and sends it back. The newest come first: where there are
    # too many years to show, those are looked for.
    by_unit = {"field": facet.field, "calendar_interval": unit, "format": "strict_date_time", "min_doc_count": 1,
               "order": {"_key": "desc"}}  # fmt: skip
    return said | {"aggregation": {"date_histogram": by_unit}, "unit": unit}


def _bounds(held: Json) -> tuple[float, float]:
    least: Any = held["min"]
    most: Any = held["max"]
    if least is None or most is None or not math.isfinite(most - least):
        return 0.0, 0.0  # no document has the field
    return least, most


def step(least: float, most: float, *, whole: bool) -> float:
    """A round width (1, 2 or 5 times a power of ten) that cuts a span into about eight.

    Args:
        whole: Whether values are whole numbers: then it is at least 1.
    """
    rough = (most - least) / _STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    rounded = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return max(1.0, rounded) if whole else rounded


def calendar_unit(milliseconds: float) -> str:
    """The unit of the calendar that cuts a span of time into at most a few dozen."""
    return next((unit for unit, length in _CALENDAR if milliseconds / length <= _MOST_DATES), "year")
