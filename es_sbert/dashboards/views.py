"""Data views (Kibana) or index patterns (OpenSearch Dashboards): which index, which fields, and how they look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from es_sbert.dashboards.saved_objects import Product, SavedObject, dumps, search_source, stable_id
from es_sbert.engines.protocol import Json
from es_sbert.index.meta import VectorFieldMeta, document_meta_field

NUMBER: Json = {"id": "number", "params": {"pattern": "0,0"}}
DECIMAL: Json = {"id": "number", "params": {"pattern": "0,0.[0]"}}


def data_view(product: Product, pattern: str, name: str, *, time_field: str | None = None, key: str | None = None,
              formats: Mapping[str, Json] | None = None, hidden: Sequence[str] = ()) -> SavedObject:  # fmt: skip
    """A data view.

    Fields themselves are left out: both products then ask the engine for them.

    Args:
        pattern: Index, alias or pattern.
        name: What Kibana calls it; OpenSearch Dashboards shows the pattern.
        time_field: Field of the time picker; None shows all documents whenever they were made.
        key: What its id is made of, beside the pattern, where a pattern has several views.
        formats: Field → how its values are shown.
        hidden: Fields that are kept out of what is fetched and shown, `*` allowed.
    """
    attributes: Json = {
        "title": pattern,
        "sourceFilters": dumps([{"value": field} for field in hidden]),
        "fieldFormatMap": dumps(dict(formats or {})),
    }
    if time_field is not None:
        attributes["timeFieldName"] = time_field
    if product is Product.KIBANA:
        # No index yet is no error there.
        attributes |= {"name": name, "allowNoIndex": True}
    return SavedObject("index-pattern", stable_id("view", pattern, *([key] if key else [])), attributes)


def vector_patterns(fields: Mapping[str, VectorFieldMeta]) -> list[str]:
    """What hides the numbers: the field itself, and what is inside it where it holds passages."""
    return [
        pattern
        for name, meta in fields.items()
        for pattern in ([name] if meta.passages is None else [name, f"{name}.*"])
    ]


def vector_formats(fields: Mapping[str, VectorFieldMeta]) -> dict[str, Json]:
    """How the objects beside the vectors look: a model's name in place of its fingerprint."""
    formats: dict[str, Json] = {}
    for name, meta in fields.items():
        beside = document_meta_field(name)
        entries = [{"key": meta.fingerprint, "value": f"{meta.model} ({meta.fingerprint[:8]})"}]
        lookup = {"id": "static_lookup", "params": {"lookupEntries": entries, "unknownKeyValue": None}}
        formats |= {f"{beside}.fingerprint": lookup, f"{beside}.tokens": NUMBER, f"{beside}.passages": NUMBER}
    return formats


def saved_search(product: Product, view: SavedObject, title: str, description: str,
                 columns: Sequence[str]) -> SavedObject:  # fmt: skip
    """Documents as a table. Without a sort of its own it shows the best first: a search by meaning has an order."""
    meta, references = search_source(view)
    attributes: Json = {
        "title": title,
        "description": description,
        "columns": list(columns),
        "sort": [],
        "kibanaSavedObjectMeta": meta,
    }
    if product is Product.KIBANA:
        attributes |= {"grid": {}, "hideChart": True, "isTextBasedQuery": False, "timeRestore": False}
    else:
        attributes |= {"hits": 0, "version": 1}
    return SavedObject("search", stable_id("search", view.id), attributes, references)
