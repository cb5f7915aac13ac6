"""What must be true of a set of saved objects for either product to import and show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from jsonschema import Draft202012Validator

from es_sbert.diagnostics.saved_objects import GRID_COLUMNS, DashboardProduct

SCHEMAS = Path(__file__).parent / "schemas"


def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(orjson.loads((SCHEMAS / f"{name}.json").read_bytes()))


OBJECTS = {product: _validator(product.value) for product in DashboardProduct}
VIS_STATE = _validator("vis_state")


def check_objects(product: DashboardProduct, lines: Sequence[dict[str, Any]]) -> None:
    """Every object by its schema, and all of them together."""
    known = {(line["type"], line["id"]) for line in lines}
    assert len(known) == len(lines), "an id twice"
    seen: set[tuple[str, str]] = set()
    for line in lines:
        OBJECTS[product].validate(line)
        references = {reference["name"]: (reference["type"], reference["id"]) for reference in line["references"]}
        assert len(references) == len(line["references"]), "a reference twice"
        # In an export, what is needed stands before what needs it.
        assert set(references.values()) <= seen, f"{line['attributes']['title']} needs what is not there"
        seen.add((line["type"], line["id"]))
        used = _used(product, line["type"], line["attributes"])
        assert used == set(references), f"{line['attributes']['title']}: {used} but {set(references)}"


def _used(product: DashboardProduct, kind: str, attributes: dict[str, Any]) -> set[str]:
    """Names of the references that an object's inner state uses."""
    used = set()
    if "kibanaSavedObjectMeta" in attributes:
        source = orjson.loads(attributes["kibanaSavedObjectMeta"]["searchSourceJSON"])
        assert source["query"]["language"] in ("kuery", "lucene")
        assert "index" not in source, "an index by its id is no reference"
        used |= {source["indexRefName"]} if "indexRefName" in source else set()
    if kind == "visualization":
        state = orjson.loads(attributes["visState"])
        VIS_STATE.validate(state)
        assert state["title"] == attributes["title"]
        assert [agg["id"] for agg in state["aggs"]] == [str(number) for number in range(1, len(state["aggs"]) + 1)]
        for series in state["params"].get("seriesParams", []):
            [agg] = [agg for agg in state["aggs"] if agg["id"] == series["data"]["id"]]
            assert agg["schema"] == "metric"
    if kind == "dashboard":
        panels = orjson.loads(attributes["panelsJSON"])
        _check_grid(panels)
        prefix = {panel["panelRefName"]: f"{panel['panelIndex']}:" for panel in panels}
        used |= {(prefix[name] if product is DashboardProduct.KIBANA else "") + name for name in prefix}
        assert len(used) == len(panels)
    if kind == "index-pattern":
        assert all(set(one) == {"value"} for one in orjson.loads(attributes["sourceFilters"]))
        assert all("id" in form for form in orjson.loads(attributes["fieldFormatMap"]).values())
    return used


def _check_grid(panels: Sequence[dict[str, Any]]) -> None:
    """Panels stand side by side, within the width."""
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridData"]
        assert grid["i"] == panel["panelIndex"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert all(0 <= x < GRID_COLUMNS for x, _ in cells)
        assert not cells & taken, "panels overlap"
        taken |= cells
