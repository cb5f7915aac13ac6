"""Parquet files and the folders that the `datasets` library writes, as tables (extras `parquet` and `train`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from es_sbert.errors import SourceError, first_line
from es_sbert.extras import require
from es_sbert.streams.lines import StreamBroken
from es_sbert.tabular.missing import check_columns
from es_sbert.tabular.parquet import open_parquet, parquet_batches
from es_sbert.tabular.table import Table


def read_parquet(path: Path, columns: Sequence[str], limit: int | None) -> Table:
    """Read a Parquet file; values as Python has them.

    Raises:
        SourceError: it is no Parquet file, is damaged, or lacks a column.
        UsageError: pyarrow is not installed.
    """
    values: dict[str, list[Any]] = {column: [] for column in columns}
    rows = 0
    try:
        with open_parquet(path) as file:
            check_columns(path, columns, file.schema_arrow.names)
            # In batches, so that a limit does not read the whole file.
            for batch in parquet_batches(file, list(values)):
                taken = batch.slice(0, None if limit is None else limit - rows)
                for column, kept in values.items():
                    kept.extend(taken.column(column).to_pylist())
                rows += taken.num_rows
                if rows == limit:
                    break
    except (StreamBroken, OSError) as error:
        raise SourceError(
            f"{path} cannot be read as Parquet: {first_line(error)}", "Write it again, or check the path."
        ) from error
    return Table(path, values, np.arange(1, rows + 1, dtype=np.int64), unit="row")


def read_datasets_folder(path: Path, columns: Sequence[str], limit: int | None) -> Table:
    """Read a folder that `Dataset.save_to_disk` wrote.

    Raises:
        SourceError: it is no such folder, holds several splits, is damaged, or lacks a column.
        UsageError: datasets is not installed.
    """
    splits = path / "dataset_dict.json"
    if splits.is_file():
        raise SourceError(f"{path} holds several splits", f"Name one of them: {_choices(path, splits)}.")
    if not (path / "dataset_info.json").is_file() or not (path / "state.json").is_file():
        raise SourceError(
            f"{path} is a folder, but none that datasets' save_to_disk wrote",
            "Name a file in it, or write it with dataset.save_to_disk(folder).",
        )
    require("train", "datasets")
    from datasets import load_from_disk

    try:
        # Without a format, values are Python's own, whatever format the data set was saved with.
        dataset = load_from_disk(str(path)).with_format(None)
        names = dataset.column_names
        check_columns(path, columns, names)
        rows = len(dataset) if limit is None else min(limit, len(dataset))
        taken = dataset.select(range(rows))
        values = {column: list(taken[column]) for column in columns}
    except SourceError:
        raise
    except Exception as error:  # whatever datasets and pyarrow raise on files that they cannot make sense of
        raise SourceError(
            f"{path} cannot be read by datasets: {first_line(error)}", "Write it again with dataset.save_to_disk()."
        ) from error
    return Table(path, values, np.arange(1, rows + 1, dtype=np.int64), unit="row")


def _choices(path: Path, file: Path) -> str:
    try:
        names = json.loads(file.read_bytes())["splits"]
        return ", ".join(str(path / name) for name in names)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{file} cannot be read: {error}", "Write the folder again with save_to_disk().") from error
