"""Texts are cut as the Penn Treebank cuts them, as far as tables of word vectors care."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.baselines.word_vectors import tokenize


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man's dog.", ["A", "man", "'s", "dog", "."]),
        ("I can't, won’t and DON'T", ["I", "ca", "n't", ",", "wo", "n't", "and", "DO", "N'T"]),
        ("we'll pay $1,200.50, ok", ["we", "'ll", "pay", "$", "1,200.50", ",", "ok"]),
        ("'quoted' words", ["'", "quoted", "'", "words"]),
        ("well-known 3rd 2x4", ["well", "-", "known", "3rd", "2x4"]),
        ("Größe über naïve 東京", ["Größe", "über", "naïve", "東京"]),
        ("", []),
        (" \t\n", []),
    ],
)
def test_tokenize(text: str, words: list[str]) -> None:
    assert tokenize(text) == words


@given(st.text(st.characters(blacklist_characters="’")))
def test_tokenize_drops_only_whitespace(text: str) -> None:
    assert "".join(tokenize(text)) == "".join(text.split())
