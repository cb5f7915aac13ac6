"""A look at the beginning of every file before anything is loaded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from itertools import islice

from es_sbert.errors import SourceError
from es_sbert.ingest.sources.find import Format, Source
from es_sbert.ingest.sources.raw import ByteCounter, raw_chunks
from es_sbert.streams.compression import MAGIC_BYTES, Compression, decompressed, detect
from es_sbert.streams.delimited import csv_rows, header, tsv_rows
from es_sbert.streams.lines import StreamBroken, split_lines, without_byte_order_mark


def check_sources(sources: Sequence[Source], max_bytes: int, text_fields: Sequence[str], id_field: str | None) -> None:
    """Open every regular file and check what its first lines tell; pipes are left alone.

    Args:
        text_fields: Fields of which a header must name at least one.
        id_field: Field that a header must name, where one is asked for.

    Raises:
        SourceError: a file cannot be opened, is not what its name says, or lacks the columns asked for.
    """
    for source in sources:
        if source.size is None:
            continue
        try:
            _check(source, max_bytes, text_fields, id_field)
        except OSError as error:
            raise SourceError(
                f"{source.name} cannot be read: {error.strerror}", "Check that this user may read it."
            ) from error
        except StreamBroken as broken:
            raise SourceError(f"{source.name}: {broken}", "Mend or convert the file and run again.") from broken


def _check(source: Source, max_bytes: int, text_fields: Sequence[str], id_field: str | None) -> None:
    with open(os.fspath(source.path or ""), "rb") as file:
        magic = file.read(MAGIC_BYTES)
    if not magic:
        return
    if source.compression is not None and detect(magic) is not source.compression:
        raise SourceError(
            f"{source.name} is called {source.compression} but does not hold {source.compression} data",
            "Rename it, or compress it again.",
        )
    if source.format in (Format.CSV, Format.TSV):
        _check_header(source, max_bytes, text_fields, id_field)
        return
    try:
        head = next(_text(source), b"")
    except StreamBroken:
        if detect(magic) is Compression.NONE:
            raise
        # A truncated archive may still hold documents: the load reads them and reports the break.
        return
    if source.format is Format.JSONL and head.lstrip().startswith(b"["):
        raise SourceError(
            f"{source.name} holds a JSON array, not one object a line",
            f"Turn it into JSON Lines: jq -c '.[]' {source.name}",
        )


def _text(source: Source) -> Iterator[bytes]:
    return without_byte_order_mark(decompressed(raw_chunks(source, ByteCounter(), threading.Event())))


def _check_header(source: Source, max_bytes: int, text_fields: Sequence[str], id_field: str | None) -> None:
    lines = split_lines(_text(source), max_bytes)
    rows = csv_rows(lines, max_bytes) if source.format is Format.CSV else tsv_rows(lines)
    first = next(islice(rows, 1), None)
    if first is None:
        return
    names = header(first[2])
    columns = f"its columns are: {', '.join(names)}"
    if not any(field in names for field in text_fields):
        raise SourceError(
            f"{source.name} has no column {' or '.join(text_fields)}", f"Name one with --text-field; {columns}."
        )
    if id_field is not None and id_field not in names:
        raise SourceError(f"{source.name} has no column {id_field}", f"Name one with --id-field; {columns}.")
