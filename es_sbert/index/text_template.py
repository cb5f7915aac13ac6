"""Which text of a document is embedded: one field, several fields, or a template over fields.

Also the `--text-field` and `--text-template` options, and suggestions for misspelt field names.
"""

from __future__ import annotations

import difflib
import re
import shlex
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import UsageError
from es_sbert.index.derived_fields import DerivedField, derived_fields, mapped_fields
from es_sbert.index.mapping import document_meta_field
from es_sbert.io.text_formats import json_type_name

# Names in one message; documents of some sources have thousands of fields.
_MAX_NAMES_SHOWN = 20


def mapping_field_names(properties: Mapping[str, Any]) -> list[str]:
    """Dotted names of the fields that documents bring themselves, objects left out.

    Derived fields are left out, see `derived_fields`: a document may bring the target of a `copy_to`, but need not.

    Args:
        properties: `properties` of a mapping.
    """
    derived = derived_fields({"properties": properties})
    fields = mapped_fields(properties)
    return [name for name, field in fields if not field.get("properties") and name not in derived]


def document_field_names(fields: Mapping[str, Any]) -> list[str]:
    """Dotted names of a document's fields, those of the objects in it included and the objects left out."""
    names: list[str] = []
    for name, value in fields.items():
        names += [f"{name}.{below}" for below in document_field_names(value)] if isinstance(value, Mapping) else [name]
    return names


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant; None where none is similar."""
    by_case = {known.lower(): known for known in names}
    found = difflib.get_close_matches(name.lower(), by_case, n=1)
    if found:
        return by_case[found[0]]
    # The field of an object, named without the object.
    ends = [known for known in by_case.values() if known.rpartition(".")[2] == name]
    return ends[0] if len(ends) == 1 else None


def fields_hint(
    missing: Sequence[str], names: Sequence[str], owner: str, derived: Mapping[str, DerivedField] | None = None
) -> str:
    """What to say about fields that do not exist: the names that were probably meant, and those that there are.

    Args:
        missing: Names that nothing has.
        names: Names that exist.
        owner: What has them, e.g. `The documents have`.
        derived: Fields that the engine fills; of these the sources are meant.
    """
    filled = derived or {}
    near = {name: closest_name(name, names) for name in missing if name not in filled}
    meant = [known for known in near.values() if known is not None]
    question = "".join(f"{filled[name].explain(name)} " for name in missing if name in filled)
    question += f"Did you mean {' and '.join(dict.fromkeys(meant))}? " if meant else ""
    shown = ", ".join(names[:_MAX_NAMES_SHOWN]) + (
        f" and {len(names) - _MAX_NAMES_SHOWN:,} more" if len(names) > _MAX_NAMES_SHOWN else ""
    )
    return f"{question}{owner} {f'the fields {shown}' if names else 'no fields'}."


MISSING = object()
# Halves of characters, such as an emoji that was cut in two. Engines keep them and index U+FFFD in their place.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class TextFieldError(Exception):
    """A document whose text cannot be taken; the message says why."""


def find_field(fields: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name: `a.b` is a key of that very name, or `b` inside the object `a`.

    Returns:
        The value, or `MISSING`. null is a value.
    """
    value = fields.get(name, MISSING)
    if value is not MISSING or "." not in name:
        return value
    head, dot, rest = name.partition(".")
    while dot:
        inner = fields.get(head)
        if isinstance(inner, Mapping):
            value = find_field(inner, rest)
            if value is not MISSING:
                return value
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return MISSING


