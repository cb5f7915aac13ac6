"""Whether documents have the fields of a template: looked at before an index is made for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from es_sbert.engines.protocol import Engine, IndexState, Json
from es_sbert.errors import UsageError
from es_sbert.index.schema import vector_fields
from es_sbert.index.text import MISSING, NoText, TextTemplate, find_field
from es_sbert.migration.target import ours

SAMPLE = 200
_MOST_NAMES = 20


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
    mapped = list(mapped_fields(index.mappings.get("properties", {})))
    for field in template.fields:
        if field not in mapped and all(find_field(document, field) is MISSING for document in sample):
            raise _unknown(field, index.name, _available([*mapped, *_names(sample)], own))
    _check_texts(template, sample)


def mapped_fields(properties: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of a mapping's fields, those inside objects among them."""
    for name, field in properties.items():
        yield f"{prefix}{name}"
        yield from mapped_fields(field.get("properties", {}), f"{prefix}{name}.")


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


def _names(sample: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return (name for document in sample for name in document)


def _available(names: Sequence[str], own: frozenset[str]) -> list[str]:
    return sorted({name for name in names if name.partition(".")[0] not in own})


def _unknown(field: str, index: str, names: list[str]) -> UsageError:
    near = get_close_matches(field, names, n=1)
    shown = ", ".join(names[:_MOST_NAMES]) + (" and more" if len(names) > _MOST_NAMES else "")
    return UsageError(
        f"no document of {index} has the field {field}, and its mapping does not know it"
        + (f": did you mean {near[0]}?" if near else ""),
        f"Name one of: {shown}." if shown else "The index has no fields.",
    )
