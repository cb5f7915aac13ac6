"""Requests whose indices change while they are read, or whose mappings cannot be read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, EsSbertError, IndexMismatch
from es_sbert.gateway.engine_routes import match_route
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.forward import StaleRewriteError
from es_sbert.gateway.index_lookup import NO_MAPPINGS, IndexExpression, IndexLookup, ResolvedIndices
from es_sbert.gateway.search.hidden_fields import VectorHider
from es_sbert.gateway.search.incoming_search import RewriteContext, RewriteMode
from es_sbert.gateway.search.search_handler import MsearchEntry, SearchHandler
from es_sbert.gateway.search.search_log import SearchTrace
from es_sbert.gateway.search.search_rewriter import SearchRewriter
from es_sbert.gateway.search.unsupported_apis import check_unsupported, embedded_queries
from es_sbert.gateway.server.search_page import PageApi
from es_sbert.gateway.settings import GatewaySettings, Limits
from es_sbert.gateway.upstream import Upstream
from tests.raised import raises_as_recorded
from tests.unit.gateway.rewriting import vector_field
from tests.unit.gateway.test_requests import incoming

TEXT = "how do plants make energy"
SEMANTIC: Json = {"query": {"match": {"semantic": TEXT}}}
DOCS = ResolvedIndices({"docs": {"embedding": vector_field()}}, {"docs": 1}, ordinary=False)
MOVED = ResolvedIndices({"docs-2": {"embedding": vector_field()}}, {"docs-2": 1}, ordinary=False)
REMOTE = ResolvedIndices({}, {}, remote="far:docs")
DENIED = AccessDenied("the mappings may not be read", "Grant it.")
BROKEN = IndexMismatch("_meta.es_sbert of docs is invalid", "Repair it.")


class Lookup(IndexLookup):
    """Answers with the given results, the last one again and again."""

    def __init__(self, *results: ResolvedIndices | EsSbertError) -> None:
        self._results = list(results)

    async def get(self, names: IndexExpression, *, fresh: bool = False) -> ResolvedIndices:
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, EsSbertError):
            raise result
        return result


class Models:
    """In place of a `ModelRegistry`: all vectors are equal."""

    async def for_field(self, meta: object, index: str) -> Models:
        return self

    async def embed(self, texts: list[str], kind: str, caller: bytes) -> Any:
        return SimpleNamespace(vectors=np.ones((len(texts), 3), np.float32))


SETTINGS = GatewaySettings(upstream=EngineSettings(url="http://127.0.0.1:9"), limits=Limits(semantic_queries=3))
UPSTREAM = Upstream(SETTINGS.upstream, SETTINGS.limits)


def rewriter(*results: ResolvedIndices | EsSbertError) -> SearchRewriter:
    models: Any = Models()
    return SearchRewriter(SETTINGS, UPSTREAM, Lookup(*results), models)


def check(target: str, body: Json, found: ResolvedIndices | EsSbertError, mode: str = "on") -> None:
    """Check a request of an API without semantic queries."""

    async def scenario() -> None:
        headers = {"content-length": "1", "content-type": "application/json", "x-es-sbert": mode}
        request = incoming(target, "POST", headers, orjson.dumps(body))
        await check_unsupported(rewriter(found), request, match_route(request))

    asyncio.run(scenario())


def test_msearch_counts_its_queries_once_when_an_alias_moves() -> None:
    handler = SearchHandler(rewriter(DOCS, MOVED), UPSTREAM, VectorHider(SETTINGS.semantic, Lookup(MOVED)))
    entry = MsearchEntry(b"{}", orjson.dumps({"query": {"bool": {"should": [SEMANTIC["query"]] * 2}}}))
    request = incoming("/docs/_msearch", "POST")
    context = RewriteContext("docs", {}, [], RewriteMode.ON)
    asyncio.run(handler._rewrite_entries([entry], request, match_route(request), context))
    assert entry.response is None
    assert b"query_vector" in entry.body


def test_search_page_gets_a_rewrite_for_the_current_indices_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def may_search(self: PageApi, headers: object, index: str, body: Json) -> None:
        pass

    monkeypatch.setattr(PageApi, "_search", may_search)
    moved = ResolvedIndices({"docs-2": {"other": vector_field()}}, {"docs-2": 1}, ordinary=False)
    page = PageApi(SETTINGS, UPSTREAM, Lookup(moved), rewriter(DOCS, moved))
    answer = asyncio.run(page.rewrite_body([], orjson.dumps({"index": "docs", "body": SEMANTIC})))
    assert '"other"' in orjson.dumps(answer).decode()
    with raises_as_recorded(BadRequest):
        asyncio.run(page.rewrite_body([], b'{"body": 1}'))


@pytest.mark.parametrize("query", [SEMANTIC["query"], {"bool": {"must_not": [{"term": {"semantic": "x"}}]}}])
def test_delete_by_query_with_a_broken_mapping_is_refused(query: Json) -> None:
    with raises_as_recorded(IndexMismatch):
        check("/docs/_delete_by_query", {"query": query}, BROKEN)
    check("/_reindex", {"source": {"remote": {}, "index": "docs", "query": query}}, BROKEN)  # read by another engine


def test_query_language_with_a_broken_mapping_may_be_semantic() -> None:
    with raises_as_recorded(BadRequest):
        check("/_sql", {"query": "SELECT 1", "filter": SEMANTIC["query"]}, BROKEN)
    check("/_sql", {"query": "SELECT 1", "filter": SEMANTIC["query"]}, DENIED)


ESQL: Json = {"query": 'FROM docs | WHERE MATCH(semantic, "how do")'}


@pytest.mark.parametrize(
    ("found", "body", "error"),
    [
        ([DOCS, MOVED], ESQL, StaleRewriteError),
        ([DENIED], ESQL, AccessDenied),
        ([replace(REMOTE, ordinary=False)], ESQL, IndexMismatch),
        ([DOCS], {"query": "FROM docs", "filter": SEMANTIC["query"]}, BadRequest),
        ([DOCS], {"query": 'FROM docs | WHERE KQL("semantic: x")'}, BadRequest),
    ],
)
def test_esql_with_moved_or_unreadable_indices_is_refused(found: list[Any], body: Json, error: Any) -> None:
    handler = SearchHandler(rewriter(*found), UPSTREAM, VectorHider(SETTINGS.semantic, Lookup(*found)))
    headers = {"content-length": "1", "content-type": "application/json"}
    request = incoming("/_query", "POST", headers, orjson.dumps(body))

    async def scenario() -> Any:
        received = await handler._rewriter.receive(request)
        return await handler._rewrite(received, request, match_route(request), SearchTrace())

    with pytest.raises(error):
        asyncio.run(scenario())


STORED: Json = {"templates": [{"id": "t", "template": {"id": "stored"}}]}
FIELD_IN_PARAMETERS: Json = {"templates": [{"id": "t", "template": {"source": '{"query":{"match":{"{{f}}":"x"}}}'}}]}


@pytest.mark.parametrize("mode", ["on", "hybrid"])
@pytest.mark.parametrize("templates", [STORED, FIELD_IN_PARAMETERS])
@pytest.mark.parametrize("found", [DOCS, REMOTE])
def test_rated_template_is_refused_where_it_may_be_semantic(templates: Json, found: ResolvedIndices, mode: str) -> None:
    rated = {"requests": [{"id": "a", "template_id": "t", "params": {"f": "semantic"}}], **templates}
    with raises_as_recorded(BadRequest):
        check("/docs/_rank_eval", rated, found, mode)
    check("/docs/_rank_eval", rated, found, "off")
    check("/docs/_rank_eval", rated, NO_MAPPINGS, mode)
    with raises_as_recorded(AccessDenied):
        check("/docs/_rank_eval", rated, DENIED, mode)
    with raises_as_recorded(AccessDenied):  # words may become hybrid
        check("/docs/_rank_eval", {"requests": [{"request": {"query": {"match": {"a": "b"}}}}]}, DENIED, "hybrid")


def test_bulk_stream_is_refused_before_its_body() -> None:
    request = incoming("/docs/_bulk/stream", "POST", {"transfer-encoding": "chunked"})
    with raises_as_recorded(BadRequest):
        asyncio.run(check_unsupported(rewriter(DOCS), request, match_route(request)))


def test_stale_rewrite_is_reported() -> None:
    context = RewriteContext("docs", {}, [], RewriteMode.ON)
    with pytest.raises(StaleRewriteError):
        asyncio.run(rewriter(DOCS, MOVED).rewrite(orjson.loads(orjson.dumps(SEMANTIC)), context))


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ('FROM docs | WHERE KQL("semantic: \\"how do\\" and lang: en") | LIMIT 3', ['semantic: "how do" and lang: en']),
        ('FROM docs | WHERE qstr ( """semantic:"how do" OR a:b""" )', ['semantic:"how do" OR a:b']),
        ("SELECT title FROM docs WHERE QUERY('semantic:plants') AND QUERY('year:1')", ["semantic:plants", "year:1"]),
        ("FROM docs METADATA _id | WHERE semantic == \"a\" AND MATCH(title, 'KQL')", []),
    ],
)
def test_finds_query_dsl_in_other_query_languages(text: str, inside: list[str]) -> None:
    queries = [{"query": {"query_string": {"query": one}}} for one in inside]
    assert list(embedded_queries({"query": text})) == queries
    assert list(embedded_queries({"query": {"match_all": {}}})) == []
