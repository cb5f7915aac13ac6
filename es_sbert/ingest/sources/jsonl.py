"""JSON Lines as records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from es_sbert.ingest.records import Origin, Record, Reject
from es_sbert.streams.json_lines import SPACE, depth_problem, parse_object
from es_sbert.streams.lines import SAMPLE_BYTES, Line, too_long


def jsonl_records(lines: Iterable[Line], source: str) -> Iterator[Record | Reject]:
    """One record a line; lines of nothing but white space are passed over."""
    for line in lines:
        origin = Origin(source, line.number)
        data = line.data.strip(SPACE)
        if line.too_long:
            yield Reject(origin, too_long(line), line.data, line.size)
        elif data:
            fields = parse_object(data)
            problem = fields if isinstance(fields, str) else depth_problem(fields, data)
            if isinstance(fields, str) or problem is not None:
                yield Reject(origin, str(problem), data[:SAMPLE_BYTES], len(data))
            else:
                yield Record(origin, fields, data)
