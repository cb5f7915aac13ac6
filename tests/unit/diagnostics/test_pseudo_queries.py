"""Queries that are made of documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.diagnostics.index_calibration import PseudoQuery, make_pseudo_query
from es_sbert.index.text_template import TextTemplate

TEXT = TextTemplate.parse("{text}")
TITLED = TextTemplate.parse("{title}. {text}")


@pytest.mark.parametrize(
    ("text", "query", "rest"),
    [
        ("The storm hit the coast. Trees fell.", "The storm hit the coast.", "Trees fell."),
        ("Who was it? Nobody knows.", "Who was it?", "Nobody knows."),
        ("“It was late!” She left at once.", "“It was late!”", "She left at once."),
        ("Dr. Smith arrived. He sat down.", "Dr. Smith arrived.", "He sat down."),
        ("A title of words\nThe text below it", "A title of words", "The text below it"),
        ("Version 3.11 is out now. Get it.", "Version 3.11 is out now.", "Get it."),
        ("昨日は嵐が来ました。木が倒れました。", "昨日は嵐が来ました。", "木が倒れました。"),
    ],
)
def test_first_sentence_becomes_the_query(text: str, query: str, rest: str) -> None:
    made = make_pseudo_query(TEXT, {"text": text}, text)
    assert made is not None
    assert (made.text, made.kind, made.rest) == (query, "first sentence", rest)
    assert text[: made.end].strip() == query


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("a man plays the guitar", "a man plays"),
        ("A man plays the guitar. ", "A man plays"),
        ("Well. Yes.", "Well."),
        ("昨日は嵐が来ました", "昨日は嵐"),
    ],
)
def test_single_sentence_yields_the_first_half_of_its_words(text: str, query: str) -> None:
    assert make_pseudo_query(TEXT, {"text": text}, text) == PseudoQuery(
        query, "first half of the words", len(query), None
    )


def test_single_sentence_over_fields_yields_the_first_field() -> None:
    document = {"title": "Storm", "text": "trees fell"}
    made = make_pseudo_query(TITLED, document, "Storm. trees fell")
    assert made == PseudoQuery("Storm", "first field", 0, ". trees fell")
    assert make_pseudo_query(TITLED, {"title": "Storm at sea"}, "Storm at sea.") == PseudoQuery(
        "Storm at", "first half of the words", 8, None
    )


def test_first_field_is_the_query_as_it_is_embedded() -> None:
    template = TextTemplate.parse("{title|strip_html}. {text}")
    document = {"title": "<b>Storm</b>", "text": "trees fell"}
    made = make_pseudo_query(template, document, "Storm. trees fell")
    assert made == PseudoQuery("Storm", "first field", 0, ". trees fell")


@pytest.mark.parametrize("text", ["guitar", "guitar.", " x ", "…"])
def test_single_word_text_yields_no_query(text: str) -> None:
    assert make_pseudo_query(TEXT, {"text": text}, text) is None


@given(st.text(alphabet="ab c.。!\n ", max_size=40), st.text(alphabet="xy z.\n", max_size=10))
def test_query_is_never_empty_or_the_whole_text(text: str, title: str) -> None:
    document = {"title": title, "text": text}
    for template in (TEXT, TITLED):
        whole = template.text_of(document) or ""
        made = make_pseudo_query(template, document, whole)
        if made is not None:
            assert made.text
            assert made.text in " ".join(whole.split()) or made.text in whole
            assert made.text != whole.strip()
            assert made.rest is None or (made.rest and made.rest in whole)
