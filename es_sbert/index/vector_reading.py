"""Read the vectors of hits: from `_source`, or from doc values where the index leaves the vectors out of `_source`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.document_vectors import read_stored_vectors
from es_sbert.index.mapping import vector_path
from es_sbert.index.text_template import MISSING, find_field
from es_sbert.index.vector_field import VectorField, check_passages_kept
from es_sbert.vectors import Vectors

# OpenSearch before 3.7 returns doc values of vectors only to scripts. These get the same array for all documents, so
# its numbers are copied. A search may cover indices without the field.
_OPENSEARCH_SCRIPT = (
    "def numbers = []; if (doc.containsKey(params.field) && doc[params.field].size() != 0) "
    "{ for (number in doc[params.field].value) { numbers.add(number) } } return numbers"
)


def doc_value_request(engine_type: EngineType, fields: Iterable[VectorField]) -> Json:
    """Build the members of a search body that request the vectors that `_source` lacks; none if it has all of them.

    Raises:
        IndexMismatch: see `check_passages_kept`.
    """
    names: list[str] = []
    for field in fields:
        check_passages_kept(field)
        if not field.meta.in_source and field.name not in names:
            names.append(field.name)
    if not names:
        return {}
    if engine_type is EngineType.ELASTICSEARCH:
        return {"docvalue_fields": names}
    scripts = {name: {"script": {"source": _OPENSEARCH_SCRIPT, "params": {"field": name}}} for name in names}
    return {"script_fields": scripts}


def vector_request(info: EngineInfo, fields: Sequence[VectorField]) -> Json:
    """Build the members of a search body that request the vectors of these fields and no other part of a document.

    Raises:
        IndexMismatch: see `check_passages_kept`.
    """
    # Indices may differ in what `_source` keeps of a field.
    kept = [field for field in fields if field.meta.in_source]
    paths = [path for field in kept for path in (field.name, vector_path(field.name, field.meta))]
    source = info.source_with_vectors(list(dict.fromkeys(paths))) if paths else False
    return {"_source": source, **doc_value_request(info.engine_type, fields)}


def stored_value(hit: Json, vector_field: str) -> Any:
    """The value of a vector field in a hit, from `_source` or as `doc_value_request` requests it; None without one."""
    value = find_field(hit.get("_source") or {}, vector_field)
    if value is not MISSING and value is not None:
        return value
    found = hit.get("fields", {}).get(vector_field) or [None]
    # Elasticsearch returns a list with the vector, a script of OpenSearch its numbers.
    return found if isinstance(found[0], int | float) else found[0]


def hit_vectors(hit: Json, field: VectorField) -> list[tuple[int, int, Vectors]]:
    """Read the vectors of a hit that has one, as `read_stored_vectors` does; `end` is 0 for a vector of a whole text.

    Raises:
        IndexMismatch: the engine did not return the vector.
    """
    value = stored_value(hit, field.name)
    if value is None:
        raise IndexMismatch(
            f"{hit['_index']} has a vector in {field.name} for the document {hit['_id']!r}, but does not return it",
            f"Load the documents into an index whose `_source` keeps {field.name}.",
        )
    return read_stored_vectors(value, 0)
