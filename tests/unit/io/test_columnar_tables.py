"""Parquet files as tables."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from es_sbert.errors import SourceError, UsageError
from es_sbert.installation import install_extra_command
from es_sbert.io.tables import read_table

COLUMNS = {"a": ["x", "y", None], "b": [1.5, 2.0, 3.0], "c": [0, 1, 2]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    parquet.write_table(pyarrow.table(COLUMNS), tmp_path / "t.parquet", row_group_size=2)
    return tmp_path / "t.parquet"


def test_values_and_row_numbers(path: Path) -> None:
    table = read_table(path, ["c", "a", "b"])
    assert table.columns == COLUMNS
    assert table.lines.tolist() == [1, 2, 3]
    with pytest.raises(SourceError, match=f"{path.name}, row 3: a is missing"):
        table.texts("a")


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_limit_reads_the_first_rows(path: Path, limit: int) -> None:
    assert read_table(path, ["a"], limit=limit).columns["a"] == COLUMNS["a"][:limit]


def test_missing_column_is_rejected(path: Path) -> None:
    with pytest.raises(SourceError, match="has no column z\n  Choose one of its columns: a, b, c"):
        read_table(path, ["a", "z"])


def test_a_limit_beyond_one_batch(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"a": list(range(40_000))}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", ["a"], limit=33_333).columns["a"] == list(range(33_333))


def test_empty_table_is_rejected(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.string())}), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="has no rows"):
        read_table(tmp_path / "t.parquet", ["a"])


def test_invalid_parquet_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(SourceError, match="cannot be read as Parquet"):
        read_table(tmp_path / "t.parquet", ["a"])


def test_folder_is_refused_with_the_way_to_write_a_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is a folder\n.*dataset.to_parquet"):
        read_table(tmp_path, ["a"])


def test_missing_extra_raises_usage_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape(install_extra_command("parquet"))):
        read_table(path, ["a"])
