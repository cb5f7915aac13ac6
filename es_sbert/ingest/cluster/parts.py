"""What workers are handed: a file, a piece of a long one, or a slice of an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from es_sbert.engines.protocol import Slice
from es_sbert.errors import SourceError
from es_sbert.ingest.sources.source import Source
from es_sbert.streams.lines import StreamBroken

# Bytes of a part of a file that can be cut: some minutes of a worker on a CPU. What a lost machine had in hand is begun
# anew, and at the end of a load the workers wait for the last part.
PART_BYTES = 16 << 20
# Slices of an index for each worker, for the same reasons.
SLICES = 8
# More of them engines refuse, unless an index is set up otherwise.
MOST_SLICES = 1024


@dataclass(frozen=True)
class Part:
    """What one worker does at a time.

    Attributes:
        number: From 0.
        source: What it reads; None where the index is the source.
        slice: Slice of the index; None where a source is read.
    """

    number: int
    source: Source | None = None
    slice: Slice | None = None


def source_parts(sources: Sequence[Source], size: int = PART_BYTES) -> list[Part]:
    """Parts of sources, those of one source in its order.

    Args:
        size: Bytes of a part of a source that can be cut.

    Raises:
        UsageError: a source that other machines cannot read.
        SourceError: a source that cannot be read to cut it.
    """
    pieces: list[Source] = []
    for source in sources:
        try:
            pieces += source.pieces(size)
        except (OSError, StreamBroken) as error:
            raise SourceError(f"{source.name} cannot be read: {error}", "Mend or leave out the file.") from error
    return [Part(number, source=piece) for number, piece in enumerate(pieces)]


def index_parts(workers: int, point_in_time: str) -> list[Part]:
    """Slices of an index.

    Args:
        point_in_time: Its id.
    """
    count = min(max(2, workers * SLICES), MOST_SLICES)  # engines take no single slice
    return [Part(number, slice=Slice(number, count, point_in_time)) for number in range(count)]
