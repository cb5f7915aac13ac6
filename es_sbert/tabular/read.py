"""From a path to a table: the format is told by the name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from es_sbert.errors import SourceError
from es_sbert.tabular.columnar import read_datasets_folder, read_parquet
from es_sbert.tabular.table import Table
from es_sbert.tabular.textual import TEXTUAL_SUFFIXES, read_textual

_COMPRESSED = (".gz", ".zst", ".zstd")
_KNOWN = ".jsonl, .csv or .tsv (each also .gz or .zst), .parquet, or a folder written by datasets' save_to_disk"


def read_table(path: Path, columns: Sequence[str], *, limit: int | None = None) -> Table:
    """Read columns of a JSONL, CSV (RFC 4180), TSV (without quoting) or Parquet file, or of a datasets folder.

    JSONL, CSV and TSV may be compressed by gzip or zstd and are UTF-8. Parquet needs the extra `parquet`,
    datasets folders `train`; `train` brings both.

    Args:
        path: The file or folder.
        columns: Names of the columns to keep.
        limit: Read only the first so many rows.

    Returns:
        The table, of at least one row.

    Raises:
        SourceError: no such file, an unknown format, a broken file or row (with the line), a column that no row
            has, or no rows.
        UsageError: the library that reads the format is not installed.
    """
    if not path.exists():
        raise SourceError(
            f"{path} does not exist", "Check the path; a relative one counts from the data folder (--data)."
        )
    table = _read(path, columns, limit)
    if not len(table):
        raise SourceError(f"{path} holds no rows", "Name a file with data.")
    return table


def _read(path: Path, columns: Sequence[str], limit: int | None) -> Table:
    if path.is_dir():
        return read_datasets_folder(path, columns, limit)
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    suffix = name.suffix.lower()
    if suffix in TEXTUAL_SUFFIXES:
        return read_textual(path, suffix, columns, limit)
    if path.suffix.lower() == ".parquet":
        return read_parquet(path, columns, limit)
    raise SourceError(f"the name of {path} does not tell its format", f"Give a file that ends in {_KNOWN}.")
