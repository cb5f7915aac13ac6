"""Texts of templates, and names of fields."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.index.derived_fields import derived_fields, without_mapped_fields
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.source_mode import NameForm
from es_sbert.index.text_template import (
    MISSING,
    TextFieldError,
    TextTemplate,
    find_field,
    mapping_field_names,
    with_name_form,
    without_fields,
)
from es_sbert.runtime.joined_text import value_spans
from tests.raised import raises, raises_as_recorded, record


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
    with raises(UsageError, "text_template", template):
        TextTemplate.parse(template)
    with raises(UsageError, "text_fields", "{"):
        TextTemplate.from_fields(["title", "{"])


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


@pytest.mark.parametrize("value", [1.5, True, {"a": "b"}, ["a", [1]]])
def test_non_string_text_raises_text_field_error(value: Any) -> None:
    with raises_as_recorded(TextFieldError):
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
    with raises_as_recorded(TextFieldError):
        TextTemplate.parse("{body|strip_html}").text_of({"body": "<div>" * 3000})


@pytest.mark.parametrize("template", ["{body|striphtml}", "{body|}", "{|strip_html}"])
def test_unknown_filter_is_refused(template: str) -> None:
    with raises(UsageError, "text_template", template) as error:
        TextTemplate.parse(template)
    record(error.value)


def test_names_take_the_form_of_the_source() -> None:
    fields = {"a.b": 1, "a": {"b": 2, "c": None}, "d": [{"e": 1}, {"e": 2}], "f": {}, "g": 3, "h": None, "h.i": 4}
    assert with_name_form(fields, NameForm.AS_SENT) is fields
    dotted = {"a.b": [1, 2], "a.c": None, "d.e": [1, 2], "g": 3, "h": None, "h.i": 4}
    assert with_name_form(fields, NameForm.DOTTED) == dotted
    objects = {"a": {"b": [1, 2]}, "d": {"e": [1, 2]}, "g": 3, "h": {"i": 4}}
    assert with_name_form(fields, NameForm.OBJECTS) == objects
    assert with_name_form({"a": 1, "a.b": 2, "a.b.c": 3}, NameForm.OBJECTS) == {"a": 1}


def test_mapping_field_names_match_document_paths() -> None:
    properties = {
        "title": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "meta": {"properties": {"lang": {"type": "keyword"}, "author": {"properties": {"name": {"type": "text"}}}}},
        "other": {"type": "alias", "path": "title"},
        "free": {"type": "object", "enabled": False},
    }
    assert mapping_field_names(properties) == ["title", "meta.lang", "meta.author.name", "free"]


@pytest.mark.parametrize(
    ("document", "left"),
    [
        ({"a": {"b": {"c": 1}}}, {}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"d": 2}}}),
        ({"a.b": {"c": 1, "d": 2}}, {"a.b": {"d": 2}}),
        ({"a": {"b.c": 1}, "a.b.c": 2, "a.b.cd": 3}, {"a.b.cd": 3}),
        ({"a": [{"b": [{"c": 1}, {"d": 2}]}, [{"b.c": 3}], 4]}, {"a": [{"b": [{}, {"d": 2}]}, [{}], 4]}),
        ({"a.b.c.d": 1, "a": {"b": {"c": {"d": 1}}, "e": {}}}, {"a": {"e": {}}}),
    ],
)
def test_fields_are_left_out_of_documents(document: dict[str, Any], left: dict[str, Any]) -> None:
    assert without_fields(document, ["a.b.c", "x"]) == left
    assert find_field(left, "a.b.c") is MISSING


def test_fields_are_left_out_of_mappings() -> None:
    missing = derived_fields({"runtime": {"year": {"type": "long"}}})["year"].explain("year")
    assert missing == "year is a runtime field, which documents do not contain."
    keyword = {"type": "keyword"}
    properties = {
        "a": {"properties": {"b": keyword, "c": keyword}},
        "d": {"type": "object", "properties": {"e": keyword}},
        "f": {"dynamic": "false", "properties": {"g": keyword}},
        "h.i": keyword,
        "hi": keyword,
        "empty": {"type": "object"},
    }
    assert without_mapped_fields(properties, ["a.b", "d.e", "f.g", "h", "empty.x"]) == {
        "a": {"properties": {"c": keyword}},
        "f": {"dynamic": "false"},
        "hi": keyword,
        "empty": {"type": "object"},
    }
