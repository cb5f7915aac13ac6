"""Fields of an index that hits can be narrowed down by: chosen from its mapping and from what the fields hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from es_sbert.engines.protocol import Json
from es_sbert.gateway.ui.boundaries import number_boundaries, time_boundaries

MOST_LOOKED_AT = 40
MOST_SHOWN = 8
VALUES_SHOWN = 10
# Numbers and dates are cut where equal shares of the documents are: one outlier moves no boundary.
_BUCKETS = 6
_PERCENTS = tuple(round(100 * share / _BUCKETS, 3) for share in range(_BUCKETS + 1))
_CARDINALITY_PRECISION = 1000
# The format in which the page reads dates of buckets and sends them back.
_DATE_FORMAT = "strict_date_time"
_WHOLE = frozenset({"byte", "short", "integer", "long", "unsigned_long"})
_FRACTIONS = frozenset({"half_float", "float", "double", "scaled_float"})
_TERMS = frozenset({"keyword", "constant_keyword", "boolean", "ip", "version"})
_DATES = frozenset({"date", "date_nanos"})


class Kind(StrEnum):
    """Of a field's values."""

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
        distinct = {"field": facet.field, "precision_threshold": _CARDINALITY_PRECISION}
        aggregations[f"{number}_distinct"] = {"cardinality": distinct}
        if facet.kind is not Kind.TERMS:
            quantiles = {"field": facet.field, "percents": _PERCENTS, "keyed": False}
            aggregations[f"{number}_quantiles"] = {"percentiles": quantiles}
    return {"size": 0, "track_total_hits": True, "aggs": aggregations}


def facets(fields: list[FacetField], answer: Json) -> list[Json]:
    """The facets worth showing: fields with several values, and not nearly as many values as documents.

    Args:
        answer: The engine's, to `survey(fields)`.

    Returns:
        Of each `field`, `label`, `kind`, whether its numbers are `whole`, and the `aggregation` that counts its values.
        A bucket's value is `key_as_string` or `key`: a single value, or of numbers and dates `FROM..TO`, from FROM to
        before TO, either of which may be missing.
    """
    total = answer["hits"]["total"]["value"]
    held = answer.get("aggregations", {})
    shown: list[Json] = []
    for number, facet in enumerate(fields):
        distinct = held[f"{number}_distinct"]["value"]
        if facet.kind is Kind.TERMS:
            aggregation = _terms(facet, distinct, total)
        else:
            values = (entry["value"] for entry in held[f"{number}_quantiles"]["values"])
            aggregation = _buckets(facet, distinct, [value for value in values if isinstance(value, float | int)])
        if aggregation is not None:
            said = {"field": facet.field, "label": facet.label, "kind": facet.kind, "whole": facet.whole}
            shown.append(said | {"aggregation": aggregation})
    return shown[:MOST_SHOWN]


def _terms(facet: FacetField, distinct: int, total: int) -> Json | None:
    if distinct < 2 or distinct >= total or distinct > max(VALUES_SHOWN, total / 3):
        return None
    return {"terms": {"field": facet.field, "size": VALUES_SHOWN}}


def _buckets(facet: FacetField, distinct: int, quantiles: list[float]) -> Json | None:
    """Of numbers or dates: each value if there are few, else spans that hold about as many documents each."""
    if distinct < 2:
        return None
    form = {"format": _DATE_FORMAT} if facet.kind is Kind.DATE else {}
    if distinct <= VALUES_SHOWN:
        return {"terms": {"field": facet.field, "size": VALUES_SHOWN, "order": {"_key": "asc"}, **form}}
    is_date = facet.kind is Kind.DATE
    bounds = time_boundaries(quantiles) if is_date else number_boundaries(quantiles, whole=facet.whole)
    if not bounds:
        return None  # nearly all documents have the same value
    spans = zip([None, *bounds], [*bounds, None], strict=True)
    return {
        "date_range" if is_date else "range": {"field": facet.field, "ranges": [_span(*span) for span in spans], **form}
    }


def _span(begin: str | None, end: str | None) -> Json:
    span: Json = {"key": f"{begin or ''}..{end or ''}"}
    return span | ({} if begin is None else {"from": begin}) | ({} if end is None else {"to": end})
