"""The indices that the page can search: those with vector fields, and their aliases."""

from __future__ import annotations

from es_sbert.engines.protocol import Json
from es_sbert.gateway.indices import read_indices
from es_sbert.index.meta import VectorFieldMeta, document_meta_field
from es_sbert.index.text import TextTemplate

# Of `GET /_all`: what `catalogue` reads.
WANTED = "filter_path=*.aliases,*.mappings._meta.es_sbert"


def catalogue(answer: Json, virtual_field: str) -> list[Json]:
    """Indices and aliases with vector fields, aliases first.

    Args:
        answer: The engine's, to `GET /_all`.
        virtual_field: By which the gateway's callers mean a vector field.

    Returns:
        Of each `name` and `fields`; of a field its `name`, the `semantic` name that queries use, `model`, whether it
        holds `passages`, the parts of its text's template (`parts`: pairs of literal and field), the fields named there
        (`texts`) and what hits need not carry (`hidden`).

    Raises:
        IndexMismatch: a damaged `_meta.es_sbert`.
    """
    searched = read_indices(answer, virtual_field).fields
    described = {
        index: [_field(name, meta, virtual_field) for name, meta in fields.items()]
        for index, fields in searched.items()
    }
    aliases: dict[str, list[Json]] = {}
    for index, fields in described.items():
        for alias in answer[index].get("aliases", {}):
            aliases.setdefault(alias, fields)
    return [
        {"name": name, "fields": fields} for found in (aliases, described) for name, fields in sorted(found.items())
    ]


def hidden_fields(fields: dict[str, VectorFieldMeta]) -> set[str]:
    """Fields that hits cannot be narrowed down by: vectors, what stands beside them, and embedded texts."""
    texts = {text for meta in fields.values() for text in _template(meta).fields}
    return {*fields, *(document_meta_field(name) for name in fields), *texts}


def _field(name: str, meta: VectorFieldMeta, virtual_field: str) -> Json:
    template = _template(meta)
    return {
        "name": name,
        "semantic": f"{virtual_field}.{name}",
        "model": meta.model,
        "passages": meta.passages is not None,
        "parts": template.parts,
        "texts": template.fields,
        "hidden": [name, document_meta_field(name)],
    }


def _template(meta: VectorFieldMeta) -> TextTemplate:
    """Of the embedded text; before the first load nobody has said which it is."""
    return TextTemplate("", ()) if meta.text is None else TextTemplate.parse(meta.text)
