"""The search page at `/ui`: its files, and its API: indices, facets, rewritten bodies.

Every request to the engine carries the credentials of the page's user, never the gateway's own.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from html.entities import html5
from importlib import resources
from typing import Any
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError, IndexMismatch, UsageError, error_summary
from es_sbert.gateway.admission import AdmissionControl, RequestSlot
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import BadRequest, error_body, http_status
from es_sbert.gateway.forward import StaleRewriteError
from es_sbert.gateway.incoming_request import (
    Headers,
    IncomingRequest,
    credential_headers,
    is_uncompressed_json,
    parse_object,
)
from es_sbert.gateway.index_lookup import IndexLookup, resolve_mappings
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.search.incoming_search import RewriteContext, RewriteMode
from es_sbert.gateway.search.search_rewriter import SearchRewriter
from es_sbert.gateway.settings import GatewaySettings, Limits
from es_sbert.gateway.upstream import Upstream, UpstreamReply
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field, vector_fields
from es_sbert.index.text_template import TextTemplate
from es_sbert.io.html_text import HIDDEN, SEPARATING
from es_sbert.io.text_language import stop_words
from es_sbert.search.search_request import HIGHLIGHT_LIMITS


class RewriteBodyRequest(BaseModel):
    """A search to be rewritten into a native one.

    Attributes:
        index: Index expression.
        body: Body of `_search`.
        mode: Mode of the rewriting.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: str = Field(min_length=1, max_length=1000)
    body: dict[str, Any]
    mode: RewriteMode = RewriteMode.ON


def parse_page_request(raw: bytes) -> RewriteBodyRequest:
    """Parse and validate a request body.

    Raises:
        BadRequest: the body is invalid.
    """
    try:
        return RewriteBodyRequest.model_validate(parse_object(raw))
    except ValidationError as error:
        raise BadRequest(error_summary(error), "Reload the page: the gateway may have been updated.") from None


class EngineErrorReply(Exception):
    """An error response of the engine, which the page gets unchanged.

    Attributes:
        reply: The response.
    """

    def __init__(self, reply: UpstreamReply) -> None:
        super().__init__(f"the engine responded with status {reply.status}")
        self.reply = reply


