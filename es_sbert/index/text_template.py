"""The text of a document that is embedded: one field, several fields, or a template over fields.

Also the settings `text_fields` and `text_template`, and suggestions for misspelled field names.
"""

from __future__ import annotations

import difflib
import operator
import re
import shlex
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import UsageError
from es_sbert.index.derived_fields import DerivedField, derived_fields, mapped_fields
from es_sbert.index.mapping import document_meta_field
from es_sbert.index.source_mode import NameForm
from es_sbert.io.html_text import HtmlTooDeep, strip_html
from es_sbert.io.text_formats import json_type_name
from es_sbert.messages import setting
from es_sbert.runtime.joined_text import SEPARATOR, JoinedText

# Maximum number of names in one message; documents of some sources have thousands of fields.
_MAX_NAMES_SHOWN = 20


def mapping_field_names(properties: Mapping[str, Any]) -> list[str]:
    """Dotted names of the fields that documents contain, objects left out.

    Derived fields are left out (see `derived_fields`), although a document may contain the target of a `copy_to`.

    Args:
        properties: `properties` of a mapping.
    """
    derived = derived_fields({"properties": properties})
    fields = mapped_fields(properties)
    return [name for name, field in fields if not field.get("properties") and name not in derived]


def document_field_names(fields: Mapping[str, Any]) -> list[str]:
    """Dotted names of a document's fields, including the fields of objects but not the objects.

    Objects may be in lists.
    """
    names: dict[str, None] = {}
    for name, value in fields.items():
        entries = list(flatten(value)) if isinstance(value, list) else [value]
        objects = [entry for entry in entries if isinstance(entry, Mapping)]
        if len(objects) < len(entries) or not entries:
            names[name] = None
        for entry in objects:
            names |= dict.fromkeys(f"{name}.{below}" for below in document_field_names(entry))
    return list(names)


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant; None if none is similar."""
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
    """Build a hint about fields that do not exist: the names that were probably meant, and the existing names.

    Args:
        missing: Names that do not exist.
        names: Names that exist.
        owner: Beginning of the sentence that lists them, e.g. `The documents have`.
        derived: Fields that the engine fills; the hint names their sources.
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
# Halves of characters, such as of an emoji that was cut in two. Engines keep them and index U+FFFD in their place.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


class TextFieldError(Exception):
    """The text of a document cannot be read; the message says why."""


def find_field(fields: Mapping[str, Any], name: str) -> Any:
    """Find the value at a dotted name: `a.b` is a key of that name, or `b` inside the object `a`.

    As in the engines, a name goes through lists of objects and may occur more than once. It then has all the values, in
    the order of the document.

    Returns:
        The value, or `MISSING`. null is a value. If the name goes through a list or occurs more than once, a flat list
        of the values.
    """
    if "." not in name:
        return fields.get(name, MISSING)
    found: list[Any] = []
    crosses_list = _collect(fields, name, found)
    if not found:
        return MISSING
    return list(flatten(found)) if crosses_list or len(found) > 1 else found[0]


def with_name_form(fields: dict[str, Any], form: NameForm) -> dict[str, Any]:
    """Return a document with its names in the form in which an engine returns it. Nulls may be left out."""
    if form is NameForm.AS_SENT:
        return fields
    dotted = {name: find_field(fields, name) for name in document_field_names(fields)}
    if form is NameForm.DOTTED:
        return dotted
    result: dict[str, Any] = {}
    for name, value in dotted.items():
        if value is None:
            continue
        *path, last = name.split(".")
        inner = result
        for part in path:
            inner = inner.setdefault(part, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):  # the engine rejects a name that is both an object and a value
            inner[last] = value
    return result


