"""Which text of a document is embedded: one field, several, or a template over fields."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from es_sbert.errors import UsageError
from es_sbert.streams.json_lines import json_type

MISSING = object()
# Halves of characters, such as an emoji that was cut in two. Engines keep them and index U+FFFD in their place.
_SURROGATES = re.compile("[\ud800-\udfff]")


class NoText(Exception):
    """A document whose text cannot be taken; the message says why."""


def find_field(fields: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name: `a.b` is a key of that very name, or `b` inside the object `a`.

    Returns:
        The value, or `MISSING`. null is a value.
    """
    if name in fields:
        return fields[name]
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
        template: The template as written; it stands in the mapping's `_meta`, so that documents are embedded
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
    def of_fields(cls, fields: Sequence[str]) -> TextTemplate:
        """The fields' texts, each on lines of its own."""
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
            NoText: all fields are missing or null, or one is not a string.
        """
        text = self.text_of(document)
        if text is None:
            raise NoText("; ".join(self.problems(document)))
        return text

    def text_of(self, document: Mapping[str, Any]) -> str | None:
        """As `render`; None where all fields are missing or null.

        Raises:
            NoText: a field is neither a string nor null.
        """
        if self.is_one_field:
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
    def is_one_field(self) -> bool:
        """Whether the text is that of one field and nothing else."""
        return len(self.parts) == 1 and self.parts[0][0] == ""

    def is_missing(self, document: Mapping[str, Any]) -> bool:
        """Whether every field is missing or null."""
        return all(find_field(document, field) in (MISSING, None) for field in self.fields)

    def problems(self, document: Mapping[str, Any]) -> list[str]:
        """What is the matter with each field that is missing or null."""
        states = {MISSING: "is missing", None: "is null"}
        values = ((field, find_field(document, field)) for field in self.fields)
        return [f"the text field {field} {states[value]}" for field, value in values if value in (MISSING, None)]

    @staticmethod
    def _value(document: Mapping[str, Any], field: str) -> str | None:
        value = find_field(document, field)
        if value is MISSING or value is None:
            return None
        if not isinstance(value, str):
            raise NoText(f"the text field {field} is a JSON {json_type(value)}, not a string")
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
