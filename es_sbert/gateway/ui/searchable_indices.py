"""List the indices and aliases that have vector fields."""

from __future__ import annotations

from es_sbert.engines.protocol import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field, vector_fields
from es_sbert.index.text_template import TextTemplate

# The parts of `GET /_all` that are read here.
FILTER_PATH = "filter_path=*.aliases,*.mappings._meta.es_sbert"


def list_searchable_indices(answer: Json, virtual_field: str) -> tuple[list[Json], list[str]]:
    """Indices and aliases with vector fields.

    Args:
        answer: The response to `GET /_all`.
        virtual_field: Name of the virtual field.

    Returns:
        The indices and aliases, aliases first, each with `name` and `fields`. A field has its `name`, the `semantic`
        name for queries, the object with the vector's metadata (`meta`), `model`, whether it holds `passages`, the
        `parts` of its text template (pairs of literal and field), the fields in it (`texts`) and the fields that hits
        need not return (`hidden`).

        Problems with indices that are left out: anyone who may write an index may put an invalid mapping there, which
        must not keep others from searching theirs.
    """
    described: dict[str, list[Json]] = {}
    aliases: dict[str, list[Json]] = {}
    problems: list[str] = []
    for index, state in sorted(answer.items()):
        try:
            metas = vector_fields(state.get("mappings", {}), index)
            fields = [_field_entry(name, meta, virtual_field) for name, meta in metas.items()]
        except (IndexMismatch, UsageError) as error:
            problems.append(f"{index} is left out: {error.message}. {error.remedy}")
            continue
        if fields:
            described[index] = fields
            for alias in state.get("aliases", {}):
                aliases.setdefault(alias, fields)
    listed = [*sorted(aliases.items()), *described.items()]
    return [{"name": name, "fields": fields} for name, fields in listed], problems


def hidden_fields(fields: dict[str, VectorFieldMeta]) -> set[str]:
    """Fields that cannot be facets: vectors, their metadata, and embedded texts."""
    texts = {text for meta in fields.values() for text in _template(meta).fields}
    return {*fields, *(document_meta_field(name) for name in fields), *texts}


def _field_entry(name: str, meta: VectorFieldMeta, virtual_field: str) -> Json:
    template = _template(meta)
    return {
        "name": name,
        "semantic": f"{virtual_field}.{name}",
        "meta": document_meta_field(name),
        "model": meta.model,
        "passages": meta.passages is not None,
        "parts": template.parts,
        "texts": template.fields,
        "hidden": [name, document_meta_field(name)],
    }


def _template(meta: VectorFieldMeta) -> TextTemplate:
    """Template of the embedded text; empty if the index has none yet."""
    return TextTemplate("", ()) if meta.text is None else TextTemplate.parse(meta.text)
