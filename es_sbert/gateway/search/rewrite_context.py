"""What a search body is rewritten for: indices, caller, mode (`X-Es-Sbert`), and the limits of the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.proxy.incoming_request import Headers
from es_sbert.gateway.settings import MIB, Limits

MODE_HEADER = b"x-es-sbert"


def check_mode(header: bytes) -> None:
    """Refuse a header `X-Es-Sbert` that says nothing known: it was meant to change something.

    Raises:
        BadRequest: it does.
    """
    if header.strip().lower() not in (b"", *(mode.encode() for mode in RewriteMode)):
        raise BadRequest("the header X-Es-Sbert says nothing known", "Write off, on or hybrid, or leave it out.")


class RewriteMode(StrEnum):
    """What a request's header `X-Es-Sbert` asks for."""

    OFF = "off"
    ON = "on"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class RewriteContext:
    """Where a search looks, and for whom.

    Attributes:
        expression: Of indices, percent-encoded; empty for all.
        options: The request's parameters.
        headers: The caller's.
        mode: How it wants to be understood.
        listed: Whether the engine itself has told the caller these concrete names.
        size: Bytes of the body that the search stands in.
        budget: What the request may still ask for; None where nothing is embedded.
    """

    expression: str
    options: Mapping[str, str]
    headers: Headers
    mode: RewriteMode
    listed: bool = False
    size: int = 0
    budget: SemanticBudget | None = None


# A search repeats its filters in each of its semantic queries. Beyond so many bytes that costs too much memory.
_MAX_REWRITTEN_BYTES = 16 * MIB


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
        if queries > 1 and queries * size > _MAX_REWRITTEN_BYTES:
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
