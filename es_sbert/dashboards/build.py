"""Everything that is installed for an index."""

from __future__ import annotations

from dataclasses import dataclass

from es_sbert.dashboards.of_loads import index_objects, reports_view
from es_sbert.dashboards.of_searches import search_objects
from es_sbert.dashboards.saved_objects import Product, SavedObject
from es_sbert.engines.protocol import Engine
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.gateway.search_log.record import all_months, check_index_name
from es_sbert.index.ensure import missing_index
from es_sbert.index.schema import vector_fields


@dataclass(frozen=True)
class Bundle:
    """Objects for one product.

    Attributes:
        product: Which.
        objects: All of them, each after those that it needs.
        notes: What was left out, and how to get it.
    """

    product: Product
    objects: tuple[SavedObject, ...]
    notes: tuple[str, ...]


def build(engine: Engine, index: str, *, searches: str, reports: str) -> Bundle:
    """The objects for an index as it is now.

    Args:
        index: Index or alias; the objects keep the name that is given, so an alias may move.
        searches: Name of the gateway's log, without the month.
        reports: Index of the loads' reports.

    Raises:
        IndexMissing: no such index.
        IndexMismatch: it has no vector field of ours.
        UsageError: a name that is none.
        EngineError: the engine failed.
    """
    state = engine.get_index(index)
    if state is None:
        raise missing_index(index, engine)
    fields = vector_fields(state.mappings, state.name)
    if not fields:
        raise IndexMismatch(
            f"{index} has no vector field that es-sbert fills", f"Load it first: `es-sbert ingest --index {index}`."
        )
    product = Product.of(engine.info.flavour)
    months = all_months(check_index_name(searches))
    found, why = _looked_up(engine, check_index_name(reports))
    notes = []
    objects: list[SavedObject] = []
    view = reports_view(product, reports) if found else None
    if view is not None:
        objects.append(view)
    else:
        notes.append(f"without reports of loads ({why}): `es-sbert ingest --report-index {reports}` writes them")
    objects += index_objects(product, index, fields, view, state.name)
    found, why = _looked_up(engine, months)
    if found:
        objects += search_objects(product, months)
    else:
        notes.append(
            f"without the dashboard of searches ({why}): `es-sbert serve --search-log {searches}` writes their log"
        )
    return Bundle(product, tuple(objects), tuple(notes))


def _looked_up(engine: Engine, pattern: str) -> tuple[bool, str]:
    """Whether an index of such a name can be seen, and why not."""
    try:
        found = engine.ask(f"/_resolve/index/{pattern}")
    except AccessDenied:
        return False, f"this user may not see {pattern}"
    if found is not None and (found.get("indices") or found.get("aliases")):
        return True, ""
    return False, f"there is no {pattern}"