class PageApi:
    """The API of the page. Handlers get the caller's headers, and query parameters or the bytes of the request body.

    All raise `EngineErrorReply` if the engine rejects the caller's request, and `EsSbertError` for other errors.

    Args:
        settings: Settings of the gateway.
        upstream: The engine.
        indices: Resolves index expressions.
        rewriter: Rewrites search bodies.
    """

    def __init__(
        self, settings: GatewaySettings, upstream: Upstream, indices: IndexLookup, rewriter: SearchRewriter
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._indices = indices
        self._rewriter = rewriter

    async def list_indices(self, headers: Headers, params: Mapping[str, str]) -> Json:
        """List the searchable indices, and defaults of the page."""
        semantic = self._settings.semantic
        answer = await self._read(headers, f"/_all?{INDICES_FILTER_PATH}")
        with self._upstream.parsing("GET /_all"):
            indices, problems = list_searchable_indices(answer, semantic.virtual_field, semantic.min_cosine)
        engine_type = self._upstream.engine_type_or_default
        return {
            # Relative path from the page to the engine's API, which also works behind a reverse proxy.
            "engine": "../",
            "k": semantic.k,
            "highlight": HIGHLIGHT_LIMITS[engine_type],
            "indices": indices,
            "problems": problems,
        }

    async def facets(self, headers: Headers, params: Mapping[str, str]) -> Json:
        """Choose facets for the hits of an index."""
        index = params.get("index", "")
        if not index:
            raise BadRequest("the parameter index is required", "Add it to the URL: ?index=docs.")
        answer = await self._read(headers, f"/{quote_expression(index)}/_mapping")
        with self._upstream.parsing("GET _mapping"):
            virtual, engine_type = self._settings.semantic.virtual_field, self._upstream.engine_type_or_default
            resolved = resolve_mappings(answer, virtual, engine_type)
            hidden: set[str] = set()  # fields that cannot be facets: vectors, their metadata, and embedded texts
            for by_name in resolved.fields.values():
                for name, meta in by_name.items():
                    hidden |= {name, document_meta_field(name), *_template(meta).fields}
            fields = facet_fields((state["mappings"].get("properties", {}) for state in answer.values()), hidden)
        if not fields:
            return {"facets": []}
        # Names of aggregations allow fewer characters than those of fields.
        distinct = {str(number): {"cardinality": {"field": facet["field"]}} for number, facet in enumerate(fields)}
        survey = await self._search(headers, index, {"size": 0, "track_total_hits": True, "aggs": distinct})
        with self._upstream.parsing("a survey of fields"):
            return {"facets": choose_facets(fields, survey)}

    async def rewrite_body(self, headers: Headers, raw: bytes) -> Json:
        """Rewrite a search body as the gateway would send it to the engine."""
        while True:
            request = await offload_if_large(len(raw), parse_page_request, raw)
            # The gateway reveals nothing of an index that the caller may not search.
            await self._search(headers, request.index, {"size": 0, "query": {"match_none": {}}})
            context = RewriteContext(quote_expression(request.index), {}, headers, request.mode, size=len(raw))
            try:
                return {"body": (await self._rewriter.rewrite(request.body, context)).body}
            except StaleRewriteError:  # written again, for the new indices
                continue

    async def _read(self, headers: Headers, target: str, body: Json | None = None) -> Json:
        """Send a GET request, or a search with a body, with the caller's credentials and return the response.

        Raises:
            EngineErrorReply: the response is an error in the engine's format, or requires authentication.
            EngineUnreachable: there is no response, or none that an engine sends.
            EsSbertError: the response is an error in another format.
        """
        credentials = credential_headers(headers)
        if body is None:
            reply = await self._upstream.request("GET", target, credentials)
        else:
            reply = await self._upstream.search(target, credentials, body)
        if reply.status == 401 or (reply.status != 200 and isinstance(reply.body, dict)):
            raise EngineErrorReply(reply)
        return self._upstream.require_object(reply, f"{'GET' if body is None else 'POST'} {target}")

    async def _search(self, headers: Headers, index: str, body: Json) -> Json:
        return await self._read(headers, f"/{quote_expression(index)}/_search", body)


def quote_expression(index: str) -> str:
    """Percent-encode an index expression for a path."""
    return quote(index, safe=",*")


# The parts of `GET /_all` that `list_searchable_indices` reads.
INDICES_FILTER_PATH = "filter_path=*.aliases,*.mappings._meta.es_sbert"


def list_searchable_indices(
    answer: Json, virtual_field: str, min_cosine: float | None = None
) -> tuple[list[Json], list[str]]:
    """List the indices and aliases with vector fields.

    Args:
        answer: The response to `GET /_all`.
        virtual_field: Name of the virtual field.
        min_cosine: Minimum cosine of the gateway; None for that of each index.

    Returns:
        The indices and aliases, aliases first, each with `name` and `fields`. A field has its `name`, the `semantic`
        name for queries, the object with the vector's metadata (`meta`), `model`, whether it holds `passages`, the
        `parts` of its text template (pairs of literal and field), the fields in it (`texts`), the fields that hits
        need not return (`hidden`), and the minimum cosine of hits (`min_cosine`).

        Problems with indices that are left out: anyone who may write an index may put an invalid mapping there, which
        must not keep others from searching theirs.
    """
    described: dict[str, list[Json]] = {}
    aliases: dict[str, list[Json]] = {}
    problems: list[str] = []
    for index, state in sorted(answer.items()):
        try:
            metas = vector_fields(state.get("mappings", {}), index)
            fields = [_field_entry(name, meta, virtual_field, min_cosine) for name, meta in metas.items()]
        except (IndexMismatch, UsageError) as error:
            problems.append(f"{index} is skipped: {error.message}. {error.remedy}")
            continue
        if fields:
            described[index] = fields
            for alias in state.get("aliases", {}):
                aliases.setdefault(alias, fields)
    listed = [*sorted(aliases.items()), *described.items()]
    return [{"name": name, "fields": fields} for name, fields in listed], problems


def _field_entry(name: str, meta: VectorFieldMeta, virtual_field: str, min_cosine: float | None) -> Json:
    template = _template(meta)
    return {
        "name": name,
        "semantic": f"{virtual_field}.{name}",
        "meta": document_meta_field(name),
        "model": meta.model,
        "passages": meta.passages is not None,
        "parts": list(map(list, template.parts)),
        "texts": template.fields,
        "hidden": [name, document_meta_field(name)],
        "min_cosine": meta.min_cosine if min_cosine is None else min_cosine,
    }


def _template(meta: VectorFieldMeta) -> TextTemplate:
    """Template of the embedded text; empty if the index has none yet."""
    return TextTemplate("", ()) if meta.text is None else TextTemplate.parse(meta.text)


_MAX_SURVEYED_FIELDS = 40
_MAX_FACETS = 8
_MAX_FACET_VALUES = 10
_FACET_TYPES = frozenset({"boolean", "constant_keyword", "ip", "keyword", "version"})


def facet_fields(mappings: Iterable[Json], hidden: Collection[str]) -> list[Json]:
    """Find the fields that may be facets, in the order of the mappings.

    A field with different types is left out: a search that aggregates it would fail in some indices and lose hits.

    Args:
        mappings: The `properties` of each index.
        hidden: Fields to leave out: vectors, their metadata, and embedded texts.

    Returns:
        For each field: its name in queries (`field`) and its name for display (`label`).
    """
    facets: dict[str, Json] = {}
    types: defaultdict[str, set[str]] = defaultdict(set)
    for properties in mappings:
        for field, label, mapping in _walk_fields(properties, ""):
            types[field].add(mapping["type"])
            is_searchable = mapping.get("index", True) and mapping.get("doc_values", True)
            is_hidden = any(label == name or label.startswith(f"{name}.") for name in hidden)
            if is_searchable and mapping["type"] in _FACET_TYPES and not is_hidden:
                facets.setdefault(field, {"field": field, "label": label})
    return [facet for field, facet in facets.items() if len(types[field]) == 1][:_MAX_SURVEYED_FIELDS]


def _walk_fields(properties: Json, prefix: str) -> Iterator[tuple[str, str, Json]]:
    """Yield each field, its name for display and its mapping, and the keyword subfield that dynamic mappings add."""
    for name, mapping in properties.items():
        path = prefix + name
        if mapping.get("type", "object") == "object":
            yield from _walk_fields(mapping.get("properties", {}), f"{path}.")
            continue
        yield path, path, mapping
        keywords = [inner for inner, sub in mapping.get("fields", {}).items() if sub["type"] == "keyword"]
        if mapping["type"] in ("text", "match_only_text") and keywords:
            yield f"{path}.{keywords[0]}", path, mapping["fields"][keywords[0]]


def choose_facets(fields: Sequence[Json], answer: Json) -> list[Json]:
    """Choose useful facets: fields with several values, but far fewer values than documents. The fewest come first.

    Args:
        answer: The response to a search that counts the values of each field, see `PageApi.facets`.

    Returns:
        The fields, each with the `aggregation` that counts its most frequent values.
    """
    total = answer["hits"]["total"]["value"]
    most = min(total - 1, max(_MAX_FACET_VALUES, total / 3))
    values = [answer["aggregations"][str(number)]["value"] for number in range(len(fields))]
    chosen = sorted((number for number, count in enumerate(values) if 2 <= count <= most), key=values.__getitem__)
    return [
        {**fields[number], "aggregation": {"terms": {"field": fields[number]["field"], "size": _MAX_FACET_VALUES}}}
        for number in chosen[:_MAX_FACETS]
    ]


CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Documents are untrusted: nothing in them may run, load or frame anything. With `trusted-types`, the browser refuses to
# make HTML from text.
CONTENT_SECURITY_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'",
))  # fmt: skip
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def page_files() -> dict[str, bytes]:
    """File name → content of the page's static files, and of scripts with stop words and with names in HTML."""
    folder = resources.files(__package__) / "static"
    files = {entry.name: entry.read_bytes() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)}
    constants = {
        "stop_word_lists.js": ("STOP_WORDS", list(stop_words().values())),
        "html.js": ("HTML", {"hidden": sorted(HIDDEN), "separating": sorted(SEPARATING), "entities": html5}),
    }
    for file, (name, value) in constants.items():
        files[file] = b"export const " + name.encode() + b" = " + orjson.dumps(value) + b";\n"
    return files


