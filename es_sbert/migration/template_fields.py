"""Whether documents have the fields of a template: looked at before an index is made for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from es_sbert.engines.protocol import Engine, IndexState, Json
from es_sbert.errors import UsageError
from es_sbert.index.field_names import document_names, fields_hint, mapped_names
from es_sbert.index.schema import vector_fields
from es_sbert.index.text import MISSING, NoText, TextTemplate, find_field
from es_sbert.migration.target import ours

SAMPLE = 200


def check_template_fields(engine: Engine, index: IndexState, template: TextTemplate) -> None:
    """Refuse a template that names a field which neither the mapping nor any of 200 documents has.

    Raises:
        UsageError: a field is unknown, belongs to a vector, or holds no text in any of the documents.
        EngineError: the engine failed.
    """
    own = ours(list(vector_fields(index.mappings, index.name)))
    for field in template.fields:
        if field.partition(".")[0] in own:
            raise UsageError(
                f"the text template names {field}, which es-sbert fills itself", "Name fields of the documents."
            )
    body: Json = {"query": {"match_all": {}}, "size": SAMPLE, "_source": True}
    sample = [hit.get("_source") or {} for hit in engine.search(index.name, body)["hits"]["hits"]]
    mapped = mapped_names(index.mappings.get("properties", {}))
    unknown = [
        field
        for field in template.fields
        if field not in mapped and all(find_field(document, field) is MISSING for document in sample)
    ]
    if unknown:
        names = dict.fromkeys([*mapped, *(name for document in sample for name in document_names(document))])
        available = [name for name in names if name.partition(".")[0] not in own]
        raise UsageError(
            f"no document of {index.name} has the field {' or '.join(unknown)}, and its mapping does not know it",
            fields_hint(unknown, available, "The documents have"),
        )
    _check_texts(template, sample)


def _check_texts(template: TextTemplate, sample: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a template that fits no document of the sample because its fields hold no strings."""
    reasons = []
    for document in sample:
        try:
            if template.render(document):
                return
        except NoText as error:
            if not template.is_missing(document):
                reasons.append(str(error))
    if reasons:
        raise UsageError(
            f"no document has a text by {template.template!r}: {reasons[0]}", "Name fields that hold strings."
        )
