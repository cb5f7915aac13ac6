"""Build the fields of a data view, as OpenSearch Dashboards keeps them in the saved object.

Without them, each panel of a dashboard asks for the fields and saves them in the data view when it is opened. Saving
fails for all but one of the panels (409), and for users who may only read. Kibana does not keep fields.

The rules are those of `src/plugins/data/server/index_patterns/fetcher/lib/field_capabilities` in
opensearch-project/OpenSearch-Dashboards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from es_sbert.engines.rest import Json

# Type in OpenSearch Dashboards → the engine's types; a type that is not listed is `unknown`.
_TYPES = {
    "string": ("text", "keyword", "string", "_type", "_id"),
    "number": (
        "float", "half_float", "scaled_float", "double", "integer", "long", "unsigned_long", "short", "byte",
        "token_count",
    ),
    "date": ("date", "date_nanos"),
    "ip": ("ip",),
    "boolean": ("boolean",),
    "object": ("object",),
    "nested": ("nested",),
    "geo_point": ("geo_point",),
    "geo_shape": ("geo_shape",),
    "attachment": ("attachment",),
    "murmur3": ("murmur3",),
    "_source": ("_source",),
    "histogram": ("histogram",),
}  # fmt: skip
_TYPE_BY_ENGINE_TYPE = {engine_type: name for name, types in _TYPES.items() for engine_type in types}
# Metadata fields, which are in every data view (setting `metaFields`), and their fixed properties.
_META_FIELDS: dict[str, Json] = {
    "_source": {"type": "_source"},
    "_id": {"type": "string"},
    "_type": {"type": "string"},
    "_index": {"type": "string"},
    "_score": {"type": "number", "searchable": False, "aggregatable": False},
}
_DATE_TYPES = frozenset(_TYPES["date"])


def is_date_field(capabilities: Mapping[str, Any], name: str) -> bool:
    """Whether a field is a date in all indices that have it.

    Args:
        capabilities: Member `fields` of a `_field_caps` response.
    """
    return name in capabilities and capabilities[name].keys() <= _DATE_TYPES


def view_fields(capabilities: Mapping[str, Any]) -> list[Json]:
    """Build the fields of a data view, sorted by name.

    Args:
        capabilities: Member `fields` of a `_field_caps` response.
    """
    found = {name: _field(name, by_type) for name, by_type in capabilities.items()}
    for name, field in found.items():
        if "." in name and (sub_type := _sub_type(name, found)):
            field["subType"] = sub_type
    listed = {
        name: field
        for name, field in found.items()
        if not name.startswith("_") and field["type"] not in ("object", "nested")
    }
    unknown = {"type": "string", "searchable": False, "aggregatable": False, "readFromDocValues": False}
    for name, known in _META_FIELDS.items():
        listed[name] = {"name": name, "count": 0, "scripted": False, **unknown, **found.get(name, {}), **known}
    return [listed[name] for name in sorted(listed)]


def _field(name: str, by_type: Mapping[str, Any]) -> Json:
    """Describe a field, with its type in OpenSearch Dashboards; `conflict` if its types differ between indices."""
    types = list(by_type)
    kinds = list(dict.fromkeys(_TYPE_BY_ENGINE_TYPE.get(each, "unknown") for each in types))
    searchable, aggregatable = (_has_capability(by_type, each) for each in ("searchable", "aggregatable"))
    field: Json = {
        "name": name,
        "type": kinds[0],
        "esTypes": types,
        "count": 0,
        "scripted": False,
        "searchable": searchable,
        "aggregatable": aggregatable,
        "readFromDocValues": aggregatable and types[0] not in ("text", "geo_shape") and not types[0].startswith("_"),
    }
    if len(kinds) > 1:
        indices = {each: by_type[each].get("indices", []) for each in types}
        field |= {"type": "conflict", "readFromDocValues": False, "conflictDescriptions": indices}
    return field


def _has_capability(by_type: Mapping[str, Any], name: str) -> bool:
    """Whether a field is `searchable` or `aggregatable` in any index."""
    return any(each.get(name) or each.get(f"non_{name}_indices") for each in by_type.values())


def _sub_type(name: str, fields: Mapping[str, Json]) -> Json:
    """Return the `subType` of a field with a dot in its name: part of another field, of nested objects, or of both."""
    parts = name.split(".")
    parents = [fields.get(".".join(parts[:count])) for count in range(len(parts) - 1, 0, -1)]
    sub_type: Json = {}
    if parents[0] is not None and parents[0]["type"] not in ("object", "nested"):
        sub_type["multi"] = {"parent": parents[0]["name"]}
    nested = next((parent for parent in parents if parent is not None and parent["type"] == "nested"), None)
    if nested is not None:
        sub_type["nested"] = {"path": nested["name"]}
    return sub_type
