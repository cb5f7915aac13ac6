"""An incoming search: its body, URI parameters, template, point in time, mode (`X-Es-Sbert`) and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl, quote

from cachetools import LRUCache

from es_sbert.engines.protocol import Json
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.index_lookup import IndexExpression
from es_sbert.gateway.proxy.forward import BufferedResponse, OutgoingRequest, fetch_response
from es_sbert.gateway.proxy.incoming_request import (
    CallerCacheKeys,
    IncomingRequest,
    credential_headers,
    decompress_body,
)
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, parse_object, write_object
from es_sbert.gateway.proxy.upstream import CLIENT_ERROR_STATUSES, Upstream
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
class RewriteContext(IndexExpression):
    """Where a search looks, and for whom.

    Attributes:
        mode: How it wants to be understood.
        size: Bytes of the body that the search stands in.
        budget: What the request may still ask for; None where nothing is embedded.
    """

    mode: RewriteMode
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


# Parameters of a URI search, which become a query_string in the body.
_URI_SEARCH_PARAMETERS = {
    "q": "query",
    "df": "default_field",
    "default_operator": "default_operator",
    "analyzer": "analyzer",
    "analyze_wildcard": "analyze_wildcard",
    "lenient": "lenient",
}


@dataclass(frozen=True)
class ReceivedRequest:
    """A request whose body is there.

    Attributes:
        same: The very request, to be passed on.
        mode: How it wants to be understood.
        plain: Its body, uncompressed, in UTF-8; None where nothing is to be understood: it is switched off, or no JSON.
    """

    same: OutgoingRequest
    mode: RewriteMode
    plain: bytes | None


@dataclass(frozen=True)
class ParsedSearch:
    """A request's search as it was read.

    Attributes:
        body: The search.
        params: The parameters that stay in the query.
    """

    body: Json
    params: list[tuple[str, str]]


async def decompress_offloaded(raw: bytes, incoming: IncomingRequest) -> bytes | None:
    """A body without its content encoding; None where that is one that cannot be undone here.

    Raises:
        RequestTooLarge, BadRequest: as `decompressed`.
    """
    # How large a compressed body is, is known only afterwards.
    size = incoming.limits.body_bytes if incoming.header(b"content-encoding") else len(raw)
    return await offload_if_large(size, decompress_body, raw, incoming)


def parse_search(plain: bytes, incoming: IncomingRequest) -> ParsedSearch:
    """The search of a request, which may stand in its body or in its query.

    Raises:
        NotPlainJson: it is for the engine to say what is wrong with it.
    """
    params = parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True)
    given = dict(params)
    if not plain.strip() and "source" in given:
        plain = given.pop("source").encode()
        params = [(name, value) for name, value in params if name not in ("source", "source_content_type")]
    body = parse_object(plain) if plain.strip() else {}
    if "q" in given:
        # The engine takes `q` in place of the body's query.
        said: Json = {
            _URI_SEARCH_PARAMETERS[name]: value for name, value in given.items() if name in _URI_SEARCH_PARAMETERS
        }
        body = body | {"query": {"query_string": said}}
        params = [(name, value) for name, value in params if name not in _URI_SEARCH_PARAMETERS]
    return ParsedSearch(body, params)


def has_json_body(incoming: IncomingRequest) -> bool:
    """Whether a request's body is JSON, also in the clients' own dialect of the type; engines refuse one without."""
    return not incoming.has_body or b"json" in incoming.header(b"content-type").lower()


_TEMPLATE_MEMBERS = ("id", "source", "params")
# What a request for a template says of the search itself.
_SEARCH_MEMBERS = ("explain", "profile")


class TemplateRenderer:
    """Has templates filled in by the engine, with the caller's rights.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def render(self, body: Json, incoming: IncomingRequest) -> Json | BufferedResponse:
        """The search that a template stands for, or what the engine answers where there is none.

        Args:
            body: Of `_search/template`.

        Raises:
            EngineUnreachable: the engine does not answer.
        """
        wanted = {name: body[name] for name in _TEMPLATE_MEMBERS if name in body}
        render = OutgoingRequest.with_body(incoming, write_object(wanted), b"/_render/template", "POST")
        answer = await fetch_response(self._upstream, render)
        if answer.status != 200:
            return answer
        try:
            output = parse_object(answer.body).get("template_output")
        except UnsupportedJson:
            return answer
        if not isinstance(output, dict):
            return answer
        return output | {name: body[name] for name in _SEARCH_MEMBERS if name in body}


_CACHE_SIZE = 1000
_MAX_INDICES = 10_000
# No index has such a name.
_NO_INDEX = "_none"


class PitResolver:
    """Asks the engine itself, so that a point in time opened elsewhere (or through another gateway) works too.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._keys = CallerCacheKeys()
        self._known: LRUCache[bytes, str] = LRUCache(_CACHE_SIZE)

    async def expression(self, body: Json, incoming: IncomingRequest) -> str:
        """The indices of a search's point in time as a path names them.

        Indices without a document in it are left out: nothing can be found in them.

        Raises:
            EngineUnreachable, RequestFailed: the engine cannot be asked.
        """
        pit = body["pit"]
        opened = pit.get("id") if isinstance(pit, dict) else None
        if not isinstance(opened, str):
            return _NO_INDEX
        # Of this caller: another one who has got hold of the id may not learn what it stands for.
        key = self._keys.key(incoming.headers, opened)
        if key not in self._known:
            expression = await self._ask(opened, incoming)
            if expression is None:
                return _NO_INDEX
            self._known[key] = expression
        return self._known[key]

    async def _ask(self, opened: str, incoming: IncomingRequest) -> str | None:
        """None where the point in time is over, or is not the caller's: the engine says so to the search itself."""
        names: Json = {"terms": {"field": "_index", "size": _MAX_INDICES}}
        question: Json = {"size": 0, "track_total_hits": False, "pit": {"id": opened}, "aggs": {"indices": names}}
        answer = await self._upstream.request("POST", "/_search", credential_headers(incoming.headers), question)
        if answer.status in CLIENT_ERROR_STATUSES:
            return None
        told = self._upstream.require_object(answer, "POST /_search")
        with self._upstream.parsing("POST /_search"):
            found = [bucket["key"] for bucket in told["aggregations"]["indices"]["buckets"]]
            return ",".join(quote(name, safe="") for name in found) or _NO_INDEX
