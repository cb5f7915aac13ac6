"""Build the saved objects of an index: data views, the load dashboard and the search dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from es_sbert.dashboards.saved_objects import (
    DECIMAL,
    NUMBER,
    DashboardPanel,
    DashboardProduct,
    SavedObject,
    dashboard,
    data_view,
    saved_search,
    template_panels,
    vector_formats,
    vector_patterns,
)
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.gateway.settings import check_index_name, monthly_index_pattern
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field, vector_fields
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import check_not_being_removed, require_index


def load_dashboard_objects(
    product: DashboardProduct,
    index: str,
    fields: Mapping[str, VectorFieldMeta],
    reports: SavedObject | None,
    alias_target: str | None = None,
    *,
    time_field: str | None = None,
    listed: Sequence[Json] | None = None,
) -> list[SavedObject]:
    """Build the views, the saved search and the dashboard of an index. The first object is the view to search in.

    Args:
        fields: Vector fields of the index, at least one.
        reports: The view of the loads' reports; None if there are no reports.
        alias_target: The index that `index` points to if it is an alias, because loads may have used either name.
        time_field: Date field of the view to search in; None shows documents of any time.
        listed: All fields of the index, for OpenSearch Dashboards (`view_fields`).
    """
    formats, hidden = vector_formats(fields), vector_patterns(fields)
    view_of = partial(data_view, product, index, formats=formats, hidden=hidden, fields=listed)
    view = view_of(f"{index} (es-sbert)", time_field=time_field)
    about, columns = "Texts without their vectors, the best hit first.", _search_columns(fields)
    documents = saved_search(product, view, f"{index}: documents", about, columns)
    objects = [view]
    if time_field is not None:
        # The dashboard counts and lists all documents, not only those of its time range.
        view = view_of(f"{index} at any time (es-sbert)", key="at any time")
        objects += [documents, view]
        documents = saved_search(product, view, f"{index}: documents at any time", about, columns)
    panels: list[DashboardPanel] = []
    for field, meta in fields.items():
        meta_field = document_meta_field(field)
        time_field = f"{meta_field}.embedded_at"
        timed = view_of(f"{index} by {time_field} (es-sbert)", time_field=time_field, key=field)
        objects.append(timed)
        views, title = {"documents": view, "time_of_embedding": timed}, f"{index}.{field}"
        panels += template_panels("field", views, title=title, meta=meta_field, fingerprint=meta.fingerprint)
    if reports is not None:
        query = " OR ".join(f'index:"{name}"' for name in dict.fromkeys([index, alias_target or index]))
        panels += template_panels("report", {"reports": reports}, index=index, query=query)
    panels.append(DashboardPanel(documents, 48, 18))
    models = "; ".join(f"{field}: {meta.model} ({meta.fingerprint[:8]})" for field, meta in fields.items())
    about = f"The embeddings of {index} and their models. {models}."
    board = dashboard(product, f"{index}: load", about, panels, key=f"load/{index}", since="now-30d")
    return [*objects, *(panel.saved_object for panel in panels), board]


def _search_columns(fields: Mapping[str, VectorFieldMeta]) -> list[str]:
    """List the fields that are embedded, then the metadata of their vectors."""
    texts = [name for meta in fields.values() if meta.text for name in TextTemplate.parse(meta.text).fields]
    members = ("tokens", "truncated", "embedded_at", "fingerprint")
    metadata = [f"{document_meta_field(field)}.{member}" for field in fields for member in members]
    return list(dict.fromkeys([*texts, *metadata]))


def reports_view(product: DashboardProduct, name: str, listed: Sequence[Json] | None = None) -> SavedObject:
    """Build the view of the reports that `es-sbert ingest --report-index NAME` writes.

    Args:
        listed: See `load_dashboard_objects`.
    """
    counts = "read indexed updated unchanged dead left pruned truncated lost_tokens retries"
    formats = dict.fromkeys(counts.split(), NUMBER) | {"seconds": DECIMAL, "documents_per_second": DECIMAL}
    return data_view(product, name, "Loads (es-sbert)", time_field="@timestamp", formats=formats, fields=listed)


def search_dashboard_objects(
    product: DashboardProduct, pattern: str, listed: Sequence[Json] | None = None
) -> list[SavedObject]:
    """Build the view of a gateway's log, and the dashboard of its searches.

    Args:
        pattern: Index pattern of all months of the log.
        listed: See `load_dashboard_objects`.
    """
    times = {f"milliseconds.{part}": DECIMAL for part in ("total", "embedding", "upstream")}
    formats = times | {"hits": NUMBER, "k": NUMBER}
    name = "Searches (es-sbert)"
    view = data_view(product, pattern, name, time_field="@timestamp", formats=formats, fields=listed)
    panels = template_panels("search", {"searches": view})
    about = "Searches through the gateway, how long they took, and searches without hits."
    board = dashboard(product, "Searches", about, panels, key=f"searches/{pattern}", since="now-7d")
    return [view, *(panel.saved_object for panel in panels), board]


@dataclass(frozen=True)
class SavedObjectSet:
    """Objects for one product.

    Attributes:
        product: The product.
        objects: The objects, each after those that it needs.
        notes: Parts that were left out, and how to get them.
        view: The data view of the index, in which users search.
        uncalibrated: Vector fields without a minimum cosine.
    """

    product: DashboardProduct
    objects: tuple[SavedObject, ...]
    notes: tuple[str, ...]
    view: SavedObject
    uncalibrated: tuple[str, ...]


def build_saved_objects(
    engine: Engine, index: str, *, searches: str, reports: str, time_field: str | None = None
) -> SavedObjectSet:
    """Build the objects for the current state of an index.

    Args:
        index: Index or alias. The objects keep the given name, so an alias may be moved later.
        searches: Name of the gateway's log, without the month.
        reports: Index of the loads' reports.
        time_field: Date field of the data view to search in; None for a view without one.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the index has no vector field that es-sbert fills, or no date field named `time_field`.
        UsageError: a name is invalid.
        EngineError: the engine failed.
    """
    state = require_index(engine, index)
    fields = vector_fields(state.mappings, state.name)
    if not fields:
        check_not_being_removed(state)
        raise IndexMismatch(
            f"{index} has no vector field that es-sbert fills", f"Load it first: `es-sbert ingest --index {index}`."
        )
    product = DashboardProduct.from_engine_type(engine.info.engine_type)
    if time_field is not None and not is_date_field(engine.field_capabilities(index), time_field):
        raise IndexMismatch(
            f"{index} has no date field {time_field!r}",
            "Set `time_field` to a field of the type date, or omit it; `GET INDEX/_mapping` shows the types.",
        )

    def listed(pattern: str) -> list[Json] | None:
        # List the fields only for OpenSearch Dashboards: Kibana requests them itself and does not keep them.
        return view_fields(engine.field_capabilities(pattern)) if product is DashboardProduct.DASHBOARDS else None

    months = monthly_index_pattern(check_index_name(searches))
    notes = []
    objects: list[SavedObject] = []
    view = None
    if reason := _missing_reason(engine, check_index_name(reports)):
        notes.append(f"without reports of loads ({reason}): `es-sbert ingest --report-index {reports}` writes them")
    else:
        view = reports_view(product, reports, listed(reports))
        objects.append(view)
    of_index = load_dashboard_objects(
        product, index, fields, view, state.name, time_field=time_field, listed=listed(index)
    )
    objects += of_index
    if reason := _missing_reason(engine, months):
        notes.append(
            f"without the dashboard of searches ({reason}): `es-sbert serve --search-log FILE` writes their log, and a "
            "shipper sends it (docs/kibana.md)"
        )
    else:
        objects += search_dashboard_objects(product, months, listed(months))
    uncalibrated = tuple(name for name, meta in fields.items() if meta.min_cosine is None)
    return SavedObjectSet(product, tuple(objects), tuple(notes), of_index[0], uncalibrated)


def _missing_reason(engine: Engine, pattern: str) -> str:
    """Return the reason why no index matches a pattern; empty if one does."""
    try:
        found = engine.request_api(f"/_resolve/index/{pattern}")
    except AccessDenied:
        return f"this user may not see {pattern}"
    has_index = found is not None and (found.get("indices") or found.get("aliases"))
    return "" if has_index else f"there is no {pattern}"


# The fields of a data view, as OpenSearch Dashboards keeps them in the saved object. Without them, each panel of a
# dashboard asks for the fields and saves them in the data view when it is opened. Saving fails for all but one of the
# panels (409), and for users who may only read. Kibana does not keep fields. The rules are those of
# `src/plugins/data/server/index_patterns/fetcher/lib/field_capabilities` in opensearch-project/OpenSearch-Dashboards.
#
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
