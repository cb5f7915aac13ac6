"""Text from outside on its way to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.messages import escape_unprintable, escape_unprintable_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("naïve 日本語 🎸", "naïve 日本語 🎸"),
        ("\x1b[31mred\r\n\x9b31m", "\\x1b[31mred\\r\\n\\x9b31m"),
        ("\udcff.jsonl", "\\udcff.jsonl"),
        ("lnosj.\u202efdp.exe", "lnosj.\\u202efdp.exe"),
    ],
)
def test_escape_unprintable(text: str, shown: str) -> None:
    assert escape_unprintable(text) == shown


@given(st.text(st.characters(), max_size=50))
def test_escaped_text_has_no_control_characters(text: str) -> None:
    shown = escape_unprintable(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert shown.encode().decode() == shown
    assert escape_unprintable(shown) == shown
    assert escape_unprintable_lines(text).count("\n") == text.count("\n")
