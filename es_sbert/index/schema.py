"""Mappings and settings of an index with a vector field: pure functions over the templates in `mappings/`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.layout import passages_property, vector_property
from es_sbert.index.meta import META_KEY, VectorFieldMeta, document_meta_field
from es_sbert.index.types import IndexType
from es_sbert.mappings import read_body

VECTOR_TYPES = {Flavour.ELASTICSEARCH: "dense_vector", Flavour.OPENSEARCH: "knn_vector"}
_PLACEHOLDER = "{vector_field}"


def index_body(flavour: Flavour, vector_field: str, meta: VectorFieldMeta, *, shards: int | None = None,
               replicas: int | None = None) -> Json:  # fmt: skip
    """Body of `PUT /index` for an index with this vector field.

    Args:
        shards, replicas: The engine's defaults where None.
    """
    body = copy.deepcopy(read_body(f"{flavour}/index"))
    settings: Json = body["settings"]
    if flavour is Flavour.OPENSEARCH and meta.index_type == IndexType.FLAT:
        # With index.knn on, OpenSearch builds a graph for every vector field.
        settings["index.knn"] = False
    if shards is not None:
        settings["index.number_of_shards"] = shards
    if replicas is not None:
        settings["index.number_of_replicas"] = replicas
    mappings: Json = body["mappings"]
    mappings |= mapping_addition(flavour, vector_field, meta, mappings["_meta"])
    return body


def mapping_addition(flavour: Flavour, vector_field: str, meta: VectorFieldMeta, existing_meta: Json) -> Json:
    """Body of `PUT /index/_mapping` that adds this vector field, its document object and its `_meta`."""
    properties = read_body(f"{flavour}/index")["mappings"]["properties"]
    return {
        "_meta": merged_meta(existing_meta, vector_field, meta),
        "properties": {
            vector_field: _field_property(flavour, properties[_PLACEHOLDER], meta),
            document_meta_field(vector_field): copy.deepcopy(properties[document_meta_field(_PLACEHOLDER)]),
        },
    }


def _field_property(flavour: Flavour, template: Json, meta: VectorFieldMeta) -> Json:
    vector = _vector_property(flavour, template, meta)
    return vector if meta.passages is None else passages_property(vector)


def _vector_property(flavour: Flavour, template: Json, meta: VectorFieldMeta) -> Json:
    field = copy.deepcopy(template)
    if flavour is Flavour.ELASTICSEARCH:
        field["dims"] = meta.dimensions
        field["index_options"]["type"] = meta.index_type
        return field
    field["dimension"] = meta.dimensions
    if meta.index_type == IndexType.FLAT:
        del field["method"]
        field["space_type"] = "cosinesimil"
    elif meta.index_type == IndexType.INT8_HNSW:
        field["method"]["parameters"]["encoder"] = {"name": "sq", "parameters": {"bits": 7}}
    return field


def merged_meta(existing_meta: Json, vector_field: str, meta: VectorFieldMeta) -> Json:
    """A mapping's `_meta` with this field's entry set; an update replaces `_meta` whole, so all else is kept."""
    ours = existing_meta.get(META_KEY, {})
    # Left out where it says nothing: indices of earlier versions stay as they are.
    entry = meta.model_dump(mode="json", exclude={"passages"} if meta.passages is None else None)
    return existing_meta | {META_KEY: ours | {"fields": ours.get("fields", {}) | {vector_field: entry}}}


def vector_fields(mappings: Json, index: str) -> dict[str, VectorFieldMeta]:
    """Vector fields that es-sbert fills, by name.

    Raises:
        IndexMismatch: `_meta.es_sbert` was damaged by hand.
    """
    try:
        entries = mappings.get("_meta", {}).get(META_KEY, {}).get("fields", {})
        return {name: VectorFieldMeta.model_validate(entry) for name, entry in entries.items()}
    except (ValidationError, AttributeError) as error:
        raise IndexMismatch(
            f"_meta.{META_KEY} in the mapping of {index} cannot be read", "Load the documents into a new index."
        ) from error


def plain_vector_fields(flavour: Flavour, mappings: Json, index: str) -> list[str]:
    """Top-level vector fields that other programs fill, one vector a document.

    Raises:
        IndexMismatch: `_meta.es_sbert` was damaged by hand.
    """
    own = vector_fields(mappings, index)
    properties = mappings.get("properties", {})
    return [
        name for name, field in properties.items() if name not in own and field.get("type") == VECTOR_TYPES[flavour]
    ]


def stored_dimensions(flavour: Flavour, field: Json) -> int | None:
    """Dimensions of a vector field's mapping; None where the field holds no vectors."""
    field = vector_property(field)
    if field.get("type") != VECTOR_TYPES[flavour]:
        return None
    dimensions = field.get("dims" if flavour is Flavour.ELASTICSEARCH else "dimension")
    return int(dimensions) if dimensions is not None else None


def stored_similarity(flavour: Flavour, field: Json) -> str:
    """Similarity of a vector field's mapping in the engine's words."""
    field = vector_property(field)
    if flavour is Flavour.ELASTICSEARCH:
        return str(field.get("similarity", "none"))
    return str(field.get("method", {}).get("space_type") or field.get("space_type") or "l2")


def check_field_name(vector_field: str) -> None:
    """Refuse names that the engines read as paths, patterns or their own fields.

    Raises:
        UsageError: the name has such a character.
    """
    if not vector_field or vector_field[0] == "_" or any(c in vector_field for c in ".*?,{}'\"\\ \t\n"):
        raise UsageError(
            f"{vector_field!r} is no name for a vector field",
            "Use letters, digits and underscores, with no underscore in front.",
        )


def is_in_source(name: str, mappings: Mapping[str, Any]) -> bool:
    """Whether the index keeps a field in `_source`."""
    source = mappings.get("_source", {})
    if source.get("enabled", True) is False:
        return False

    def matches(pattern: str) -> bool:
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")

    includes = source.get("includes", [])
    return (not includes or any(map(matches, includes))) and not any(map(matches, source.get("excludes", [])))
