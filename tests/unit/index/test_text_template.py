"""Texts and ids of documents."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.source_mode import NameForm
from es_sbert.index.text_template import (
    MISSING,
    TextFieldError,
    TextTemplate,
    document_field_names,
    find_field,
    with_name_form,
)
from es_sbert.runtime.joined_text import value_spans


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"a": 1}, "a", 1),
        ({"a": {"b": {"c": 2}}}, "a.b.c", 2),
        ({"a.b": 3}, "a.b", 3),
        ({"a": {"x": 0}, "a.b": {"c": 6}}, "a.b.c", 6),
        ({"a": [{"b": 8}, {"c": 0}, "x", None, [{"b": 9}]]}, "a.b", [8, 9]),
        ({"a": [{"b": [{"c": 13}, {"c": 14}]}, {"b": {"c": 15}}]}, "a.b.c", [13, 14, 15]),
        ({"a.b": [{"c": 16}, {"c": None}]}, "a.b.c", [16, None]),
        ({"a": [{"b": []}]}, "a.b", []),
        # Engines index both.
        ({"a": {"b": 17}, "a.b": 18}, "a.b", [17, 18]),
        ({"a": [[1], 2]}, "a", [[1], 2]),
        ({"a": orjson.loads(b"[" * 1000 + b'{"b":21}' + b"]" * 1000)}, "a.b", [21]),
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


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"title": "T", "tags": ["a", None, " ", ["b", "c"]]}, "a\nb\nc: T"),
        ({"title": ["T", "U"], "tags": "a"}, "a: T\nU"),
        ({"title": "T", "tags": []}, ": T"),
        ({"title": [], "tags": ["a", "b"]}, "a\nb:"),
        ({"title": ["", " "], "tags": [""]}, ""),
        ({"title": ["\ud83d", "T"], "tags": "a"}, "a: \ufffd\nT"),
    ],
)
def test_values_of_a_list_are_joined_with_newlines(document: dict[str, Any], text: str) -> None:
    assert TextTemplate.parse("{tags}: {title}").render(document) == text


def test_joined_text_knows_where_each_value_begins() -> None:
    def segments(template: str, document: dict[str, Any]) -> list[str]:
        text = TextTemplate.parse(template).render(document)
        return [text[start:end] for start, end in value_spans(text)]

    assert segments("{a}", {"a": "one\ntwo"}) == ["one\ntwo"]
    assert segments("{a}", {"a": ["one", " ", "two", "three"]}) == ["one\n", "two\n", "three"]
    assert segments("{t}. {a}", {"t": "T", "a": ["one", "two"]}) == ["T. one\n", "two"]
    assert segments("{a}. {t}", {"t": "T", "a": ["one", "two"]}) == ["one\n", "two. T"]
    # White space at the ends is dropped where a field is missing.
    assert segments("  {t}. {a}", {"a": ["one", "two "]}) == [". one\n", "two"]
    assert segments("  {t}  {a}  ", {"a": ["one", "two"]}) == ["one\n", "two"]
    assert segments("{a}", {"a": " "}) == [""]


def test_hash_tells_several_values_from_one() -> None:
    def hash_of(value: Any) -> str:
        return text_hash(TextTemplate.from_fields(["a"]).render({"a": value}))

    assert hash_of(["one"]) == hash_of("one")
    assert len({hash_of("one\ntwo\nthree"), hash_of(["one", "two", "three"]), hash_of(["one\ntwo", "three"])}) == 3


def test_field_names_of_objects_in_lists() -> None:
    document = {"a": [{"b": 1}, {"c": [{"d": 2}]}, "x"], "e": [], "f": ["g"], "h": {"i": [{"j": 1}, {"j": 2}]}}
    assert document_field_names(document) == ["a", "a.b", "a.c.d", "e", "f", "h.i.j"]


@pytest.mark.parametrize(("value", "kind"), [(1, "number"), (1.5, "number"), (True, "boolean"), ({"a": "b"}, "object")])
def test_non_string_text_raises_text_field_error(value: Any, kind: str) -> None:
    with pytest.raises(TextFieldError, match=f"the text field text is a JSON {kind}, not a string"):
        TextTemplate.from_fields(["title", "text"]).render({"title": "T", "text": value})


def test_filter_changes_the_text_and_neither_the_field_nor_the_document() -> None:
    template = TextTemplate.parse("{title}: {body.text|strip_html} {{x}} {body.text}")
    document = {"title": "<T>", "body": [{"text": "<p>one<p>two"}, {"text": "<br>"}, {"text": "a&amp;b"}]}
    text = template.text_of(document)
    assert text == "<T>: one\n\ntwo\na&b {x} <p>one<p>two\n<br>\na&amp;b"
    assert template.fields == ("title", "body.text")
    # Each value is a part of its own for passages, without the blank one.
    assert [text[start:end] for start, end in value_spans(text)][1].startswith("a&b")
    assert TextTemplate.parse("{body|strip_html}").text_of({"body": "<p> </p>"}) == ""
    assert TextTemplate.parse("{body|strip_html}").text_of({"body": None}) is None
    with pytest.raises(
        TextFieldError, match=r"the text field body has HTML that is nested more than 2,000 levels deep"
    ):
        TextTemplate.parse("{body|strip_html}").text_of({"body": "<div>" * 3000})


def test_template_of_some_fields_keeps_their_filters() -> None:
    template = TextTemplate.parse("{title}: {body}{body|strip_html}")
    document = {"title": "<T>", "body": "<p>one", "dc:creator": "<A>"}
    assert template.of_fields(["body", "dc:creator"]).text_of(document) == "one\n<A>"
    assert template.of_fields(["title"]).text_of(document) == "<T>"
    assert template.of_fields(["title"]).text_of({"body": "one"}) is None


@pytest.mark.parametrize("template", ["{body|striphtml}", "{body|}", "{|strip_html}"])
def test_unknown_filter_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="has the unknown filter") as error:
        TextTemplate.parse(template)
    assert error.value.remedy == "The filters are: strip_html; write {FIELD|strip_html}."


def test_names_take_the_form_of_the_source() -> None:
    fields = {"a.b": 1, "a": {"b": 2, "c": None}, "d": [{"e": 1}, {"e": 2}], "f": {}, "g": 3, "h": None, "h.i": 4}
    assert with_name_form(fields, NameForm.AS_SENT) is fields
    dotted = {"a.b": [1, 2], "a.c": None, "d.e": [1, 2], "g": 3, "h": None, "h.i": 4}
    assert with_name_form(fields, NameForm.DOTTED) == dotted
    objects = {"a": {"b": [1, 2]}, "d": {"e": [1, 2]}, "g": 3, "h": {"i": 4}}
    assert with_name_form(fields, NameForm.OBJECTS) == objects
    assert with_name_form({"a": 1, "a.b": 2, "a.b.c": 3}, NameForm.OBJECTS) == {"a": 1}
