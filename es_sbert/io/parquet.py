"""Read Parquet files batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from es_sbert.errors import error_summary, require_extra
from es_sbert.io.text_formats import CorruptStream

# Bytes of a column that are read at a time, and rows that are decoded at a time: so many bytes of them, at most so
# many. What a row group says of its size is before decoding, so that rows are bounded as well.
_READ_BYTES = 1 << 20
_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 1 << 12


@contextmanager
def open_parquet(file: Path | BinaryIO) -> Iterator[Any]:
    """A Parquet file, its footer read (a `pyarrow.parquet.ParquetFile`).

    Args:
        file: A path, or a file that can be read anywhere.

    Raises:
        OSError: there is no such file, or it cannot be opened.
        CorruptStream: it is no Parquet file, or what is read of it while it is open is damaged.
        UsageError: pyarrow is not installed.
    """
    require_extra("parquet", "pyarrow")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    if isinstance(file, Path):
        with open(file, "rb"):  # for an error of the system's rather than Arrow's
            pass
    try:
        # Row groups of a remote file are fetched whole, in few requests; a local one is read page by page.
        with ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=not isinstance(file, Path)) as opened:
            yield opened
    except (pyarrow.ArrowException, OSError) as error:
        raise CorruptStream(f"the Parquet data is damaged ({error_summary(error)})") from error


def parquet_batches(
    file: Any, columns: Sequence[str] | None = None, groups: Iterable[int] | None = None
) -> Iterator[Any]:
    """Record batches in the order of the file, with memory for one of them.

    Args:
        file: As `open_parquet` gives it.
        columns: Names of the columns to read; None reads all.
        groups: Row groups to read; None reads all.
    """
    for group in range(file.num_row_groups) if groups is None else groups:
        meta = file.metadata.row_group(group)
        a_row = max(1, meta.total_byte_size // max(1, meta.num_rows))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // a_row))
        # Group by group: what is fetched ahead of one is let go of with it.
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
