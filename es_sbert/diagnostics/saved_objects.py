"""Saved objects of Kibana and OpenSearch Dashboards for an index: data views, a saved search and dashboards, as NDJSON.

Both products use the same content but different version and reference fields. See `src/core/packages/saved-objects`
and the `saved_objects` folder of each type in elastic/kibana, and `src/core/server/saved_objects` in
opensearch-project/OpenSearch-Dashboards. Both migrate objects of older versions on import and reject newer ones, so
each type has the oldest version that supports its form. `dashboard_templates/` has what differs between the products,
the panels and the formats of fields. Panels are made of aggregations, which both products support (unlike Lens).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from string import Template
from typing import Any

import orjson

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.gateway.settings import check_index_name
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field, vector_fields
from es_sbert.index.text_template import TextTemplate, format_vector_field_option
from es_sbert.index.vector_field import require_index

# Both products divide the width of a dashboard into this many columns.
GRID_COLUMNS = 48
_NAMESPACE = uuid.UUID("6a1b0c1e-6f0e-5d59-9f10-0d6ae6a3c9a4")
_INDEX_REFERENCE = "kibanaSavedObjectMeta.searchSourceJSON.index"
_NUMBER: Json = {"id": "number", "params": {"pattern": "0,0"}}


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
        attributes: Attributes in the schema of the type, without those that are always the same for a product.
        references: The objects that it needs: `name` (as the attributes call it), `type` and `id`.
        size: Width in columns and height in rows on a dashboard.
    """

    type: str
    id: str
    attributes: Json
    references: tuple[Json, ...] = ()
    size: tuple[int, int] = (24, 12)

    def reference(self, name: str = _INDEX_REFERENCE) -> Json:
        """Return a saved-object reference to this object, with the name that the referring object uses for it."""
        return {"name": name, "type": self.type, "id": self.id}


def to_ndjson(objects: Iterable[SavedObject], product: DashboardProduct) -> bytes:
    """Format the objects as a file to import, one per line."""
    members, attributes = (_template(f"{product}.json")[name] for name in ("members", "attributes"))
    return b"".join(
        orjson.dumps(
            {
                "type": saved.type,
                "id": saved.id,
                "attributes": saved.attributes | attributes[saved.type],
                "references": saved.references,
                **members[saved.type],
            }
        )
        + b"\n"
        for saved in objects
    )


def _template(name: str, **values: str) -> Any:
    """Read a JSON template; `$name` in it is replaced by a value."""
    text = (resources.files(__package__) / "dashboard_templates" / name).read_text(encoding="utf-8")
    return orjson.loads(Template(text).substitute({key: _json_string(value)[1:-1] for key, value in values.items()}))


def build_saved_objects(engine: Engine, index: str, *, searches: str) -> tuple[list[SavedObject], list[str]]:
    """Build the objects for the current state of an index.

    Args:
        index: Index or alias. The objects keep the given name, so an alias may be moved later.
        searches: Name of the gateway's log, without the month.

    Returns:
        The objects, each after those that it needs; and notes about parts that were left out or lack a setting.

    Raises:
        IndexMissing: the index does not exist.
        IndexMismatch: the index has no vector field that es-sbert fills.
        UsageError: a name is invalid.
        EngineError: the engine failed.
    """
    state = require_index(engine, index)
    fields = vector_fields(state.mappings, state.name)
    if not fields:
        raise IndexMismatch(
            f"{index} has no vector field that es-sbert fills", f"Load it first: `es-sbert ingest --index {index}`."
        )
    product = DashboardProduct.from_engine_type(engine.info.engine_type)

    months = f"{check_index_name(searches)}-*"
    notes = []
    objects = load_objects(product, index, fields)
    if missing_log := _missing_reason(engine, months):
        notes.append(
            f"Without the dashboard of searches ({missing_log}): `es-sbert serve --search-log FILE` writes their log, "
            "and a shipper sends it (docs/kibana.md)"
        )
    else:
        objects += search_objects(product, months)
    uncalibrated = [name for name, meta in fields.items() if meta.min_cosine is None]
    if uncalibrated:
        calibrate = f"es-sbert index calibrate {index}"
        commands = " and ".join(f"`{calibrate}{format_vector_field_option(name)} --save`" for name in uncalibrated)
        notes.append(
            "Without a minimum cosine, semantic queries count documents however distant they are, and cannot be "
            f"negated: measure one with {commands}."
        )
    return objects, notes


