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
from importlib import resources
from string import Template

import orjson

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field

_NAMESPACE = uuid.UUID("6a1b0c1e-6f0e-5d59-9f10-0d6ae6a3c9a4")
INDEX_REFERENCE = "kibanaSavedObjectMeta.searchSourceJSON.index"

_KIBANA_TYPE_VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "visualization": "8.5.0", "dashboard": "8.9.0"}
_KIBANA_CORE_VERSION = "8.8.0"
_DASHBOARDS_TYPE_VERSIONS = {
    "index-pattern": "7.6.0", "search": "7.9.3", "visualization": "7.10.0", "dashboard": "7.9.3",
}  # fmt: skip


class DashboardProduct(StrEnum):
    """The product that imports the objects."""

    KIBANA = "kibana"
    DASHBOARDS = "opensearch-dashboards"

    @classmethod
    def from_engine_type(cls, engine_type: EngineType) -> DashboardProduct:
        """Return the product that belongs to an engine."""
        return cls.KIBANA if engine_type is EngineType.ELASTICSEARCH else cls.DASHBOARDS

    @property
    def label(self) -> str:
        return "Kibana" if self is DashboardProduct.KIBANA else "OpenSearch Dashboards"


@dataclass(frozen=True)
class SavedObject:
    """One saved object.

    Attributes:
        type: `index-pattern`, `search`, `visualization` or `dashboard`.
        id: Always the same for the same object, so that a second import replaces the first.
        attributes: Attributes in the schema of the type.
        references: The objects that it needs: `name` (as the attributes call it), `type` and `id`.
    """

    type: str
    id: str
    attributes: Json
    references: tuple[Json, ...] = ()

    @property
    def title(self) -> str:
        """The title that users see."""
        return str(self.attributes.get("name") or self.attributes["title"])

    def reference(self, name: str) -> Json:
        """Return a saved-object reference to this object, with the name that the referring object uses for it."""
        return {"name": name, "type": self.type, "id": self.id}

    def as_json(self, product: DashboardProduct) -> Json:
        """Convert the object to the content of a line of an export."""
        plain = {"type": self.type, "id": self.id, "attributes": self.attributes, "references": self.references}
        if product is DashboardProduct.KIBANA:
            of_type = _KIBANA_TYPE_VERSIONS[self.type]
            versions = {"coreMigrationVersion": _KIBANA_CORE_VERSION, "typeMigrationVersion": of_type}
            return plain | versions | {"managed": False}
        return plain | {"migrationVersion": {self.type: _DASHBOARDS_TYPE_VERSIONS[self.type]}}


def stable_id(*names: str) -> str:
    """Derive an id from the names of what the object shows, e.g. the index and `tokens`."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(names)))


def to_ndjson(objects: Iterable[SavedObject], product: DashboardProduct) -> bytes:
    """Format the objects as a file to import, one per line."""
    return b"".join(orjson.dumps(saved.as_json(product)) + b"\n" for saved in objects)


def json_string(value: object) -> str:
    """Encode a value as a JSON string: saved objects keep their inner state in this form."""
    return orjson.dumps(value).decode()


def _search_source(query: str = "", **index: str) -> Json:
    """Build `kibanaSavedObjectMeta` of an object; the query has Lucene's syntax, which both products pass on as is."""
    language = "lucene" if query else "kuery"
    source = {"query": {"query": query, "language": language}, "filter": []}
    return {"searchSourceJSON": json_string(source | index)}


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
    fields: Sequence[Json] | None = None,
) -> SavedObject:
    """Create a data view.

    Args:
        pattern: Index, alias or pattern.
        name: Name of the view in Kibana; OpenSearch Dashboards shows the pattern.
        time_field: Field of the time picker; None shows documents of any time.
        key: Part of the id of an additional view of the pattern; None for the view that users search in.
        formats: Field → format of its values.
        hidden: Fields that are neither fetched nor shown; `*` is allowed.
        fields: Fields of the view, which only OpenSearch Dashboards keeps (`view_fields`); None lets it request and
            save them when the view is opened.
    """
    attributes: Json = {
        "title": pattern,
        "sourceFilters": json_string([{"value": field} for field in hidden]),
        "fieldFormatMap": json_string(dict(formats or {})),
    }
    if time_field is not None:
        attributes["timeFieldName"] = time_field
    if product is DashboardProduct.KIBANA:
        # Let Kibana open the view without an error if the index does not exist yet.
        attributes |= {"name": name, "allowNoIndex": True}
    else:
        if key is not None:
            # Views have no names there, so the pattern must distinguish them. Its second part does not match any index.
            attributes["title"] = f"{pattern},*_by_{time_field}" if time_field else f"{pattern},*_at_any_time"
        if fields is not None:
            attributes["fields"] = json_string(list(fields))
    return SavedObject("index-pattern", stable_id("view", pattern, *([key] if key else [])), attributes)


def vector_patterns(fields: Mapping[str, VectorFieldMeta]) -> list[str]:
    """Return patterns that hide the vectors: the field, and the fields inside it if it holds passages."""
    return [
        pattern
        for name, meta in fields.items()
        for pattern in ([name] if meta.passages is None else [name, f"{name}.*"])
    ]


