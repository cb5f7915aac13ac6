"""A dashboard: panels on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from es_sbert.dashboards.saved_objects import Product, Reference, SavedObject, dumps, search_source, stable_id
from es_sbert.engines.protocol import Json

# Both products divide the width into so many columns.
COLUMNS = 48
# In OpenSearch Dashboards, panels of older versions are migrated when they are shown.
_PANEL_VERSIONS = {Product.KIBANA: "8.9.0", Product.DASHBOARDS: "7.10.2"}


@dataclass(frozen=True)
class Panel:
    """An object on a dashboard.

    Attributes:
        shows: A visualisation or a saved search.
        width: Columns of 48.
        height: Rows.
    """

    shows: SavedObject
    width: int = 24
    height: int = 12


def dashboard(product: Product, title: str, description: str, panels: Sequence[Panel], *, key: str,
              since: str) -> SavedObject:  # fmt: skip
    """Panels from left to right, row by row.

    Args:
        key: What its id is made of.
        since: Beginning of the time that it shows first, e.g. `now-7d`.
    """
    placed = list(zip(panels, _places(panels), strict=True))
    meta, _ = search_source(None)
    attributes: Json = {
        "title": title,
        "description": description,
        "panelsJSON": dumps([_panel(product, number, p, place) for number, (p, place) in enumerate(placed, 1)]),
        "optionsJSON": dumps({"useMargins": True, "hidePanelTitles": False}),
        "timeRestore": True,
        "timeFrom": since,
        "timeTo": "now",
        "version": 1,
        "kibanaSavedObjectMeta": meta,
    }
    if product is Product.DASHBOARDS:
        attributes["hits"] = 0
    references = tuple(
        Reference(_reference_name(product, number), panel.shows.type, panel.shows.id)
        for number, panel in enumerate(panels, 1)
    )
    return SavedObject("dashboard", stable_id("dashboard", key), attributes, references)


def _reference_name(product: Product, number: int) -> str:
    # Kibana puts the panel's own index in front.
    return f"{number}:panel_{number}" if product is Product.KIBANA else f"panel_{number}"


def _panel(product: Product, number: int, panel: Panel, place: Json) -> Json:
    return {
        "version": _PANEL_VERSIONS[product],
        "type": panel.shows.type,
        "gridData": place | {"i": str(number)},
        "panelIndex": str(number),
        "embeddableConfig": {},
        "panelRefName": f"panel_{number}",
    }


def _places(panels: Sequence[Panel]) -> list[Json]:
    places: list[Json] = []
    x, y, row = 0, 0, 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, row = 0, y + row, 0
        places.append({"x": x, "y": y, "w": panel.width, "h": panel.height})
        x, row = x + panel.width, max(row, panel.height)
    return places