def static_file_routes() -> list[Route]:
    """Create the routes of the page and its files. Other paths below `/ui/` go to the engine."""
    files = page_files()
    pages = {"/ui": _redirect_to_page, "/ui/": _static_file("index.html", files)}
    pages |= {f"/ui/{name}": _static_file(name, files) for name in files}
    return [Route(path, page, methods=["GET"]) for path, page in pages.items()]


async def _redirect_to_page(request: Request) -> Response:
    # The address is relative, so that it works behind a reverse proxy that adds a path.
    query = request.scope["query_string"].decode("ascii")
    return RedirectResponse(f"ui/?{query}" if query else "ui/", headers=SECURITY_HEADERS)


def _static_file(name: str, files: dict[str, bytes]) -> Callable[[Request], Awaitable[Response]]:
    content = files[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    # Browsers revalidate the files each time, so that files of different gateway versions never mix.
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": tag}
    kind = CONTENT_TYPES["." + name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, "content-type": kind})

    return answer


Handler = Callable[[Headers, Any], Awaitable[Json]]
# Enough for a thousand hits, or a search with many filters.
_MAX_BODY_BYTES = 4 << 20
_JSON_HEADERS = {**SECURITY_HEADERS, "cache-control": "no-store", "content-type": "application/json"}


def ui_routes(api: PageApi, limits: Limits, admission: AdmissionControl, metrics: GatewayMetrics) -> list[Route]:
    """Create the routes of the page at `/ui/`, its files, and its API below `/ui/api/`."""
    limits = limits.model_copy(update={"body_bytes": _MAX_BODY_BYTES})

    def api_route(method: str, name: str, handler: Handler) -> Route:
        """Create a route whose handler gets the query parameters of a GET, or the body of a POST."""

        async def endpoint(request: Request) -> Response:
            with metrics.request("ui") as outcome:
                try:
                    with admission.slot() as slot:
                        if method == "GET":
                            slot.acquire()
                        sent = request.query_params if method == "GET" else await _read_json(request, limits, slot)
                        content = orjson.dumps(await handler(request.headers.raw, sent))
                    outcome.status = 200
                except EngineErrorReply as error:
                    # Send no `WWW-Authenticate`: the page has a form, which replaces the browser's dialog.
                    content, outcome.status = orjson.dumps(error.reply.body), error.reply.status
                except EsSbertError as error:
                    content, outcome.status = error_body(error), http_status(error)
                except ClientDisconnect:
                    content = b""
                # After a timeout, the rest of the body must not be taken for the next request.
                closing = {"connection": "close"} if outcome.status == 408 else {}
                return Response(content, outcome.status, {**_JSON_HEADERS, **closing})

        return Route(f"/ui/api/{name}", endpoint, methods=[method])

    return [
        *static_file_routes(),
        api_route("GET", "indices", api.list_indices),
        api_route("GET", "facets", api.facets),
        api_route("POST", "body", api.rewrite_body),
    ]


async def _read_json(request: Request, limits: Limits, slot: RequestSlot) -> bytes:
    """Read the body of a request.

    Raises:
        BadRequest: the body is not uncompressed JSON, so the page did not send it.
        RequestTooLarge, RequestTimeout, Overloaded: see `IncomingRequest.body`.
    """
    if not is_uncompressed_json(request):
        raise BadRequest("the body is not uncompressed JSON", "Send it as Content-Type: application/json.")
    return await IncomingRequest.from_scope(request.scope, request.receive, limits, slot).body()
