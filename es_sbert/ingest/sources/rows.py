"""Rows of tables, from wherever they come, as records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson

from es_sbert.errors import SourceError
from es_sbert.ingest.records import Origin, Record, Reject
from es_sbert.ingest.sources.json_values import BadValue, json_object, sample
from es_sbert.ingest.sources.source import WantedColumns
from es_sbert.streams.lines import SAMPLE_BYTES


def check_columns(name: str, columns: Sequence[str], wanted: WantedColumns) -> None:
    """Make sure that rows of these columns can become documents.

    Raises:
        SourceError: two columns have the same name, or one that is wanted is missing.
    """
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice:
        raise SourceError(f"{name} has two columns called {twice[0]}", "Give each a name of its own.")
    wanted.check(name, columns, nested=True)


def row_record(row: dict[str, Any], origin: Origin, max_bytes: int) -> Record | Reject:
    """A row whose values are converted as a record.

    Args:
        max_bytes: Longest document.
    """
    try:
        data = json_object(row)
    except BadValue as bad:
        raw = sample(row)
        return Reject(origin, str(bad), raw[:SAMPLE_BYTES], len(raw))
    if len(data) > max_bytes:
        reason = f"the row has {len(data):,} bytes as JSON, more than --max-document-bytes allows"
        return Reject(origin, reason, data[:SAMPLE_BYTES], len(data))
    return Record(origin, orjson.loads(data), data)
