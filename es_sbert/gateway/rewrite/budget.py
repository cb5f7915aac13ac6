"""How much semantic search one request may ask for."""

from __future__ import annotations

from collections.abc import Sequence

from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.settings import MIB, Limits

# A search repeats its filters in each of its semantic queries. Beyond so many bytes that costs too much memory.
_MOST_REWRITTEN_BYTES = 16 * MIB


class SemanticBudget:
    """What the searches of one request have left of its limits.

    Args:
        limits: The operator's.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queries = limits.semantic_queries
        self._texts: set[tuple[str, str]] = set()
        self._text_bytes = 0

    @property
    def queries(self) -> int:
        """Semantic queries that may still come."""
        return self._queries

    def check(self, queries: int, size: int) -> None:
        """Refuse a search that has too many semantic queries, as soon as so many are found.

        Args:
            queries: Semantic queries of the search.
            size: Its bytes.

        Raises:
            BadRequest: they are too many, or too many beside what else is in the search.
        """
        if queries > self._queries:
            raise BadRequest(
                f"the request has more than {self._limits.semantic_queries:,} semantic queries",
                "Send several requests, or raise --max-semantic-queries of es-sbert serve.",
            )
        if queries > 1 and queries * size > _MOST_REWRITTEN_BYTES:
            raise BadRequest(
                f"a search of {size:,} bytes has {queries:,} semantic queries or more, and its filters apply to each",
                "Ask for fewer of them, or with shorter filters, in one search.",
            )

    def spend(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Count the semantic queries of one search, which passed `check`.

        Args:
            wanted: Of each query, its model's fingerprint and its text.

        Raises:
            BadRequest: more than the request may ask for.
        """
        self.check(len(wanted), 0)
        self._queries -= len(wanted)
        for key in wanted:
            if key not in self._texts:
                self._texts.add(key)
                self._text_bytes += len(key[1].encode("utf-8", "surrogatepass"))
        if len(self._texts) > self._limits.semantic_texts:
            raise BadRequest(
                f"the request has more than {self._limits.semantic_texts:,} different texts to embed",
                "Send several requests, or raise --max-semantic-texts of es-sbert serve.",
            )
        if self._text_bytes > (most := self._limits.semantic_text_bytes):
            raise BadRequest(
                f"the texts of the request's semantic queries have more than {most:,} bytes",
                "Send several requests, or raise --max-semantic-bytes of es-sbert serve.",
            )
