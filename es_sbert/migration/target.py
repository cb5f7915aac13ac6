"""The new index: its name and its body, made from the old one's. Pure functions."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence

from es_sbert.engines.protocol import Flavour, IndexState, Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.meta import META_KEY, VectorFieldMeta, document_meta_field
from es_sbert.index.schema import mapping_addition
from es_sbert.index.types import IndexType

# What an engine sets itself, or what belongs to that very index.
_NOT_COPIED = re.compile(
    r"index\.(uuid|creation_date.*|provided_name|version\..*|history\.uuid|resize\..*|blocks\..*"
    r"|routing\.allocation\.(initial_recovery|require|include|exclude)\._(id|name|ip|host)|shrink\..*|split\..*"
    r"|verified_before_close|verified_read_only|frozen|store\.snapshot\..*|lifecycle\..*)"
)
_KEPT_OF_META = ("fields",)


def target_name(alias: str, fingerprint: str, source: str) -> str:
    """`docs-1a2b3c4d` for the alias `docs`; with a number behind it where the old index is called that already."""
    name = f"{alias}-{fingerprint[:8]}"
    if source != name and not re.fullmatch(rf"{re.escape(name)}-\d+", source):
        return name
    number = source.removeprefix(name).removeprefix("-")
    return f"{name}-{int(number or 1) + 1}"


def target_body(flavour: Flavour, source: IndexState, fields: Mapping[str, VectorFieldMeta]) -> Json:
    """Body of `PUT /index`: settings and mapping of the old index, with these vector fields in place of its own.

    Args:
        fields: Vector fields of the new model.

    Raises:
        IndexMismatch: an OpenSearch index cannot hold both fields with a graph and fields without.
    """
    settings = {name: value for name, value in source.settings.items() if not _NOT_COPIED.fullmatch(name)}
    mappings = copy.deepcopy(source.mappings)
    meta: Json = mappings.get("_meta", {})
    meta[META_KEY] = {key: value for key, value in meta.get(META_KEY, {}).items() if key in _KEPT_OF_META}
    for name, wanted in fields.items():
        addition = mapping_addition(flavour, name, wanted, meta)
        meta = addition["_meta"]
        # Replaced whole: what the old field's type allowed may be nothing to the new one's.
        mappings["properties"] |= addition["properties"]
    mappings["_meta"] = meta
    if flavour is Flavour.OPENSEARCH:
        settings["index.knn"] = _knn(source, fields, meta)
    return {"settings": settings, "mappings": mappings}


def _knn(source: IndexState, fields: Mapping[str, VectorFieldMeta], meta: Json) -> str:
    kinds = {entry["index_type"] == IndexType.FLAT for entry in meta[META_KEY]["fields"].values()}
    if len(kinds) > 1:
        raise IndexMismatch(
            f"on OpenSearch the vector fields of {source.name} have a graph all of them, or none",
            f"Choose an --index-type for {', '.join(fields)} that goes with the other vector fields.",
        )
    return "false" if kinds == {True} else "true"


def ours(fields: Sequence[str]) -> frozenset[str]:
    """Top-level fields of a document that are left out of a copy: vectors of the old model, and what stands beside."""
    return frozenset(fields) | {document_meta_field(field) for field in fields}
