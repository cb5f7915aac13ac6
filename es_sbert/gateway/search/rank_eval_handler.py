"""Handler of `_rank_eval`, which runs several searches and rates their hits."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from starlette.types import Send

from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import cancel_on_disconnect, gather_or_cancel, offload_if_large
from es_sbert.gateway.proxy.engine_routes import EngineRoute
from es_sbert.gateway.proxy.forward import (
    TOO_LARGE,
    BufferedResponse,
    OutgoingRequest,
    RefusedAsTooLargeError,
    ResponseHooks,
    enlarged_error,
    fetch_response,
    forward,
    send_response,
)
from es_sbert.gateway.proxy.incoming_request import IncomingRequest
from es_sbert.gateway.proxy.json_bodies import parse_object, write_object
from es_sbert.gateway.proxy.response_filter import ResponseFilter
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.incoming_search import (
    RewriteContext,
    parse_search,
    render_template,
    target_without_filter_path,
)
from es_sbert.gateway.search.search_rewriter import SearchRewriter


class RankEvalHandler:
    """Handles `_rank_eval`.

    Args:
        rewriter: Rewrites search bodies.
        upstream: The engine.
    """

    def __init__(self, rewriter: SearchRewriter, upstream: Upstream) -> None:
        self._rewriter = rewriter
        self._upstream = upstream

    async def answer(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        """Rewrite the rated searches of `_rank_eval` and forward the request.

        Returns:
            Status of the response; 0 if the client disconnected.

        Raises:
            EsSbertError: a semantic query is invalid, or the engine is not available.
            RequestTooLarge: the engine refuses one of the searches even alone, because of its vectors.
        """
        outgoing, body = await cancel_on_disconnect(incoming, self._rewrite(incoming, route))
        try:
            return await forward(incoming, send, self._upstream, outgoing, ResponseHooks(enlarged=body is not None))
        except RefusedAsTooLargeError:
            assert body is not None
        request = replace(outgoing, target=target_without_filter_path(incoming), body=None)
        joined = self._join_ratings(request, body, ResponseFilter.from_query(incoming.query))
        return await send_response(send, await cancel_on_disconnect(incoming, joined))

    async def _join_ratings(self, request: OutgoingRequest, body: Json, filter: ResponseFilter) -> BufferedResponse:
        """Send the rated searches in several requests, because they are too large for one.

        Args:
            request: The request without its body.
            body: Its body, rewritten.
            filter: Applied to the joined response.

        Returns:
            The details and failures of all searches; or the engine's response if it rejects a whole request.
        """
        details: Json = {}
        failures: Json = {}
        pending: list[list[Any]] = [body["requests"]]
        while True:
            part = pending.pop(0)
            written = write_object(body | {"requests": part})
            response = await fetch_response(self._upstream, replace(request, body=written))
            if response.status == TOO_LARGE:
                if len(part) < 2:
                    raise enlarged_error("the rated search", len(written))
                pending[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            if response.status != 200:
                return response
            with self._upstream.parsing("POST /_rank_eval"):
                answer = parse_object(response.body)
                details |= answer["details"]
                failures |= answer["failures"]
                if not pending:
                    # Every metric of the engines is a mean over the searches that did not fail.
                    scores = [each["metric_score"] for each in details.values()]
                    score = fmean(scores) if scores else answer["metric_score"]
                    joined = answer | {"metric_score": score, "details": details, "failures": failures}
                    return BufferedResponse(200, response.headers, write_object(filter.apply(joined)))

    async def _rewrite(self, incoming: IncomingRequest, route: EngineRoute) -> tuple[OutgoingRequest, Json | None]:
        """Create the `_rank_eval` request to the engine, and its body; unchanged and None if no search is semantic."""
        received = await self._rewriter.receive(incoming)
        plain, unchanged = received.plain, (received.unchanged, None)
        if plain is None:
            return unchanged
        if not await self._rewriter.maybe_semantic(plain, received.mode, template=b'"templates"' in plain):
            return unchanged
        body, params = await offload_if_large(len(plain), parse_search, plain, incoming)
        requests = body.get("requests")
        if not isinstance(requests, list):
            return unchanged
        budget = self._rewriter.budget()
        context = RewriteContext(route.index, dict(params), incoming.headers, received.mode, len(plain), budget)
        templates = _templates_by_id(body.get("templates"))
        rewritten = await gather_or_cancel(
            self._rewrite_rated(request, templates, incoming, context) for request in requests
        )
        if all(new is request for new, request in zip(rewritten, requests, strict=True)):
            return unchanged
        body |= {"requests": rewritten}
        return OutgoingRequest.with_body(incoming, write_object(body), incoming.target), body

    async def _rewrite_rated(
        self, request: Any, templates: dict[str, Json], incoming: IncomingRequest, context: RewriteContext
    ) -> Any:
        if not isinstance(request, dict):
            return request
        template = templates.get(str(request.get("template_id")))
        search: Any = request.get("request")
        if template is not None:
            search = await render_template(self._upstream, template | {"params": request.get("params", {})}, incoming)
        if isinstance(search, BufferedResponse) or not isinstance(search, dict):
            return request  # the engine rejects it
        result = await self._rewriter.rewrite(search, context)
        if not result.is_changed:
            return request
        kept = {name: value for name, value in request.items() if name not in ("template_id", "params")}
        return kept | {"request": result.body}


def _templates_by_id(templates: Any) -> dict[str, Json]:
    return {
        str(template.get("id")): template["template"]
        for template in (templates if isinstance(templates, list) else [])
        if isinstance(template, dict) and isinstance(template.get("template"), dict)
    }
