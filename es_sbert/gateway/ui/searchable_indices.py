"""List the indices and aliases that have vector fields."""

from __future__ import annotations

from dataclasses import dataclass

from es_sbert.engines.protocol import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field, vector_fields
from es_sbert.index.text_template import TextTemplate

# Of `GET /_all`: what `catalogue` reads.
FILTER_PATH = "filter_path=*.aliases,*.mappings._meta.es_sbert"


@dataclass(frozen=True)
class IndexListing:
    """What can be searched.

    Attributes:
        indices: Of each index and alias `name` and `fields`, aliases first; of a field its `name`, the `semantic` name
            that queries use, the object next to each vector (`meta`), `model`, whether it holds `passages`, the parts
            of its text's template (`parts`: pairs of literal and field), the fields named there (`texts`) and what hits
            need not carry (`hidden`).
        problems: What is wrong with indices that are left out. Whoever may write an index may write nonsense into its
            mapping; that must not keep others from searching theirs.
    """

    indices: list[Json]
    problems: list[str]


def list_searchable_indices(answer: Json, virtual_field: str) -> IndexListing:
    """Indices and aliases with vector fields.

    Args:
        answer: The engine's, to `GET /_all`.
        virtual_field: By which the gateway's callers mean a vector field.
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
    return IndexListing([{"name": name, "fields": fields} for name, fields in listed], problems)


def hidden_fields(fields: dict[str, VectorFieldMeta]) -> set[str]:
    """Fields that hits cannot be narrowed down by: vectors, what stands beside them, and embedded texts."""
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
    """Of the embedded text; before the first load nobody has said which it is."""
    return TextTemplate("", ()) if meta.text is None else TextTemplate.parse(meta.text)
