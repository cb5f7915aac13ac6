"""Collect what the search log records of a request while it is being answered."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from es_sbert.gateway.search.search_rewriter import RewriteResult
from es_sbert.gateway.search.semantic_query import SemanticSyntax
from es_sbert.gateway.search_log import SearchKind, SearchRecord

# `hits.total` of an answer, as an object or (rest_total_hits_as_int) as a number; it stands before the hits themselves.
_TOTAL_HITS = re.compile(rb'"hits":\{(?:"[a-z_]+":[^{}\[\]]*?,)?"total":(?:\{"value":)?(\d+)')
# Enough of an answer to find its total; of several searches, for the total of each.
_PARSED_BYTES = 16 * 1024
_PARSED_BYTES_MSEARCH = 4 * 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS

RecordSink = Callable[[SearchRecord], None]


@dataclass
class SearchRecorder:
    """One request to a search API.

    Attributes:
        index: Expression of indices as the caller wrote it.
        api: `search`, `msearch`, ….
        searches: Result of rewriting each search; None for one that is forwarded unchanged.
        status: HTTP status of the response; 499 if the client disconnected before it.
    """

    index: str
    api: str
    searches: list[RewriteResult | None] = field(default_factory=list)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    start: float = field(default_factory=time.perf_counter)
    sent: float | None = None
    total_hits: TotalHitsParser | None = None
    status: int = 499

    def asked(self, understood: RewriteResult | None) -> None:
        """Note a search."""
        self.searches.append(understood)

    def watch(self) -> TotalHitsParser:
        """Looks at the answer, which begins to be waited for now."""
        self.sent = time.perf_counter()
        self.total_hits = TotalHitsParser(_PARSED_BYTES if len(self.searches) < 2 else _PARSED_BYTES_MSEARCH)
        return self.total_hits

    def records(self) -> list[SearchRecord]:
        """What is remembered, once the answer is given."""
        searches = self.searches or [None]
        totals = [] if self.total_hits is None else self.total_hits.totals()
        # Answers of several searches, some of which failed, have fewer totals than searches: nobody knows whose.
        hits: list[int | None] = list(totals) if len(totals) == len(searches) else [None] * len(searches)
        end = time.perf_counter()
        waited = None if self.sent is None else 1000 * (end - self.sent)
        return [
            _search_record(self, understood, found, self.status, 1000 * (end - self.start), waited)
            for understood, found in zip(searches, hits, strict=True)
        ]


def _search_record(
    note: SearchRecorder,
    understood: RewriteResult | None,
    hits: int | None,
    status: int,
    total: float,
    waited: float | None,
) -> SearchRecord:
    asked = () if understood is None else understood.asked
    ways = {semantic.way for semantic in asked}
    kind = SearchKind.HYBRID if SemanticSyntax.HYBRID in ways else SearchKind.SEMANTIC if ways else SearchKind.LEXICAL
    return SearchRecord(
        index=note.index,
        api=f"_{note.api}",
        kind=kind,
        status=status,
        milliseconds=total,
        embedding_milliseconds=1000 * understood.seconds if understood is not None and asked else None,
        upstream_milliseconds=waited,
        texts=tuple(dict.fromkeys(semantic.text for semantic in asked)),
        rewrites=tuple(sorted(ways)),
        k=max((semantic.k for semantic in asked), default=None),
        hits=hits,
        at=note.at,
    )


class TotalHitsParser:
    """The beginning of an answer, as it passes.

    Args:
        most: Bytes that are looked at.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = bytearray()

    def part(self, part: bytes) -> None:
        """A part of the answer, as the engine sent it."""
        if len(self._seen) < self._most:
            self._seen += part[: self._most - len(self._seen)]

    def totals(self) -> list[int]:
        """The number of hits of each search; fewer where the answer does not tell, or tells it too late."""
        seen = bytes(self._seen)
        if seen.startswith(b"\x1f\x8b"):
            try:
                seen = zlib.decompressobj(_GZIP).decompress(seen, self._most)
            except zlib.error:
                return []  # damaged on its way, which is for the caller to find
        return [int(total) for total in _TOTAL_HITS.findall(seen)]