def _missing_reason(engine: Engine, pattern: str) -> str:
    """Return the reason why no index matches a pattern; empty if one does."""
    try:
        found = engine.request_api(f"/_resolve/index/{pattern}")
    except AccessDenied:
        return f"this user may not see {pattern}"
    has_index = found is not None and (found.get("indices") or found.get("aliases"))
    return "" if has_index else f"there is no {pattern}"


def load_objects(product: DashboardProduct, index: str, fields: Mapping[str, VectorFieldMeta]) -> list[SavedObject]:
    """Build the views, the saved search and the dashboard of an index.

    Args:
        fields: Vector fields of the index, at least one.
    """
    formats: dict[str, Json] = {}
    hidden, columns, metadata = [], ["_score"], []
    for name, meta in fields.items():
        meta_field = document_meta_field(name)
        # A model's name instead of its fingerprint.
        entries = [{"key": meta.fingerprint, "value": f"{meta.model} ({meta.fingerprint[:8]})"}]
        lookup = {"id": "static_lookup", "params": {"lookupEntries": entries, "unknownKeyValue": None}}
        by_member = {"fingerprint": lookup, "tokens": _NUMBER, "passages": _NUMBER}
        formats |= {f"{meta_field}.{member}": shown for member, shown in by_member.items()}
        hidden += [name] if meta.passages is None else [name, f"{name}.*"]
        columns += [] if meta.text is None else TextTemplate.parse(meta.text).fields
        metadata += [f"{meta_field}.{member}" for member in ("tokens", "truncated", "embedded_at", "fingerprint")]
    view = _data_view(product, index, f"{index} (es-sbert)", None, formats, hidden)
    panels = []
    for field, meta in fields.items():
        values = {"title": f"{index}.{field}", "meta": document_meta_field(field), "fingerprint": meta.fingerprint}
        panels += _panels("field", view, **values)
    panels.append(_saved_search(view, f"{index}: documents", list(dict.fromkeys([*columns, *metadata]))))
    models = "; ".join(f"{field}: {meta.model} ({meta.fingerprint[:8]})" for field, meta in fields.items())
    about = f"The embeddings of {index} and their models. {models}."
    board = _dashboard(product, f"{index}: load", about, panels, key=f"load/{index}")
    return [view, *panels, board]


def search_objects(product: DashboardProduct, pattern: str) -> list[SavedObject]:
    """Build the view of a gateway's log, and the dashboard of its searches.

    Args:
        pattern: Index pattern of all months of the log.
    """
    formats = _template("formats.json")["searches"]
    view = _data_view(product, pattern, "Searches (es-sbert)", "@timestamp", formats)
    panels = _panels("search", view)
    about = "Searches through the gateway, how long they took, and searches without hits."
    return [view, *panels, _dashboard(product, "Searches", about, panels, key=f"searches/{pattern}", since="now-7d")]


def _stable_id(*names: str) -> str:
    """Derive an id from the names of what the object shows, e.g. the index and `tokens`."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(names)))


def _json_string(value: object) -> str:
    """Encode a value as a JSON string: saved objects keep their inner state in this form."""
    return orjson.dumps(value).decode()


def _search_source(query: str = "", **index: str) -> Json:
    """Build `kibanaSavedObjectMeta` of an object; the query has Lucene's syntax, which both products pass on as is."""
    language = "lucene" if query else "kuery"
    source = {"query": {"query": query, "language": language}, "filter": []}
    return {"searchSourceJSON": _json_string(source | index)}


