"""What the gateway remembers of one search, as a document of its log: pure functions."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError

DEFAULT_INDEX = "es-sbert-searches"
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
# BLAKE2's own limits on a key, in bytes; a shorter one could be tried out.
SHORTEST_KEY, LONGEST_KEY = 16, 64


class Kind(StrEnum):
    """How a search found its documents."""

    LEXICAL = "lexical"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class SearchRecord:
    """One search that came through the gateway; of `_msearch`, one of its searches.

    Attributes:
        index: Index expression as the caller wrote it.
        api: `_search`, `_msearch`, `_async_search`, ….
        kind: How its documents were found.
        status: HTTP status of the answer to the caller.
        milliseconds: From the request's arrival to the end of the answer.
        embedding_milliseconds: Of these, until the vectors of its texts were there; None where it had none.
        upstream_milliseconds: Of these, until the engine had answered; None where it was not asked.
        texts: The texts that were searched by meaning.
        rewrites: What was rewritten: `virtual_field`, `text_embedding`, `semantic`, `neural`, `match`, ….
        k: Nearest documents that were asked for; None where that has no meaning.
        hits: Documents found (`hits.total`); None where the answer does not tell.
        at: When it came.
        id: Of the document in the log, so that it may be sent twice.
    """

    index: str
    api: str
    kind: Kind
    status: int
    milliseconds: float
    embedding_milliseconds: float | None = None
    upstream_milliseconds: float | None = None
    texts: Sequence[str] = ()
    rewrites: Sequence[str] = ()
    k: int | None = None
    hits: int | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    id: str = field(default_factory=lambda: secrets.token_hex(10))


@dataclass(frozen=True)
class Wording:
    """What the log says of a query's text.

    Attributes:
        queries: Whether the text itself is written. People type names, illnesses and passwords into search boxes.
        key: Otherwise its hash under this key (BLAKE2b, 16 bytes), so that repetitions can be counted and nobody
            without the key can try out texts.
    """

    queries: bool
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, *, queries: bool, key: bytes | None = None) -> Wording:
        """
        Args:
            queries: Whether texts are written.
            key: None makes one for this process: hashes of different processes then have nothing in common.

        Raises:
            UsageError: a key that is too short or too long.
        """
        if key is not None and not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
            raise UsageError(
                f"the key of the search log has {len(key)} bytes, not {SHORTEST_KEY} to {LONGEST_KEY}",
                "Make one: openssl rand -hex 32.",
            )
        return cls(queries=queries, key=key or secrets.token_bytes(LONGEST_KEY))

    def of_texts(self, texts: Sequence[str]) -> Json:
        """The fields of a document that stand for its texts."""
        if not texts:
            return {}
        hashes = {"query_hash": [self._hash(text) for text in texts]}
        return hashes | {"query": list(texts)} if self.queries else hashes

    def _hash(self, text: str) -> str:
        # Case and spaces make no other query of it.
        same = " ".join(text.casefold().split()).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(same, digest_size=16, key=self.key).hexdigest()


def check_index_name(name: str) -> str:
    """The name before the month.

    Raises:
        UsageError: engines do not take such a name.
    """
    if not _INDEX_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for an index",
            "Use small letters, digits, hyphens and underscores, with a letter or digit in front.",
        )
    return name


def month_index(name: str, at: datetime) -> str:
    """The index of a month: `es-sbert-searches-2026.01`. A month that nobody needs any more is deleted as a whole."""
    return f"{name}-{at.astimezone(UTC):%Y.%m}"


def all_months(name: str) -> str:
    """What Kibana, OpenSearch Dashboards and deletions call all months."""
    return f"{name}-*"


def document(record: SearchRecord, wording: Wording, gateway: str) -> Json:
    """The document of a search.

    Args:
        gateway: Which gateway it is, where there are several.
    """
    times = {
        "total": record.milliseconds,
        "embedding": record.embedding_milliseconds,
        "upstream": record.upstream_milliseconds,
    }
    facts: Json = {
        "@timestamp": record.at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "gateway": gateway,
        "index": record.index,
        "api": record.api,
        "kind": record.kind,
        "rewrites": list(record.rewrites),
        "k": record.k,
        "status": record.status,
        "hits": record.hits,
        "zero_hits": None if record.hits is None else record.hits == 0,
        "milliseconds": {name: round(value, 3) for name, value in times.items() if value is not None},
        **wording.of_texts(record.texts),
    }
    return {name: value for name, value in facts.items() if value is not None and value != []}


def bulk_lines(records: Sequence[SearchRecord], name: str, wording: Wording, gateway: str) -> bytes:
    """Body of a bulk request. A record that is in the log already is refused there (409), not written twice."""
    lines = []
    for record in records:
        lines.append(orjson.dumps({"create": {"_index": month_index(name, record.at), "_id": record.id}}))
        lines.append(orjson.dumps(document(record, wording, gateway)))
    return b"\n".join(lines) + b"\n"
