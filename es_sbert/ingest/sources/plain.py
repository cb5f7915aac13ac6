"""Plain text: every line is the text of one document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from es_sbert.ingest.records import SAMPLE_BYTES, Origin, Record, Reject
from es_sbert.ingest.sources.jsonl import too_long, utf8_problem
from es_sbert.ingest.sources.lines import Line


def plain_records(lines: Iterable[Line], source: str, field: str) -> Iterator[Record | Reject]:
    """`{field: line}` for each line, empty ones too (they are counted as documents without text)."""
    for line in lines:
        if line.too_long:
            yield too_long(line, source)
            continue
        data = line.data.removesuffix(b"\r")
        origin = Origin(source, line.number)
        problem = utf8_problem(data)
        if problem:
            yield Reject(origin, problem, data[:SAMPLE_BYTES], len(data))
        else:
            fields = {field: data.decode()}
            yield Record(origin, fields, orjson.dumps(fields))
