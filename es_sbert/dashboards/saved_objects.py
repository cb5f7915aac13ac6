"""Saved objects of Kibana and OpenSearch Dashboards: data views, saved searches, dashboards, and their NDJSON form.

Both products use the same content but different version and reference fields. See `src/core/packages/saved-objects`
and the `saved_objects` folder of each type in elastic/kibana, and `src/core/server/saved_objects` in
opensearch-project/OpenSearch-Dashboards. Both migrate objects of older versions on import and reject newer ones, so
each type has the oldest version that supports its form.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import orjson

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field

_NAMESPACE = uuid.UUID("6a1b0c1e-6f0e-5d59-9f10-0d6ae6a3c9a4")
INDEX_REFERENCE = "kibanaSavedObjectMeta.searchSourceJSON.index"

_KIBANA_TYPE_VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "visualization": "8.5.0", "dashboard": "8.9.0"}
_KIBANA_CORE_VERSION = "8.8.0"
_DASHBOARDS_TYPE_VERSIONS = {
    "index-pattern": "7.6.0", "search": "7.9.3", "visualization": "7.10.0", "dashboard": "7.9.3",
}  # fmt: skip


class DashboardProduct(StrEnum):
    """Who imports the objects."""

    KIBANA = "kibana"
    DASHBOARDS = "opensearch-dashboards"

    @classmethod
    def of(cls, engine_type: EngineType) -> DashboardProduct:
        """What goes with an engine."""
        return cls.KIBANA if engine_type is EngineType.ELASTICSEARCH else cls.DASHBOARDS

    @property
    def label(self) -> str:
        return "Kibana" if self is DashboardProduct.KIBANA else "OpenSearch Dashboards"


@dataclass(frozen=True)
class ObjectReference:
    """An object that another one needs; `name` is how the other one calls it."""

    name: str
    type: str
    id: str


@dataclass(frozen=True)
class SavedObject:
    """One saved object.

    Attributes:
        type: `index-pattern`, `search`, `visualization` or `dashboard`.
        id: Always the same for the same thing, so that a second import replaces the first.
        attributes: As the type's own schema wants them.
        references: What it needs.
    """

    type: str
    id: str
    attributes: Json
    references: tuple[ObjectReference, ...] = ()

    @property
    def title(self) -> str:
        """What people see of it."""
        return str(self.attributes.get("name") or self.attributes["title"])

    def as_json(self, product: DashboardProduct) -> Json:
        """As a line of an export."""
        references = [{"name": r.name, "type": r.type, "id": r.id} for r in self.references]
        plain: Json = {"type": self.type, "id": self.id, "attributes": self.attributes, "references": references}
        if product is DashboardProduct.KIBANA:
            return plain | {
                "coreMigrationVersion": _KIBANA_CORE_VERSION,
                "typeMigrationVersion": _KIBANA_TYPE_VERSIONS[self.type],
                "managed": False,
            }
        return plain | {"migrationVersion": {self.type: _DASHBOARDS_TYPE_VERSIONS[self.type]}}


def stable_id(*names: str) -> str:
    """An id made of what the object is about, e.g. the index and `tokens`."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(names)))


def to_ndjson(objects: Iterable[SavedObject], product: DashboardProduct) -> bytes:
    """The objects as a file to import, one a line."""
    return b"".join(orjson.dumps(saved.as_json(product)) + b"\n" for saved in objects)


def search_source(view: SavedObject | None, *, query: str = "") -> tuple[Json, tuple[ObjectReference, ...]]:
    """`kibanaSavedObjectMeta` of an object that searches, and its reference.

    Args:
        view: Where it searches; None where it does not itself, as a dashboard.
        query: In Lucene's syntax, which both products hand to the engine as it stands.
    """
    language = "lucene" if query else "kuery"
    source: Json = {"query": {"query": query, "language": language}, "filter": []}
    if view is None:
        return {"searchSourceJSON": json_string(source)}, ()
    source["indexRefName"] = INDEX_REFERENCE
    return {"searchSourceJSON": json_string(source)}, (ObjectReference(INDEX_REFERENCE, view.type, view.id),)


def json_string(value: object) -> str:
    """JSON within JSON, as saved objects keep their inner state."""
    return orjson.dumps(value).decode()


