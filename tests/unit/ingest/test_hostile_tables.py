"""Parquet files that expand or are damaged: bounded memory, and no crash."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from es_sbert.errors import SourceError
from es_sbert.ingest.sources.document_source import (
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import find_sources
from es_sbert.ingest.sources.table_rows import column_to_json
from es_sbert.io.file_formats import open_parquet, parquet_batches

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SETTINGS = ReadSettings(max_bytes=1 << 20, plain_text_field="text")


def load(path: Path) -> list[Record | RejectedRecord]:
    sources = find_sources([str(path)], None)
    check_sources(sources, SETTINGS.max_bytes, ("text",), None)
    return list(read_records(sources, SETTINGS))


def test_dictionary_bomb_is_decoded_a_few_rows_at_a_time(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), ["a" * 100_000])
    # Without its schema, the column is not read as a dictionary.
    parquet.write_table(pa.table({"text": values}), tmp_path / "a.parquet", store_schema=False, compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with open_parquet(tmp_path / "a.parquet") as file:
        assert max(batch.nbytes for batch in parquet_batches(file)) < 20_000_000
    records = load(tmp_path / "a.parquet")
    assert len(records) == 10_000


def test_slices_of_a_dictionary_convert_only_their_values() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([None, *range(100_000)], pa.int32()), pa.array(range(100_000)))
    begun = time.process_time()
    rows = [value for start in range(0, len(values), 64) for value in column_to_json(values.slice(start, 64))]
    assert rows == [None, *range(100_000)]
    assert time.process_time() - begun < 20


def test_deep_schema_is_refused(tmp_path: Path) -> None:
    kind = pa.int32()
    for _ in range(3000):
        kind = pa.struct([("a", kind)])
    parquet.write_table(pa.table({"text": ["a"], "deep": pa.nulls(1, kind)}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="too deeply nested"):
        load(tmp_path / "a.parquet")


def read_damaged(path: Path) -> None:
    """Load many damaged copies of a file; any exception but a refusal is raised."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    whole, made = path.read_bytes(), random.Random(7)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(made.choice((1, 2, 5))):
            data[made.randrange(len(data))] = made.choice((0, 127, 128, 255, made.randrange(256)))
        path.write_bytes(data)
        with contextlib.suppress(SourceError):
            load(path)


@pytest.mark.skipif(sys.platform == "win32", reason="limits the memory of a process")
def test_damaged_files_are_refused_without_a_crash(tmp_path: Path) -> None:
    columns = {"text": ["a", "b", None] * 20, "list": [["x"], [], None] * 20, "number": list(range(60))}
    table = pa.table({**columns, "word": pa.array(["k"] * 60).dictionary_encode()})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    # In a process of its own, because Arrow may crash.
    code = f"from pathlib import Path; from {__name__} import read_damaged; read_damaged(Path('a.parquet'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
