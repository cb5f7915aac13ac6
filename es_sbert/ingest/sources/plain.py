"""Plain text: every line is the text of one document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from es_sbert.ingest.records import Origin, Record, Reject
from es_sbert.streams.json_lines import utf8_problem
from es_sbert.streams.lines import SAMPLE_BYTES, Line, too_long


def plain_records(lines: Iterable[Line], source: str, field: str) -> Iterator[Record | Reject]:
    """`{field: line}` for each line, empty ones too (they are counted as documents without text)."""
    for line in lines:
        origin = Origin(source, line.number)
        if line.too_long:
            yield Reject(origin, too_long(line), line.data, line.size)
            continue
        data = line.data.removesuffix(b"\r")
        problem = utf8_problem(data)
        if problem:
            yield Reject(origin, problem, data[:SAMPLE_BYTES], len(data))
        else:
            fields = {field: data.decode()}
            yield Record(origin, fields, orjson.dumps(fields))
