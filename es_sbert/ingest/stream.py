"""The records of a load's sources, of which the first are looked at before an index is made."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import Any

from es_sbert.ingest.control import Control
from es_sbert.ingest.records import Record, Reject
from es_sbert.ingest.sources.read import read_records
from es_sbert.ingest.sources.source import ByteCounter, ReadSettings, Source


class RecordStream:
    """Records of all sources, read once: a pipe or a query gives them only once.

    Args:
        sources: What is read.
        settings: How.
        control: Says when to stop, and is told of a source that does not answer any more.

    Attributes:
        counter: How much of the sources was read.
    """

    def __init__(self, sources: Sequence[Source], settings: ReadSettings, control: Control) -> None:
        self.counter = ByteCounter()
        self._records: Generator[Record | Reject] = read_records(
            sources, settings, self.counter, control.stop, control.cut
        )
        self._peeked: list[Record | Reject] = []

    @property
    def peeked(self) -> list[dict[str, Any]]:
        """The objects among the first records that were looked at; none once the stream is read."""
        return [record.fields for record in self._peeked if isinstance(record, Record)]

    def peek(self) -> Iterator[Record | Reject]:
        """The first records, as many as are taken; iterating over the stream gives them again."""
        yield from self._peeked
        for record in self._records:
            self._peeked.append(record)
            yield record

    def __iter__(self) -> Iterator[Record | Reject]:
        peeked, self._peeked = self._peeked, []
        return chain(peeked, self._records)

    def close(self) -> None:
        """Let go of the source: its file, or its connection to a database."""
        self._records.close()
