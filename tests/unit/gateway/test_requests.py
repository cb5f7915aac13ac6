"""What is read of a request before anything is done with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineUnreachable, ModelError, Overloaded, RequestFailed, UsageError
from es_sbert.gateway.admission import AdmissionControl, RequestSlot
from es_sbert.gateway.engine_routes import EngineApi, EngineRoute, match_route
from es_sbert.gateway.errors import (
    BadRequest,
    UnsupportedMediaType,
    error_body,
    error_object,
    http_status,
    response_headers,
)
from es_sbert.gateway.incoming_request import (
    IncomingRequest,
    UnreadableJson,
    blank_comments,
    credential_headers,
    decompress_body,
    parse_object,
    require_json_type,
    require_utf8,
    write_object,
)
from es_sbert.gateway.index_lookup import resolve_mappings, split_expression, split_remote
from es_sbert.gateway.search.search_handler import split_entries
from es_sbert.gateway.settings import Limits
from es_sbert.gateway.upstream import end_to_end_headers
from tests.raised import raises_as_recorded


def incoming(
    target: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    *parts: bytes,
    limits: Limits | None = None,
    running: int = 0,
) -> IncomingRequest:
    path, _, query = target.partition("?")
    scope: dict[str, Any] = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {"content-length": "1"}).items()],
    }  # fmt: skip
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if messages:
        messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    limits = limits or Limits()
    admission = AdmissionControl(limits)
    admission.requests = running
    return IncomingRequest.from_scope(scope, receive, limits, RequestSlot(admission))


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("GET", "/docs/_search", EngineRoute(EngineApi.SEARCH, "docs")),
        ("POST", "/_search", EngineRoute(EngineApi.SEARCH)),
        ("POST", "/_all/_search", EngineRoute(EngineApi.SEARCH, "_all")),
        ("POST", "/%3Clogs-%7Bnow%2Fd%7D%3E/_search", EngineRoute(EngineApi.SEARCH, "%3Clogs-%7Bnow%2Fd%7D%3E")),
        ("POST", "/docs/%5Fsearch", EngineRoute(EngineApi.SEARCH, "docs")),
        ("POST", "/docs/_async_search", EngineRoute(EngineApi.ASYNC_SEARCH, "docs")),
        ("POST", "/docs/_search/template", EngineRoute(EngineApi.SEARCH_TEMPLATE, "docs")),
        ("POST", "/_msearch/template", EngineRoute(EngineApi.MULTI_SEARCH_TEMPLATE)),
        ("GET", "/docs/_explain/a%2Fb", EngineRoute(EngineApi.EXPLAIN, "docs", "a%2Fb")),
        ("GET", "/_validate/query", EngineRoute(EngineApi.VALIDATE)),
        ("POST", "/docs/_rank_eval", EngineRoute(EngineApi.RANK_EVALUATION, "docs")),
        ("POST", "/_query/async", EngineRoute(EngineApi.ESQL)),
        ("GET", "/_query/async/id", EngineRoute(EngineApi.OTHER)),
        ("POST", "/_plugins/_ppl", EngineRoute(EngineApi.LANGUAGE)),
        ("POST", "/docs/_terms_enum", EngineRoute(EngineApi.FILTERED, "docs")),
        ("POST", "/_plugins/_asynchronous_search", EngineRoute(EngineApi.FILTERED)),
        ("POST", "/docs/_bulk/stream", EngineRoute(EngineApi.BULK_STREAM, "docs")),
        ("POST", "/docs/_delete_by_query", EngineRoute(EngineApi.BY_QUERY, "docs")),
        ("POST", "/_reindex", EngineRoute(EngineApi.REINDEX)),
        ("PUT", "/_bulk", EngineRoute(EngineApi.BULK)),
        ("PUT", "/docs/_doc/a%2Fb", EngineRoute(EngineApi.DOCUMENT, "docs", "a%2Fb")),
        ("GET", "/docs/_doc/1", EngineRoute(EngineApi.OTHER)),
        ("PUT", "/docs/_create/1", EngineRoute(EngineApi.CREATE, "docs", "1")),
        ("POST", "/docs/_update/1", EngineRoute(EngineApi.UPDATE, "docs", "1")),
        ("PUT", "/_search", EngineRoute(EngineApi.OTHER)),
    ],
)
def test_match_route(method: str, path: str, route: EngineRoute) -> None:
    assert match_route(incoming(path, method)) == route


def test_body_that_the_client_cuts_off_is_not_complete() -> None:
    with pytest.raises(ClientDisconnect):
        asyncio.run(incoming("/", "POST").body())


@pytest.mark.parametrize("headers", [{"content-length": "4"}, {"transfer-encoding": "chunked"}])
def test_end_of_a_body_is_held_back_if_there_are_too_many_requests(headers: dict[str, str]) -> None:
    """Otherwise the engine would write what its client is told to send again."""
    parts = [b"ab", b"cd", b""] if "content-length" in headers else [b"ab", b"cd"]
    request, passed = incoming("/", "PUT", headers, *parts, limits=Limits(concurrency=1), running=1), []

    async def read() -> None:
        async for part in request.stream():
            passed.append(part)

    with pytest.raises(Overloaded):
        asyncio.run(read())
    assert passed == [b"ab"]


def test_damaged_gzip_is_refused() -> None:
    with raises_as_recorded(BadRequest):
        decompress_body(b"\x1f\x8b\x08 damaged", incoming("/", "POST", {"content-encoding": "gzip"}))


@pytest.mark.parametrize("content_type", ["application/cbor", "application/yaml; as=json", ""])
def test_bodies_that_are_not_json_are_refused(content_type: str) -> None:
    with raises_as_recorded(UnsupportedMediaType):
        require_json_type(content_type)
    require_json_type("Application/VND.elasticsearch+JSON; compatible-with=9")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**80, "half \ud83d", -0.0, "\u2028"])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_values_round_trip(value: Any) -> None:
    again = parse_object(write_object({"value": value}))
    assert again == {"value": value}
    assert str(again) == str({"value": value}), "numbers keep their kind"


def test_comments_are_blanked_outside_strings() -> None:
    text = b'/* a */{"b//": "/* c */ \\" //", /*"*/ "d": 1 // e\n} // f'
    assert parse_object(text) == {"b//": '/* c */ " //', "d": 1}
    assert blank_comments(text).translate(None, b" ") == b'{"b//":"/*c*/\\"//","d":1\n}'
    assert len(blank_comments(text)) == len(text)
    for open_ended in (b'{"a": 1} /* b', b'{"a": 1} /*/', b'{"a": "//'):
        assert blank_comments(open_ended) == open_ended
        with raises_as_recorded(UnreadableJson):
            parse_object(open_ended)


# Jackson also reads longer forms of a character than UTF-8 allows.
@pytest.mark.parametrize("text", [b"\xc1\xb3emantic", b"\xff", b"\xe0\x81\xb3"])
def test_what_is_not_utf8_is_rejected(text: bytes) -> None:
    with raises_as_recorded(UnreadableJson):
        require_utf8(text)
    require_utf8("ä猫".encode() + b"\xed\xa0\x80")  # a lone surrogate, which some clients send


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":1e400}', b"{", b"\xff", b'{"a":' * 100_000]
)
def test_json_that_engines_parse_differently_is_rejected(raw: bytes) -> None:
    with raises_as_recorded(UnreadableJson):
        parse_object(raw)


def test_hop_by_hop_headers_are_removed() -> None:
    removed = [(b"Connection", b"keep-alive, X-Hop"), (b"x-hop", b"1"), (b"TE", b"trailers"), (b"host", b"other")]
    kept = [(b"authorization", b"Basic x"), (b"x-opaque-id", b"1"), (b"x-opaque-id", b"2")]
    assert end_to_end_headers(removed + kept) == kept
    assert credential_headers(removed + kept) == kept[:1]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (UsageError("m", "r"), 400, "illegal_argument_exception"),
        (EngineUnreachable("m", "r"), 502, "es_sbert_upstream_unreachable"),
        (ModelError("m", "r"), 503, "es_sbert_model_unavailable"),
        (RequestFailed("m", "r", 0), 502, "es_sbert_exception"),
    ],
)
def test_errors_have_engine_format_and_remedy(error: Any, status: int, kind: str) -> None:
    cause = {"type": kind, "reason": "m. r"}
    assert http_status(error) == status
    # Dashboards' dialogs print `caused_by`, clients `root_cause`.
    assert error_object(error) == {"root_cause": [cause], **cause, "caused_by": cause}
    assert parse_object(error_body(error)) == {"error": error_object(error), "status": status}
    assert (b"x-elastic-product", b"Elasticsearch") in response_headers(EngineType.ELASTICSEARCH, 1)
    assert len(response_headers(EngineType.OPENSEARCH, 1)) == len(response_headers(None, 1)) == 2


def test_msearch_body_is_split_as_engines_do() -> None:
    def split(body: bytes, engine_type: EngineType = EngineType.ELASTICSEARCH) -> list[tuple[bytes, bytes]]:
        return [(search.header, search.body) for search in split_entries(body, engine_type)]

    assert split(b'{}\n{"size":1}\n{"index":"a"}\r\n{}\n') == [(b"{}", b'{"size":1}'), (b'{"index":"a"}', b"{}")]
    assert split(b"{}\n{}") == []
    for rest in (b"\n", b"\r\n", b"{}\n"):  # a header without a body
        assert split(b"{}\n{}\n" + rest) == [(b"{}", b"{}")]
    assert split(b'\n{"size":1}\n') == [(b"", b'{"size":1}')]
    assert split(b'\n{}\n{"size":1}\n', EngineType.OPENSEARCH) == [(b"{}", b'{"size":1}')]
    assert split(b"") == []


@pytest.mark.parametrize(
    ("answer", "ordinary"),
    [
        ({"a": {"mappings": {"properties": {"semantic": {"properties": {"title": {"type": "text"}}}}}}}, True),
        ({"a": {"mappings": {"properties": {"semantic.title": {"type": "text"}}}}}, True),
        ({"a": {"mappings": {"runtime": {"semantic": {"type": "keyword"}}}}}, True),
        ({"a": {"mappings": {"properties": {"semantics": {"type": "text"}}}}}, False),
    ],
)
def test_mapped_field_with_virtual_name_is_ordinary(answer: Json, ordinary: bool) -> None:
    searched = resolve_mappings(answer, "semantic", EngineType.ELASTICSEARCH)
    assert not searched
    assert searched.ordinary is ordinary


@pytest.mark.parametrize(
    ("expression", "local", "remote"),
    [
        ("", "", None),
        ("docs,far:docs,*%3Adocs,-far:old", "docs", "far:docs,*%3Adocs,-far:old"),
        ("docs,-far:*", "docs", None),
        ("%3Clogs-%7Bnow%2Fd%7BHH%3Amm%7D%7D%3E", "%3Clogs-%7Bnow%2Fd%7BHH%3Amm%7D%7D%3E", None),
    ],
)
def test_local_and_remote_names_are_separated(expression: str, local: str | None, remote: str | None) -> None:
    assert split_remote(expression) == (local, remote)


def test_long_index_expressions_are_split() -> None:
    names = [f"logs-{number:04}" for number in range(1000)] + ["*-old"]
    parts = split_expression(",".join(names))
    assert ",".join(parts).split(",") == names
    assert 3 < len(parts) < 5
    assert max(map(len, parts)) <= 3000
    assert split_expression("docs,-old*") == ["docs,-old*"]
    with raises_as_recorded(BadRequest):
        split_expression(",".join([*names, "-logs-0001"]))
