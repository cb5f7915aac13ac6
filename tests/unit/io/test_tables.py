"""Tables of files: their values, and the lines of faulty ones."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from es_sbert.errors import SourceError, UsageError
from es_sbert.io.tables import Table, read_table
from tests.raised import raises_as_recorded


def write(path: Path, data: str | bytes) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    elif path.suffix == ".zst":
        raw = zstandard.compress(raw)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("t.tsv", 'a\tb\nx "1"\t2.5\n"y\t3\n', [2, 3]),
        ("t.csv", 'a,b\n"x ""1""",2.5\n"""y",3\n', [2, 3]),
        ("t.jsonl", '{"a": "x \\"1\\"", "b": "2.5"}\n\n{"b": "3", "a": "\\"y"}\n', [1, 3]),
    ],
)
def test_formats_by_extension(name: str, text: str, lines: list[int], ending: str, tmp_path: Path) -> None:
    table = read_table(write(tmp_path / (name + ending), text), ["b", "a"])
    assert table.columns == {"b": ["2.5", "3"], "a": ['x "1"', '"y']}
    assert table.texts("a") == ['x "1"', '"y']
    assert table.floats("b").tolist() == [2.5, 3.0]
    assert table.lines.tolist() == lines
    assert len(table) == 2


def test_multiline_row_is_numbered_by_its_first_line(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.csv", 'a\r\n"1\n2\n3"\r\n4\r\n'), ["a"])
    assert table.columns["a"] == ["1\n2\n3", "4"]
    assert table.lines.tolist() == [2, 5]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.tsv", b"a\tb\n1\t2\n1\n"),
        ("t.csv", b"a\n1\n\xe9\n"),
        ("t.jsonl", b'{"a": 1}\n{"a": \n'),
        ("t.csv", b"b,c\n1,2\n"),
        ("t.jsonl", b'{"b": 1}\n{"c": 1}\n'),
        ("t.tsv", b"a\tb\n"),
        ("t.csv", b"a,,b\n1,2,3\n"),
        ("t.txt", b"a\n1\n"),
    ],
)
def test_invalid_files_are_rejected(name: str, data: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / name, data)
    with raises_as_recorded(SourceError):
        read_table(path, ["a"])


COLUMNS = {"a": ["x", "y", None], "b": [1.5, 2.0, 3.0], "c": [0, 1, 2]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    parquet.write_table(pyarrow.table(COLUMNS), tmp_path / "t.parquet", row_group_size=2)
    return tmp_path / "t.parquet"


def test_values_and_row_numbers(path: Path) -> None:
    table = read_table(path, ["c", "a", "b"])
    assert table.columns == COLUMNS
    assert table.lines.tolist() == [1, 2, 3]
    with raises_as_recorded(SourceError):
        table.texts("a")


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_limit_reads_the_first_rows(path: Path, limit: int) -> None:
    assert read_table(path, ["a"], limit=limit).columns["a"] == COLUMNS["a"][:limit]


def test_missing_column_is_rejected(path: Path) -> None:
    with raises_as_recorded(SourceError):
        read_table(path, ["a", "z"])


def test_invalid_parquet_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"a,b\n1,2\n")
    with raises_as_recorded(SourceError):
        read_table(tmp_path / "t.parquet", ["a"])


def test_missing_extra_raises_usage_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises_as_recorded(UsageError):
        read_table(path, ["a"])


def table(*values: object, unit: str = "line") -> Table:
    return Table(Path("t"), {"a": list(values)}, np.arange(2, len(values) + 2), unit)


@pytest.mark.parametrize("value", [None, "", " \t\u00a0\n", 3, b"caf\xe9", ["x" * 100]])
def test_non_text_values_are_rejected(value: object) -> None:
    with raises_as_recorded(SourceError):
        table("fine", value).texts("a")


@pytest.mark.parametrize("value", ["high", "", "nan", "inf", "1_000", "1,5", True, None, float("nan"), [1], 10**400])
def test_non_numeric_values_are_rejected(value: object) -> None:
    with raises_as_recorded(SourceError) as caught:
        table(1, value, unit="row").floats("a")
    assert len(caught.value.message) < 120


def test_problems_of_several_columns_are_in_file_order() -> None:
    both = Table(Path("t"), {"a": ["x", "", "", ""], "b": ["1", "2", "?", "?"]}, np.array([2, 3, 4, 5]))
    problems = both.problems()
    assert both.texts("a", problems) == ["x", "", "", ""]
    assert np.isnan(both.floats("b", problems)).tolist() == [False, False, True, True]
    with raises_as_recorded(SourceError):
        problems.check("Mend it.")
