"""The vector fields that a load minds: which text each stands for, and whether this load's model fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_sbert.index.meta import VectorFieldMeta, document_meta_field
from es_sbert.index.text import MISSING, NoText, TextTemplate, find_field


@dataclass(frozen=True)
class Target:
    """A vector field and the text that its vectors stand for.

    Attributes:
        field: Its name.
        template: The text.
        meta: What the mapping says about it.
        filled: Whether this load makes its vectors. The others are of another model, or not asked for: a document
            that is written anew keeps such a vector as long as it stands for the document's text.
    """

    field: str
    template: TextTemplate
    meta: VectorFieldMeta
    filled: bool = True

    @property
    def meta_field(self) -> str:
        """Name of the object beside the vector."""
        return document_meta_field(self.field)


Targets = tuple[Target, ...]


def filled(targets: Targets) -> Targets:
    """Those that this load fills."""
    return tuple(target for target in targets if target.filled)


def kept_targets(fields: Mapping[str, VectorFieldMeta], filled_fields: Sequence[str]) -> Targets:
    """The other vector fields of an index whose text is known.

    Args:
        fields: All vector fields of the index.
        filled_fields: Names of those that the load fills.
    """
    return tuple(
        Target(name, TextTemplate.parse(meta.text), meta, filled=False)
        for name, meta in fields.items()
        if name not in filled_fields and meta.text is not None
    )


def texts_of(fields: Mapping[str, Any], targets: Targets) -> tuple[str, ...]:
    """A document's text for each target, in their order; empty where its fields are all missing, null or blank.

    Raises:
        NoText: a field of a text that the load fills is neither a string nor null.
    """
    return tuple(_text_of(fields, target) for target in targets)


def text_in(source: Mapping[str, Any], target: Target) -> str | None:
    """The text that a document of the index has for a target; empty where there is nothing to embed.

    None where a field of the text is not a string, which no document of a source has.
    """
    try:
        return _text_of(source, target)
    except NoText:
        return None if target.filled else ""


def text_fields(targets: Targets) -> tuple[str, ...]:
    """Fields of the texts that the load fills, each once."""
    return tuple(dict.fromkeys(name for target in filled(targets) for name in target.template.fields))


def lacking_fields(fields: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Those of the names that a document lacks, or in which it has null."""
    return [name for name in names if find_field(fields, name) in (MISSING, None)]


def _text_of(fields: Mapping[str, Any], target: Target) -> str:
    try:
        text = target.template.text_of(fields)
    except NoText:
        if target.filled:
            raise
        return ""  # its vector, if it has one, was made from something else
    return "" if not text or text.isspace() else text