def flatten(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a list and of the lists in it, which the engines treat as one list."""
    # No recursion is used: engines accept lists that are nested deeper than Python's stack.
    open_lists = [iter(values)]
    while open_lists:
        for value in open_lists[-1]:
            if isinstance(value, list):
                open_lists.append(iter(value))
                break
            yield value
        else:
            open_lists.pop()


def has_value(value: Any) -> bool:
    """Whether the engines see a value in a field; `MISSING`, null and a list of nulls do not count."""
    if isinstance(value, list):
        return any(each is not None for each in flatten(value))
    return value is not MISSING and value is not None


def _collect(fields: Mapping[str, Any], name: str, found: list[Any]) -> bool:
    """Append the values at a dotted name; return whether there is a list on the way to one of them."""
    present = [(head, rest) for head, rest in _splits(name) if head in fields]
    if len(present) > 1:
        order = list(fields)
        present.sort(key=lambda split: order.index(split[0]))
    crosses_list = False
    for head, rest in present:
        value = fields[head]
        if rest is None:
            found.append(value)
        elif isinstance(value, Mapping):
            crosses_list |= _collect(value, rest, found)
        elif isinstance(value, list):
            before = len(found)
            for entry in flatten(value):
                if isinstance(entry, Mapping):
                    _collect(entry, rest, found)
            crosses_list |= len(found) > before
    return crosses_list


def change_values(fields: dict[str, Any], name: str, change: Callable[[Any], Any]) -> None:
    """Replace every value that `find_field` finds at a dotted name; the values of a list are replaced one by one."""
    for head, rest in _splits(name):
        if head not in fields:
            continue
        if rest is None:
            fields[head] = _changed(fields[head], change)
        else:
            for entry in flatten([fields[head]]):
                if isinstance(entry, dict):
                    change_values(entry, rest, change)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    return [_changed(each, change) for each in value] if isinstance(value, list) else change(value)


def without_fields(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return an object without these fields, in all forms that `find_field` reads, and without the fields below them.

    Objects that become empty are left out too, except in lists.

    Returns:
        The identical object if it has none of the fields.
    """
    for name in names:
        fields = _without(fields, name)
    return fields


def _without(value: Any, name: str) -> Any:
    if isinstance(value, list):
        entries = [_without(entry, name) for entry in value]
        return value if all(map(operator.is_, entries, value)) else entries
    if not isinstance(value, Mapping):
        return value
    kept: dict[str, Any] = {}
    is_same = True
    for key, inner in value.items():
        if key == name or key.startswith(f"{name}."):
            is_same = False
            continue
        left = _without(inner, name[len(key) + 1 :]) if name.startswith(f"{key}.") else inner
        is_same &= left is inner
        if left is inner or left != {}:
            kept[key] = left
    return value if is_same else kept


@lru_cache(maxsize=1024)
def _splits(name: str) -> tuple[tuple[str, str | None], ...]:
    """The keys with which a dotted name may begin, each with the rest of the name, which is None for the whole name."""
    dots = [place for place, character in enumerate(name) if character == "."]
    return (*((name[:dot], name[dot + 1 :]) for dot in dots), (name, None))


# Fields that may hold a document's title, the best first.
TITLE_FIELDS = ("title", "headline", "subject", "name", "label", "question")


def text_values(document: Mapping[str, Any], field: str) -> list[str] | None:
    """Return the strings in a field of a document, in order; blank ones are left out of a list.

    Returns:
        None if the field is missing or null, or a list without values.

    Raises:
        TextFieldError: the field holds a value other than a string.
    """
    value = find_field(document, field)
    if isinstance(value, str):
        return [_indexed_text(value)]
    if not has_value(value):
        return None
    problem = _text_problem(value)
    if problem is not None:
        raise TextFieldError(f"the text field {field} is {problem}")
    return [_indexed_text(text) for text in flatten(value) if text is not None and text and not text.isspace()]


def _text_problem(value: Any) -> str | None:
    """Describe why a value cannot be embedded, e.g. `a JSON number, not a string`; None for text."""
    if not isinstance(value, list):
        return None if isinstance(value, str) else f"a JSON {json_type_name(value)}, not a string"
    others = {json_type_name(each) for each in flatten(value) if each is not None and not isinstance(each, str)}
    names = " and ".join(f"{'an' if name == 'object' else 'a'} {name}" for name in sorted(others))
    return f"a JSON array with {names}, not a string or an array of strings" if others else None


def _indexed_text(text: str) -> str:
    return text if text.isascii() else _LONE_SURROGATES.sub("\ufffd", text)


def _absence(value: Any) -> str:
    """Describe why a field has no value."""
    return "is missing" if value is MISSING else "is null" if value is None else "is an array without values"


# Filter → the function that applies it to a value.
STRIP_HTML = "strip_html"
_FILTERS: Mapping[str, Callable[[str], str]] = {STRIP_HTML: strip_html}


class TemplatePart(NamedTuple):
    """A part of a template.

    Attributes:
        literal: The text in front of the field.
        field: The name of the field; None at the end of the template.
        filter: The filter that is applied to its values; None for no filter.
    """

    literal: str
    field: str | None
    filter: str | None = None


@dataclass(frozen=True)
class TextTemplate:
    """Text of a document, e.g. `{title}. {body}`, or `{title}. {body|strip_html}` with a filter.

    Attributes:
        template: The template as written; stored in the mapping's `_meta`, so that documents are embedded
            from the same text later.
        parts: Its parts.
    """

    template: str
    parts: tuple[TemplatePart, ...]

    @classmethod
    def parse(cls, template: str) -> TextTemplate:
        """Parse a template. Literal braces are doubled.

        Raises:
            UsageError: a brace is not closed, or the template has a format specification, an unknown filter or no
                field.
        """
        remedy = f"Write fields in braces, e.g. {setting('text_template', '{title}. {body}')}; double a literal brace."
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            problem = f"the text template {template!r} cannot be read: {error}"
            raise UsageError(problem, remedy).about("text_template", template) from error
        parts: list[TemplatePart] = []
        for literal, field, specification, conversion in parsed:
            if field == "" or specification or conversion:
                problem = f"the text template {template!r} may have only field names in braces"
                raise UsageError(problem, remedy).about("text_template", template)
            name, bar, filter_name = (field or "").rpartition("|")
            if bar and (filter_name not in _FILTERS or not name):
                raise UsageError(
                    f"the text template {template!r} has the unknown filter {filter_name!r}",
                    f"The filters are: {', '.join(_FILTERS)}; write {{FIELD|{STRIP_HTML}}}.",
                ).about("text_template", template)
            parts.append(TemplatePart(literal, name, filter_name) if bar else TemplatePart(literal, field))
        if all(part.field is None for part in parts):
            raise UsageError(f"the text template {template!r} has no field", remedy).about("text_template", template)
        return cls(template, tuple(parts))

    @classmethod
    def from_fields(cls, fields: Sequence[str]) -> TextTemplate:
        """Create a template that joins the texts of fields with line feeds.

        Raises:
            UsageError: a field name is invalid.
        """
        for field in fields:
            if not field or set(field) & set("{}!:"):
                raise UsageError(
                    f"{field!r} cannot be the name of a text field", f"Rename it, or set {setting('text_template')}."
                ).about("text_fields", field)
        return cls.parse("\n".join(f"{{{field}}}" for field in fields))

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The named fields, without duplicates."""
        return tuple(dict.fromkeys(part.field for part in self.parts if part.field is not None))

    def of_fields(self, fields: Sequence[str]) -> TextTemplate:
        """Return a template that joins the texts of fields with line feeds, each with the filter that it has here."""
        filters = {part.field: part.filter for part in self.parts if part.filter is not None}
        parts = (TemplatePart("\n" if place else "", name, filters.get(name)) for place, name in enumerate(fields))
        return TextTemplate(f"{', '.join(fields)} of {self.template}", tuple(parts))

    def stripping_html(self) -> TextTemplate:
        """Return the template with HTML stripped from all fields."""
        pieces = (
            literal.replace("{", "{{").replace("}", "}}") + ("" if field is None else f"{{{field}|{STRIP_HTML}}}")
            for literal, field, _ in self.parts
        )
        return TextTemplate.parse("".join(pieces))

    def render(self, document: Mapping[str, Any]) -> str:
        """Return the document's text.

        The values of a list are joined with line feeds, in their order; blank ones are left out. If the template names
        several fields, a missing or null field counts as empty, and white space that it leaves at either end is
        dropped.

        Returns:
            The text; a `JoinedText` if a field has several values.

        Raises:
            TextFieldError: all fields are missing or null, or one holds a value other than a string.
        """
        text = self.text_of(document)
        if text is None:
            values = ((field, find_field(document, field)) for field in self.fields)
            raise TextFieldError("; ".join(f"the text field {field} {_absence(value)}" for field, value in values))
        return text

    def text_of(self, document: Mapping[str, Any]) -> str | None:
        """Like `render`, but None if all fields are missing or null.

        Raises:
            TextFieldError: a field holds a value other than a string.
        """
        values = {part: self._part_values(document, part) for part in self.parts if part.field is not None}
        present = [own for own in values.values() if own is not None]
        if not present:
            return None
        if not any(text and not text.isspace() for own in present for text in own):
            # The text is empty: the literals of the template alone are not a text of the document.
            return ""
        if self.is_single_field and len(present[0]) == 1:
            return present[0][0]
        return self._join(values, is_complete=len(present) == len(values))

    def readable_text(self, document: Mapping[str, Any]) -> str:
        """Like `text_of`, but empty if there is no text or a field holds a value other than a string."""
        try:
            return self.text_of(document) or ""
        except TextFieldError:
            return ""

    def _join(self, values: Mapping[TemplatePart, Sequence[str] | None], *, is_complete: bool) -> str:
        """Join the values of the parts; white space at the ends is dropped if a field has no value."""
        pieces: list[str] = []
        breaks: list[int] = []
        length = 0
        for part in self.parts:
            own = () if part.field is None else values[part] or ()
            for number, piece in enumerate((part.literal, *own)):
                if number > 1:
                    pieces.append(SEPARATOR)
                    length += len(SEPARATOR)
                    breaks.append(length)
                pieces.append(piece)
                length += len(piece)
        text = "".join(pieces)
        if not is_complete:
            # The values of a list are never blank, so stripping does not drop a whole value.
            stripped = text.lstrip()
            breaks = [place - len(text) + len(stripped) for place in breaks]
            text = stripped.rstrip()
        return JoinedText(text, breaks) if breaks else text

    def _part_values(self, document: Mapping[str, Any], part: TemplatePart) -> list[str] | None:
        """Return the values of a part's field (see `text_values`), with the part's filter applied; None if it has none.

        Raises:
            TextFieldError: the field holds a value other than a string, or the filter cannot read it.
        """
        assert part.field is not None, "the end of a template has no values"
        values = text_values(document, part.field)
        if not values or part.filter is None:
            return values
        try:
            filtered = [_FILTERS[part.filter](value) for value in values]
        except HtmlTooDeep as error:
            raise TextFieldError(f"the text field {part.field} has {error}") from error
        return filtered if len(filtered) == 1 else [value for value in filtered if value and not value.isspace()]

    @cached_property
    def is_single_field(self) -> bool:
        """Whether the template consists of a single field."""
        return len(self.parts) == 1 and self.parts[0].literal == ""


# The text field of a vector field without a known text.
DEFAULT_TEXT_FIELD = "text"


def parse_text_options(text_fields: str | Sequence[str], text_template: str | None) -> TextTemplate | None:
    """Parse the template that the settings define; None if neither is set.

    Raises:
        UsageError: both settings are given, or one is invalid.
    """
    if text_template is not None:
        if text_fields:
            raise UsageError(
                f"{setting('text_fields')} and {setting('text_template')} cannot be combined", "Use one of the two."
            ).about("text_template", text_template)
        return TextTemplate.parse(text_template)
    names = [text_fields] if isinstance(text_fields, str) else text_fields
    return TextTemplate.from_fields(names) if names else None


def format_text_options(vector_field: str, text: str) -> str:
    """Format a text as command-line options for this vector field, for messages."""
    fields = TextTemplate.parse(text).fields
    options = f"--text-template {shlex.quote(text)}"
    if TextTemplate.from_fields(fields).template == text:
        options = " ".join(f"--text-field {shlex.quote(name)}" for name in fields)
    return options + format_vector_field_option(vector_field)


def format_vector_field_option(vector_field: str) -> str:
    """` --vector-field NAME`, or nothing for the default."""
    return "" if vector_field == DEFAULT_VECTOR_FIELD else f" --vector-field {vector_field}"


def check_name_conflicts(texts: Mapping[str, TextTemplate], documents_own: Iterable[str] = ()) -> None:
    """Refuse vector fields if a field of the documents has their name or that of their metadata object.

    Args:
        texts: Vector field → its text.
        documents_own: Other fields that documents contain, such as the id field.

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
                f"the vector field {field} needs the field {taken}, which is already in use",
                "Use another name for the vector field.",
            ).about("vector_field", field)
