"""Saved objects as both products import them. What differs is the form of versions and references, not the content.

Kibana: `src/core/packages/saved-objects` and the `saved_objects` folder of each type in elastic/kibana. OpenSearch
Dashboards: `src/core/server/saved_objects` in opensearch-project/OpenSearch-Dashboards. Both migrate objects of older
versions when they are imported and refuse newer ones, so each type has the oldest version that its form goes with.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import orjson

from es_sbert.engines.protocol import Flavour, Json

_NAMESPACE = uuid.UUID("6a1b0c1e-6f0e-5d59-9f10-0d6ae6a3c9a4")
INDEX_REFERENCE = "kibanaSavedObjectMeta.searchSourceJSON.index"

_KIBANA_TYPE_VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "visualization": "8.5.0", "dashboard": "8.9.0"}
_KIBANA_CORE_VERSION = "8.8.0"
_DASHBOARDS_TYPE_VERSIONS = {
    "index-pattern": "7.6.0", "search": "7.9.3", "visualization": "7.10.0", "dashboard": "7.9.3",
}  # fmt: skip


class Product(StrEnum):
    """Who imports the objects."""

    KIBANA = "kibana"
    DASHBOARDS = "opensearch-dashboards"

    @classmethod
    def of(cls, flavour: Flavour) -> Product:
        """What goes with an engine."""
        return cls.KIBANA if flavour is Flavour.ELASTICSEARCH else cls.DASHBOARDS

    @property
    def label(self) -> str:
        return "Kibana" if self is Product.KIBANA else "OpenSearch Dashboards"


@dataclass(frozen=True)
class Reference:
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
    references: tuple[Reference, ...] = ()

    @property
    def title(self) -> str:
        """What people see of it."""
        return str(self.attributes.get("name") or self.attributes["title"])

    def as_json(self, product: Product) -> Json:
        """As a line of an export."""
        references = [{"name": r.name, "type": r.type, "id": r.id} for r in self.references]
        plain: Json = {"type": self.type, "id": self.id, "attributes": self.attributes, "references": references}
        if product is Product.KIBANA:
            return plain | {
                "coreMigrationVersion": _KIBANA_CORE_VERSION,
                "typeMigrationVersion": _KIBANA_TYPE_VERSIONS[self.type],
                "managed": False,
            }
        return plain | {"migrationVersion": {self.type: _DASHBOARDS_TYPE_VERSIONS[self.type]}}


def stable_id(*names: str) -> str:
    """An id made of what the object is about, e.g. the index and `tokens`."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(names)))


def ndjson(objects: Iterable[SavedObject], product: Product) -> bytes:
    """The objects as a file to import, one a line."""
    return b"".join(orjson.dumps(saved.as_json(product)) + b"\n" for saved in objects)


def search_source(view: SavedObject | None, *, query: str = "") -> tuple[Json, tuple[Reference, ...]]:
    """`kibanaSavedObjectMeta` of an object that searches, and its reference.

    Args:
        view: Where it searches; None where it does not itself, as a dashboard.
        query: In Lucene's syntax, which both products hand to the engine as it stands.
    """
    language = "lucene" if query else "kuery"
    source: Json = {"query": {"query": query, "language": language}, "filter": []}
    if view is None:
        return {"searchSourceJSON": dumps(source)}, ()
    source["indexRefName"] = INDEX_REFERENCE
    return {"searchSourceJSON": dumps(source)}, (Reference(INDEX_REFERENCE, view.type, view.id),)


def dumps(value: object) -> str:
    """JSON within JSON, as saved objects keep their inner state."""
    return orjson.dumps(value).decode()
