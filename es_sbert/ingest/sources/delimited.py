"""CSV and TSV, each with a header line, as records; every value is a string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from es_sbert.ingest.records import Origin, Record, Reject
from es_sbert.streams.delimited import Row, named_rows
from es_sbert.streams.lines import SAMPLE_BYTES


def delimited_records(rows: Iterable[Row], source: str) -> Iterator[Record | Reject]:
    """Rows as objects whose names come from the first row.

    Raises:
        StreamBroken: the first row is no header.
    """
    for number, raw, fields in named_rows(rows):
        origin = Origin(source, number)
        if isinstance(fields, str):
            yield Reject(origin, fields, raw[:SAMPLE_BYTES], len(raw))
        else:
            yield Record(origin, fields, orjson.dumps(fields))
