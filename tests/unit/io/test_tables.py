"""Columns as texts and numbers, and what is said of values that are neither."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from es_sbert.errors import SourceError
from es_sbert.io.tables import Table


def table(*values: object, unit: str = "line") -> Table:
    return Table(Path("t"), {"a": list(values)}, np.arange(2, len(values) + 2), unit)


def test_bytes_in_utf8_are_texts() -> None:
    assert table("a", "é".encode()).texts("a") == ["a", "é"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "a is missing"),
        ("", "a is empty"),
        (" \t\u00a0\n", "a is empty"),
        (3, "a is not a text: 3"),
        (b"caf\xe9", r"a holds bytes that are not valid UTF-8; cast the column to a string: b'caf\xe9'"),
        (["x" * 100], "a is not a text: ['" + "x" * 58 + "…"),
    ],
)
def test_non_text_values_are_rejected(value: object, reason: str) -> None:
    with pytest.raises(SourceError) as caught:
        table("fine", value).texts("a")
    assert caught.value.message == f"t, line 3: {reason}"


def test_texts_are_not_stripped() -> None:
    assert table(" x ", "y").texts("a") == [" x ", "y"]


def test_floats_are_parsed() -> None:
    assert table("1", " -2.5e1 ", 3, 4.5, Decimal("5.25")).floats("a").tolist() == [1.0, -25.0, 3.0, 4.5, 5.25]


@pytest.mark.parametrize("value", ["high", "", "nan", "inf", "1_000", "1,5", True, None, float("nan"), [1], 10**400])
def test_non_numeric_values_are_rejected(value: object) -> None:
    with pytest.raises(SourceError, match="t, row 3: a is not a finite number: ") as caught:
        table(1, value, unit="row").floats("a")
    assert len(caught.value.message) < 120


def test_problems_of_several_columns_are_in_file_order() -> None:
    both = Table(Path("t"), {"a": ["x", "", "", ""], "b": ["1", "2", "?", "?"]}, np.array([2, 3, 4, 5]))
    problems = both.problems()
    assert both.texts("a", problems) == ["x", "", "", ""]
    assert np.isnan(both.floats("b", problems)).tolist() == [False, False, True, True]
    with pytest.raises(SourceError) as caught:
        problems.check("Mend it.")
    assert [line.split(": ")[1][0] for line in caught.value.message.splitlines()] == ["a", "a", "b", "a", "b"]
    assert caught.value.remedy == "Mend it."


def test_check_without_problems_passes() -> None:
    table("x").problems().check("Nothing to mend.")
