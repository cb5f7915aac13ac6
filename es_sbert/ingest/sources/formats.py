"""Which format a file has, by its name."""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePosixPath

from es_sbert.streams.compression import SUFFIXES, Compression


class Format(StrEnum):
    """What stands inside the compression."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    LINES = "lines"
    PARQUET = "parquet"
    ARROW = "arrow"
    LETTERS = "letters"  # a dead-letter file, by --retry alone


ASKED = "Add --format jsonl, csv, tsv, lines, parquet or arrow."

_FORMATS = {
    ".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".json": Format.JSONL, ".csv": Format.CSV, ".tsv": Format.TSV,
    ".tab": Format.TSV, ".txt": Format.LINES, ".parquet": Format.PARQUET, ".pq": Format.PARQUET,
    ".arrow": Format.ARROW, ".arrows": Format.ARROW, ".feather": Format.ARROW, ".ipc": Format.ARROW,
}  # fmt: skip


def told_by_name(name: str) -> tuple[Format | None, Compression | None]:
    """Format and compression that a file's name tells; None where it tells none."""
    path = PurePosixPath(name)
    compression = SUFFIXES.get(path.suffix.lower())
    inner = PurePosixPath(path.stem) if compression else path
    return _FORMATS.get(inner.suffix.lower()), compression
