"""`--text-field` and `--text-template`: the text of a vector field as options of commands give it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import UsageError
from es_sbert.index.meta import document_meta_field
from es_sbert.index.text import TextTemplate

# The text of a vector field of which nothing else is said.
DEFAULT_TEXT_FIELD = "text"


def read_text_options(text_fields: Sequence[str], text_template: str | None) -> TextTemplate | None:
    """The template that the options give; None without options.

    Raises:
        UsageError: both are given, or one cannot be read.
    """
    if text_template is not None:
        if text_fields:
            raise UsageError("--text-field and --text-template exclude each other", "Give one of the two.")
        return TextTemplate.parse(text_template)
    return TextTemplate.of_fields(text_fields) if text_fields else None


def text_options(vector_field: str, text_fields: Sequence[str], text_template: str | None) -> str | None:
    """The same options as a user types them for this vector field, for messages; None without options."""
    if text_template is not None:
        return f"--text-template {shlex.quote(text_template)}{vector_field_option(vector_field)}"
    if text_fields:
        return " ".join(f"--text-field {shlex.quote(name)}" for name in text_fields) + vector_field_option(vector_field)
    return None


def vector_field_option(vector_field: str) -> str:
    """` --vector-field NAME`, or nothing for the default."""
    return "" if vector_field == DEFAULT_VECTOR_FIELD else f" --vector-field {vector_field}"


def check_own_names(texts: Mapping[str, TextTemplate], documents_own: Iterable[str] = ()) -> None:
    """Refuse vector fields whose name, or that of the object beside them, is a field that documents bring.

    Args:
        texts: Vector field → its text.
        documents_own: Other fields that documents bring, such as that of the id.

    Raises:
        UsageError: a name is used twice.
    """
    read = {name.partition(".")[0] for template in texts.values() for name in template.fields}
    read |= {name.partition(".")[0] for name in documents_own}
    for field in texts:
        beside = document_meta_field(field)
        taken = next((name for name in (field, beside) if name in read), beside if beside in texts else None)
        if taken is not None:
            raise UsageError(
                f"the vector field {field} needs the field {taken}, which is in use already",
                "Give the vector field another name.",
            )