NUMBER: Json = {"id": "number", "params": {"pattern": "0,0"}}
DECIMAL: Json = {"id": "number", "params": {"pattern": "0,0.[0]"}}


def data_view(
    product: DashboardProduct,
    pattern: str,
    name: str,
    *,
    time_field: str | None = None,
    key: str | None = None,
    formats: Mapping[str, Json] | None = None,
    hidden: Sequence[str] = (),
) -> SavedObject:
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
        "sourceFilters": json_string([{"value": field} for field in hidden]),
        "fieldFormatMap": json_string(dict(formats or {})),
    }
    if time_field is not None:
        attributes["timeFieldName"] = time_field
    if product is DashboardProduct.KIBANA:
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


def saved_search(
    product: DashboardProduct, view: SavedObject, title: str, description: str, columns: Sequence[str]
) -> SavedObject:
    """Documents as a table. Without a sort of its own it shows the best first: a search by meaning has an order."""
    meta, references = search_source(view)
    attributes: Json = {
        "title": title,
        "description": description,
        "columns": list(columns),
        "sort": [],
        "kibanaSavedObjectMeta": meta,
    }
    if product is DashboardProduct.KIBANA:
        attributes |= {"grid": {}, "hideChart": True, "isTextBasedQuery": False, "timeRestore": False}
    else:
        attributes |= {"hits": 0, "version": 1}
    return SavedObject("search", stable_id("search", view.id), attributes, references)


# Both products divide the width into so many columns.
GRID_COLUMNS = 48
# In OpenSearch Dashboards, panels of older versions are migrated when they are shown.
_PANEL_VERSIONS = {DashboardProduct.KIBANA: "8.9.0", DashboardProduct.DASHBOARDS: "7.10.2"}


@dataclass(frozen=True)
class DashboardPanel:
    """An object on a dashboard.

    Attributes:
        shows: A visualisation or a saved search.
        width: Columns of 48.
        height: Rows.
    """

    saved_object: SavedObject
    width: int = 24
    height: int = 12


def dashboard(
    product: DashboardProduct, title: str, description: str, panels: Sequence[DashboardPanel], *, key: str, since: str
) -> SavedObject:
    """Panels from left to right, row by row.

    Args:
        key: What its id is made of.
        since: Beginning of the time that it shows first, e.g. `now-7d`.
    """
    placed = list(zip(panels, _grid_positions(panels), strict=True))
    meta, _ = search_source(None)
    attributes: Json = {
        "title": title,
        "description": description,
        "panelsJSON": json_string(
            [_panel_json(product, number, p, place) for number, (p, place) in enumerate(placed, 1)]
        ),
        "optionsJSON": json_string({"useMargins": True, "hidePanelTitles": False}),
        "timeRestore": True,
        "timeFrom": since,
        "timeTo": "now",
        "version": 1,
        "kibanaSavedObjectMeta": meta,
    }
    if product is DashboardProduct.DASHBOARDS:
        attributes["hits"] = 0
    references = tuple(
        ObjectReference(_reference_name(product, number), panel.saved_object.type, panel.saved_object.id)
        for number, panel in enumerate(panels, 1)
    )
    return SavedObject("dashboard", stable_id("dashboard", key), attributes, references)


def _reference_name(product: DashboardProduct, number: int) -> str:
    # Kibana puts the panel's own index in front.
    return f"{number}:panel_{number}" if product is DashboardProduct.KIBANA else f"panel_{number}"


def _panel_json(product: DashboardProduct, number: int, panel: DashboardPanel, place: Json) -> Json:
    return {
        "version": _PANEL_VERSIONS[product],
        "type": panel.saved_object.type,
        "gridData": place | {"i": str(number)},
        "panelIndex": str(number),
        "embeddableConfig": {},
        "panelRefName": f"panel_{number}",
    }


def _grid_positions(panels: Sequence[DashboardPanel]) -> list[Json]:
    places: list[Json] = []
    x, y, row = 0, 0, 0
    for panel in panels:
        if x + panel.width > GRID_COLUMNS:
            x, y, row = 0, y + row, 0
        places.append({"x": x, "y": y, "w": panel.width, "h": panel.height})
        x, row = x + panel.width, max(row, panel.height)
    return places
