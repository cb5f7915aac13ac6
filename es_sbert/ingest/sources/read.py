"""All sources of a load as one stream of records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence

from es_sbert.ingest.records import Origin, Record, Reject
from es_sbert.ingest.sources.source import ByteCounter, Reading, ReadingStopped, ReadSettings, Source, SourceLost
from es_sbert.streams.lines import StreamBroken


def read_records(
    sources: Sequence[Source], settings: ReadSettings, counter: ByteCounter, stop: threading.Event,
    lost: Callable[[str], None],
) -> Generator[Record | Reject]:  # fmt: skip
    """Records of all sources, one after another, with bounded memory.

    A source that breaks off gives its records up to the break and then one reject that says so. Setting `stop`
    ends the stream at the next record.

    Args:
        lost: Told where and why a source stopped answering, which ends the stream: to read it again later gives the
            rest, so nothing of it is rejected.
    """
    reading = Reading(settings, counter, stop)
    for source in sources:
        last = 0
        try:
            for record in source.records(reading):
                last = record.origin.line
                yield record
                if stop.is_set():
                    return
        except ReadingStopped:
            return
        except SourceLost as reason:
            lost(f"{source.name} could not be read {_where(last)}: {reason}")
            return
        except StreamBroken as broken:
            yield Reject(Origin(source.name), f"the source breaks off {_where(last)}: {broken}")
        except OSError as error:
            # It could be opened when the load began: removed or replaced since.
            yield Reject(Origin(source.name), f"the file cannot be opened: {error.strerror or error}")


def _where(last: int) -> str:
    return f"after the record of line {last}" if last else "before its first record"