@dataclass(frozen=True)
class TextTemplate:
    """Text of a document, e.g. `{title}. {body}`.

    Attributes:
        template: The template as written; stored in the mapping's `_meta`, so that documents are embedded
            from the same text later.
        parts: (text in front, field name) pairs; the last may have no field.
    """

    template: str
    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, template: str) -> TextTemplate:
        """Read a template; braces are written twice where they are meant as such.

        Raises:
            UsageError: a brace left open, a format specification, or no field at all.
        """
        remedy = "Write fields in braces, e.g. --text-template '{title}. {body}'; a brace itself is written twice."
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            raise UsageError(f"the text template {template!r} cannot be read: {error}", remedy) from error
        parts: list[tuple[str, str | None]] = []
        for literal, field, specification, conversion in parsed:
            if field == "" or specification or conversion:
                raise UsageError(f"the text template {template!r} holds more than names in braces", remedy)
            parts.append((literal, field))
        if all(field is None for _, field in parts):
            raise UsageError(f"the text template {template!r} names no field", remedy)
        return cls(template, tuple(parts))

    @classmethod
    def from_fields(cls, fields: Sequence[str]) -> TextTemplate:
        """The fields' texts, joined with line feeds."""
        for field in fields:
            if not field or set(field) & set("{}!:"):
                raise UsageError(
                    f"{field!r} cannot be the name of a text field", "Name a field; a template is --text-template."
                )
        return cls.parse("\n".join(f"{{{field}}}" for field in fields))

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields named, each once."""
        return tuple(dict.fromkeys(field for _, field in self.parts if field is not None))

    def render(self, document: Mapping[str, Any]) -> str:
        """The document's text.

        A field that is missing or null counts as empty where the template names others too, and white space
        it leaves at either end is dropped.

        Raises:
            TextFieldError: all fields are missing or null, or one is not a string.
        """
        text = self.text_of(document)
        if text is None:
            problems = {MISSING: "is missing", None: "is null"}
            values = ((field, find_field(document, field)) for field in self.fields)
            raise TextFieldError("; ".join(f"the text field {field} {problems[value]}" for field, value in values))
        return text

    def text_of(self, document: Mapping[str, Any]) -> str | None:
        """As `render`; None where all fields are missing or null.

        Raises:
            TextFieldError: a field is neither a string nor null.
        """
        if self.is_single_field:
            value = self._value(document, self.fields[0])
            return "" if value is not None and value.isspace() else value
        values = [self._value(document, field) for field in self.fields]
        present = [value for value in values if value is not None]
        if not present:
            return None
        if not any(value and not value.isspace() for value in present):
            # The template's own words are no text of the document's.
            return ""
        by_name = dict(zip(self.fields, values, strict=True))
        text = "".join(literal + ((by_name[field] or "") if field else "") for literal, field in self.parts)
        return text if len(present) == len(values) else text.strip()

    @cached_property
    def is_single_field(self) -> bool:
        """Whether the text is that of one field and nothing else."""
        return len(self.parts) == 1 and self.parts[0][0] == ""

    def is_missing(self, document: Mapping[str, Any]) -> bool:
        """Whether every field is missing or null."""
        return all(find_field(document, field) in (MISSING, None) for field in self.fields)

    @staticmethod
    def _value(document: Mapping[str, Any], field: str) -> str | None:
        value = find_field(document, field)
        if value is MISSING or value is None:
            return None
        if not isinstance(value, str):
            raise TextFieldError(f"the text field {field} is a JSON {json_type_name(value)}, not a string")
        return value if value.isascii() else _LONE_SURROGATES.sub("\ufffd", value)


# The text of a vector field of which nothing else is said.
DEFAULT_TEXT_FIELD = "text"


def parse_text_options(text_fields: Sequence[str], text_template: str | None) -> TextTemplate | None:
    """The template that the options give; None without options.

    Raises:
        UsageError: both are given, or one cannot be read.
    """
    if text_template is not None:
        if text_fields:
            raise UsageError("--text-field and --text-template exclude each other", "Give one of the two.")
        return TextTemplate.parse(text_template)
    return TextTemplate.from_fields(text_fields) if text_fields else None


def format_text_options(vector_field: str, text_fields: Sequence[str], text_template: str | None) -> str | None:
    """The same options as a user types them for this vector field, for messages; None without options."""
    texts = [f"--text-field {shlex.quote(name)}" for name in text_fields]
    if text_template is not None:
        texts = [f"--text-template {shlex.quote(text_template)}"]
    return " ".join(texts) + format_vector_field_option(vector_field) if texts else None


def format_vector_field_option(vector_field: str) -> str:
    """` --vector-field NAME`, or nothing for the default."""
    return "" if vector_field == DEFAULT_VECTOR_FIELD else f" --vector-field {vector_field}"


def check_name_conflicts(texts: Mapping[str, TextTemplate], documents_own: Iterable[str] = ()) -> None:
    """Refuse vector fields whose name, or that of their metadata object, is a field of the documents.

    Args:
        texts: Vector field → its text.
        documents_own: Other fields that documents bring, such as that of the id.

    Raises:
        UsageError: a name is used twice.
    """
    read = {name.partition(".")[0] for template in texts.values() for name in template.fields}
    read |= {name.partition(".")[0] for name in documents_own}
    for field in texts:
        meta_field = document_meta_field(field)
        taken = next(
            (name for name in (field, meta_field) if name in read), meta_field if meta_field in texts else None
        )
        if taken is not None:
            raise UsageError(
                f"the vector field {field} needs the field {taken}, which is in use already",
                "Give the vector field another name.",
            )
