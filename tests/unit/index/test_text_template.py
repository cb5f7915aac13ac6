"""Texts and ids of documents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.index.text_template import MISSING, TextFieldError, TextTemplate, find_field
from es_sbert.ingest.records import InvalidId, document_id


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"a": 1}, "a", 1),
        ({"a": {"b": {"c": 2}}}, "a.b.c", 2),
        ({"a.b": 3}, "a.b", 3),
        ({"a.b": {"c": 4}}, "a.b.c", 4),
        ({"a": {"b.c": 5}}, "a.b.c", 5),
        ({"a": {"x": 0}, "a.b": {"c": 6}}, "a.b.c", 6),
        ({"a": None}, "a", None),
        ({"a": [{"b": 7}]}, "a.b", MISSING),
        ({"a": "text"}, "a.b", MISSING),
        ({}, "a", MISSING),
    ],
)
def test_find_field_by_dotted_name(fields: dict[str, Any], name: str, value: Any) -> None:
    assert find_field(fields, name) == value


@given(st.lists(st.text("ab{}. \n", max_size=5), min_size=2, max_size=5))
def test_template_renders_values_between_literals(words: list[str]) -> None:
    escaped = [word.replace("{", "{{").replace("}", "}}") for word in words]
    names = [f"f{number}" for number in range(len(words) - 1)]
    template = "".join(f"{word}{{{name}}}" for word, name in zip(escaped, names, strict=False)) + escaped[-1]
    parsed = TextTemplate.parse(template)
    assert parsed.fields == tuple(names)
    expected = "".join(f"{word}<{name}>" for word, name in zip(words, names, strict=False)) + words[-1]
    assert parsed.render({name: f"<{name}>" for name in names}) == expected


@pytest.mark.parametrize("template", ["", "no field", "{}", "{a", "a}", "{a!r}", "{a:>3}", "{{a}}"])
def test_invalid_templates_are_rejected(template: str) -> None:
    with pytest.raises(UsageError, match="text template"):
        TextTemplate.parse(template)


@pytest.mark.parametrize("field", ["", "{a}", "a:b", "a!r"])
def test_invalid_field_names_are_rejected(field: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a text field"):
        TextTemplate.from_fields([field])


def test_several_fields_are_joined_with_newlines() -> None:
    template = TextTemplate.from_fields(["title", "meta.body"])
    assert template.template == "{title}\n{meta.body}"
    assert TextTemplate.parse(template.template) == template
    assert template.render({"title": "T", "meta": {"body": "B"}}) == "T\nB"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"title": "T", "body": "B"}, "T. B"),
        ({"body": "B"}, ". B"),
        ({"title": None, "body": " B "}, ".  B"),
        ({"title": "T"}, "T."),
        ({"title": "", "body": ""}, ""),
        ({"title": ""}, ""),
    ],
)
def test_missing_fields_render_empty_if_others_are_present(document: dict[str, Any], text: str) -> None:
    assert TextTemplate.parse("{title}. {body}").render(document) == text


def test_single_field_keeps_whitespace() -> None:
    assert TextTemplate.from_fields(["text"]).render({"text": "  a\n"}) == "  a\n"


@pytest.mark.parametrize(
    ("value", "kind"), [(1, "number"), (1.5, "number"), (True, "boolean"), (["a"], "array"), ({"a": "b"}, "object")]
)
def test_non_string_text_raises_text_field_error(value: Any, kind: str) -> None:
    with pytest.raises(TextFieldError, match=f"the text field text is a JSON {kind}, not a string"):
        TextTemplate.from_fields(["title", "text"]).render({"title": "T", "text": value})


def test_document_without_text_raises_text_field_error() -> None:
    with pytest.raises(TextFieldError, match="the text field title is missing; the text field body is null"):
        TextTemplate.parse("{title}{body}").render({"body": None})


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", "a"), (7, "7"), (-1, "-1"), (0, "0"), ("x" * 512, "x" * 512), ("ß" * 256, "ß" * 256), (" ", " ")],
)
def test_document_id(value: Any, expected: str) -> None:
    assert document_id({"meta": {"id": value}}, "meta.id") == expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "the id field id is missing"),
        ({"id": None}, "JSON null"),
        ({"id": ""}, "is empty"),
        ({"id": True}, "JSON boolean"),
        ({"id": 1.0}, "JSON number, not a string or an integer"),
        ({"id": ["a"]}, "JSON array"),
        ({"id": "x" * 513}, "513 bytes; engines take at most 512"),
        ({"id": "ß" * 257}, "514 bytes"),
    ],
)
def test_invalid_ids_raise(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidId, match=reason):
        document_id(fields, "id")
