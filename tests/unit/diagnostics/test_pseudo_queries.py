"""Queries that are made of documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.diagnostics.index_calibration import make_pseudo_query


@pytest.mark.parametrize(
    ("text", "query", "rest"),
    [
        ("The storm hit the coast. Trees fell.", "The storm hit the coast.", "Trees fell."),
        ("Dr. Smith arrived. He sat down.", "Dr. Smith arrived.", "He sat down."),
        ("A title of words\nThe text below it", "A title of words", "The text below it"),
        ("昨日は嵐が来ました。木が倒れました。", "昨日は嵐が来ました。", "木が倒れました。"),
    ],
)
def test_first_sentence_becomes_the_query(text: str, query: str, rest: str) -> None:
    made = make_pseudo_query(text)
    assert made is not None
    assert (made.text, made.kind, made.rest) == (query, "first sentence", rest)
    assert text[: made.end].strip() == query


@given(st.text(alphabet="ab c.。!\n ", max_size=40))
def test_query_is_never_empty_or_the_whole_text(text: str) -> None:
    made = make_pseudo_query(text)
    if made is not None:
        assert made.text
        assert made.text in " ".join(text.split()) or made.text in text
        assert made.text != text.strip()