def vector_formats(fields: Mapping[str, VectorFieldMeta]) -> dict[str, Json]:
    """Return field formats for the vectors' metadata: a model's name instead of its fingerprint."""
    formats: dict[str, Json] = {}
    for name, meta in fields.items():
        meta_field = document_meta_field(name)
        entries = [{"key": meta.fingerprint, "value": f"{meta.model} ({meta.fingerprint[:8]})"}]
        lookup = {"id": "static_lookup", "params": {"lookupEntries": entries, "unknownKeyValue": None}}
        by_member = {"fingerprint": lookup, "tokens": NUMBER, "passages": NUMBER}
        formats |= {f"{meta_field}.{member}": shown for member, shown in by_member.items()}
    return formats


def saved_search(
    product: DashboardProduct, view: SavedObject, title: str, description: str, columns: Sequence[str]
) -> SavedObject:
    """Create a saved search that shows documents as a table, the best hit first unless the user sorts it."""
    attributes: Json = {
        "title": title,
        "description": description,
        "columns": ["_score", *columns],
        # Sort by score: in a view with a time field, both products would otherwise sort by that field.
        "sort": [["_score", "desc"]],
        "kibanaSavedObjectMeta": _search_source(indexRefName=INDEX_REFERENCE),
    }
    if product is DashboardProduct.KIBANA:
        attributes |= {"grid": {}, "hideChart": True, "isTextBasedQuery": False, "timeRestore": False}
    else:
        attributes |= {"hits": 0, "version": 1}
    return SavedObject("search", stable_id("search", view.id), attributes, (view.reference(INDEX_REFERENCE),))


@dataclass(frozen=True)
class DashboardPanel:
    """An object on a dashboard.

    Attributes:
        saved_object: A visualization or a saved search.
        width: Width in columns, of 48.
        height: Height in rows.
    """

    saved_object: SavedObject
    width: int = 24
    height: int = 12


def template_panels(name: str, views: Mapping[str, SavedObject], **values: str) -> list[DashboardPanel]:
    """Create the panels of the template `templates/NAME_panels.json`.

    They are made of aggregations, which both products support (unlike Lens).

    Args:
        views: Name of a data view in the template → the view.
        values: Values that replace `$name` in the template.
    """
    text = (resources.files(__package__) / "templates" / f"{name}_panels.json").read_text(encoding="utf-8")
    filled = Template(text).substitute({key: json_string(value)[1:-1] for key, value in values.items()})
    return [_panel(views[panel["view"]], panel) for panel in orjson.loads(filled)]


def _panel(view: SavedObject, panel: Json) -> DashboardPanel:
    title = panel["state"]["title"]
    attributes = {
        "title": title,
        "description": panel.get("description", ""),
        "visState": json_string(panel["state"]),
        "uiStateJSON": "{}",
        "version": 1,
        "kibanaSavedObjectMeta": _search_source(panel.get("query", ""), indexRefName=INDEX_REFERENCE),
    }
    identity = stable_id("visualization", view.id, title)
    visualization = SavedObject("visualization", identity, attributes, (view.reference(INDEX_REFERENCE),))
    return DashboardPanel(visualization, panel.get("width", 24), panel.get("height", 12))


# Both products divide the width into this many columns.
GRID_COLUMNS = 48
# In OpenSearch Dashboards, panels of older versions are migrated when they are shown.
_PANEL_VERSIONS = {DashboardProduct.KIBANA: "8.9.0", DashboardProduct.DASHBOARDS: "7.10.2"}


def dashboard(
    product: DashboardProduct, title: str, description: str, panels: Sequence[DashboardPanel], *, key: str, since: str
) -> SavedObject:
    """Create a dashboard with panels from left to right, row by row.

    Args:
        key: The name that the dashboard's id is derived from.
        since: Beginning of the time range that the dashboard shows at first, e.g. `now-7d`.
    """
    placed, references, version = [], [], _PANEL_VERSIONS[product]
    for number, (panel, position) in enumerate(zip(panels, _grid_positions(panels), strict=True), 1):
        name = f"panel_{number}"
        saved, grid = panel.saved_object, position | {"i": str(number)}
        state = {"version": version, "type": saved.type, "gridData": grid, "panelIndex": str(number)}
        placed.append(state | {"embeddableConfig": {}, "panelRefName": name})
        # Kibana expects the panel's index in front.
        references.append(saved.reference(f"{number}:{name}" if product is DashboardProduct.KIBANA else name))
    attributes: Json = {
        "title": title,
        "description": description,
        "panelsJSON": json_string(placed),
        "optionsJSON": json_string({"useMargins": True, "hidePanelTitles": False}),
        "timeRestore": True,
        "timeFrom": since,
        "timeTo": "now",
        "version": 1,
        "kibanaSavedObjectMeta": _search_source(),
    }
    if product is DashboardProduct.DASHBOARDS:
        attributes["hits"] = 0
    return SavedObject("dashboard", stable_id("dashboard", key), attributes, tuple(references))


def _grid_positions(panels: Sequence[DashboardPanel]) -> list[Json]:
    places: list[Json] = []
    x, y, row = 0, 0, 0
    for panel in panels:
        if x + panel.width > GRID_COLUMNS:
            x, y, row = 0, y + row, 0
        places.append({"x": x, "y": y, "w": panel.width, "h": panel.height})
        x, row = x + panel.width, max(row, panel.height)
    return places