def _data_view(
    product: DashboardProduct,
    pattern: str,
    name: str,
    time_field: str | None,
    formats: Json,
    hidden: Sequence[str] = (),
) -> SavedObject:
    """Create a data view.

    Args:
        pattern: Index, alias or pattern.
        name: Name of the view in Kibana. OpenSearch Dashboards has no names, and shows the pattern.
        time_field: Field of the time picker; None shows documents of any time.
        formats: Field → format of its values.
        hidden: Fields that are neither fetched nor shown; `*` is allowed.
    """
    attributes: Json = {
        "title": pattern,
        "sourceFilters": _json_string([{"value": field} for field in hidden]),
        "fieldFormatMap": _json_string(formats),
    }
    if time_field is not None:
        attributes["timeFieldName"] = time_field
    if product is DashboardProduct.KIBANA:
        attributes["name"] = name
    return SavedObject("index-pattern", _stable_id("view", pattern), attributes)


def _saved_search(view: SavedObject, title: str, columns: Sequence[str]) -> SavedObject:
    """Create a saved search that shows documents as a table, the best hit first unless the user sorts it."""
    attributes: Json = {
        "title": title,
        "description": "Texts without their vectors, the best hit first.",
        "columns": columns,
        # Sort by score: in a view with a time field, both products would otherwise sort by that field.
        "sort": [["_score", "desc"]],
        "kibanaSavedObjectMeta": _search_source(indexRefName=_INDEX_REFERENCE),
    }
    return SavedObject("search", _stable_id("search", view.id), attributes, (view.reference(),), (GRID_COLUMNS, 18))


def _panels(name: str, view: SavedObject, **values: str) -> list[SavedObject]:
    """Create the panels of the template `dashboard_templates/NAME_panels.json`.

    Args:
        view: The data view of all panels.
        values: Values that replace `$name` in the template.
    """
    panels = []
    for panel in _template(f"{name}_panels.json", **values):
        title = panel["state"]["title"]
        attributes = {
            "title": title,
            "description": panel.get("description", ""),
            "visState": _json_string(panel["state"]),
            "uiStateJSON": _json_string({"vis": {"colors": panel["colors"]}} if "colors" in panel else {}),
            "version": 1,
            "kibanaSavedObjectMeta": _search_source(panel.get("query", ""), indexRefName=_INDEX_REFERENCE),
        }
        identity, size = _stable_id("visualization", view.id, title), (panel.get("width", 24), panel.get("height", 12))
        panels.append(SavedObject("visualization", identity, attributes, (view.reference(),), size))
    return panels


def _dashboard(
    product: DashboardProduct,
    title: str,
    description: str,
    panels: Sequence[SavedObject],
    *,
    key: str,
    since: str | None = None,
) -> SavedObject:
    """Create a dashboard with panels from left to right, row by row.

    Args:
        key: The name that the dashboard's id is derived from.
        since: Beginning of the time range that the dashboard shows at first, e.g. `now-7d`; None if its data view has
            no time field.
    """
    placed, references, version = [], [], _template(f"{product}.json")["panel_version"]
    x, y, row = 0, 0, 0
    for number, panel in enumerate(panels, 1):
        width, height = panel.size
        if x + width > GRID_COLUMNS:
            x, y, row = 0, y + row, 0
        name, grid = f"panel_{number}", {"x": x, "y": y, "w": width, "h": height, "i": str(number)}
        x, row = x + width, max(row, height)
        # In OpenSearch Dashboards, panels of older versions are migrated when they are shown.
        state = {"version": version, "type": panel.type, "gridData": grid}
        placed.append(state | {"panelIndex": str(number), "embeddableConfig": {}, "panelRefName": name})
        # Kibana expects the panel's index in front.
        references.append(panel.reference(f"{number}:{name}" if product is DashboardProduct.KIBANA else name))
    attributes: Json = {
        "title": title,
        "description": description,
        "panelsJSON": _json_string(placed),
        "optionsJSON": _json_string({"useMargins": True, "hidePanelTitles": False}),
        **({"timeRestore": False} if since is None else {"timeRestore": True, "timeFrom": since, "timeTo": "now"}),
        "version": 1,
        "kibanaSavedObjectMeta": _search_source(),
    }
    return SavedObject("dashboard", _stable_id("dashboard", key), attributes, tuple(references))
