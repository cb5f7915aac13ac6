"""Whatever is asked: nothing crashes, what does not ask by meaning stays as it is, and one host is reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.mapping import VectorFieldMeta
from tests.engine.vectors import field_of
from tests.gateway.echo import Echo, Received, is_question, whole
from tests.gateway.recorded import Request
from tests.gateway.serving import gateway
from tests.gateway.wire import Answer, send

MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
JSON = (("content-type", "application/json"),)


# Where the gateway asks for the indices of a point in time; the searches of these tests name an index.
_POINT_IN_TIME = b"/_search"


class Engine(Echo):
    """Knows the index `meant`, which has vectors; any other has none."""

    def __init__(self, field: VectorFieldMeta) -> None:
        super().__init__(reply=self._answer)
        meta = {"es_sbert": {"fields": {"embedding": field.model_dump(mode="json")}}}
        state = {"mappings": {"_meta": meta}, "settings": {"index": {"number_of_shards": "1"}}}
        self._index = orjson.dumps({"meant": state})

    def _answer(self, got: Received, out: BinaryIO) -> bool:
        body = self._index if is_question(got) and got.target.startswith(b"/meant") else b"{}"
        if got.target == _POINT_IN_TIME:
            body = orjson.dumps({"_shards": {"total": 0, "failed": 0}, "aggregations": {"indices": {"buckets": []}}})
        if got.target == b"/_render/template":
            body = b'{"template_output":{}}'
        if got.target.endswith(b"/_msearch"):
            searches = got.body.rstrip(b"\r\n").count(b"\n") // 2 + 1
            body = orjson.dumps({"took": 1, "responses": [{"status": 200}] * searches})
        return bool(out.write(whole(body)))

    def passed(self) -> Received:
        """The request that was passed on, among the gateway's own questions."""
        [got] = [got for got in self.received if not is_question(got) and got.target != _POINT_IN_TIME]
        self.received.clear()
        assert self.refused == []
        return got


@pytest.fixture(scope="module")
def engine(tiny_encoder: Encoder) -> Iterator[Engine]:
    with Engine(field_of(tiny_encoder.info, "{title}. {body}")) as server:
        yield server


@pytest.fixture(scope="module")
def url(engine: Engine, tiny: Path) -> Iterator[str]:
    """A gateway that leaves nothing out of hits, so that only semantic queries change a request."""
    with gateway(engine.url, tiny, hide_vectors="never") as address:
        # An error shape is the engine's once the gateway has seen it.
        send(address, Request("GET", "/"))
        # With its first use of vectors, the gateway asks for the engine's version.
        send(address, Request("POST", "/meant/_search", JSON, b'{"query":{"match":{"semantic":"a"}}}'))
        yield address


@pytest.fixture(autouse=True)
def _a_new_start(engine: Engine) -> None:
    engine.received.clear()


texts = st.text(max_size=20).filter(lambda text: "semantic" not in text)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
fields = st.sampled_from(["title", "body", "year", "tags.raw", "*", "embedding_meta.tokens"])
words = st.text("abcdefgh äé1*?~ ", max_size=20)
plain_leaves = st.one_of(
    st.builds(lambda field, text: {"match": {field: text}}, fields, texts),
    st.builds(lambda field, text: {"match": {field: {"query": text, "operator": "and"}}}, fields, words),
    st.builds(lambda field, value: {"term": {field: {"value": value}}}, fields, values),
    st.builds(lambda field, value: {"range": {field: {"gte": value}}}, fields, st.integers(-(2**53), 2**53)),
    st.builds(lambda text: {"query_string": {"query": text, "default_field": "body"}}, words),
    st.builds(lambda text, few: {"multi_match": {"query": text, "fields": few}}, words, st.lists(fields, max_size=2)),
    st.builds(lambda field: {"exists": {"field": field}}, fields),
    st.just({"match_all": {}}),
    st.builds(lambda kind, said: {kind: said}, texts, values),
)
meaning = st.one_of(
    st.builds(lambda text: {"match": {"semantic": text}}, words.filter(str.strip)),
    st.builds(lambda text: {"match_phrase": {"semantic": {"query": text}}}, words.filter(str.strip)),
    st.builds(lambda text: {"semantic": {"field": "embedding", "query": text}}, words.filter(str.strip)),
    st.builds(lambda text: {"neural": {"embedding": {"query_text": text, "k": 7}}}, words.filter(str.strip)),
)


OCCURRENCES = ("must", "should", "must_not", "filter")


def compound(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(leaves, max_size=3)
    return st.one_of(
        leaves,
        st.fixed_dictionaries({"bool": st.fixed_dictionaries(dict.fromkeys(OCCURRENCES, parts))}),
        st.builds(lambda inner: {"constant_score": {"filter": inner, "boost": 2}}, leaves),
        st.builds(lambda inner: {"dis_max": {"queries": inner}}, parts),
        # Inside, nothing means the vectors: those stand at the hits themselves.
        st.builds(lambda inner: {"nested": {"path": "chapters", "query": inner}}, plain_leaves),
        st.builds(lambda inner: {"function_score": {"query": inner, "boost_mode": "sum"}}, leaves),
    )


def bodies(queries: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    rest = st.fixed_dictionaries(
        {},
        optional={
            "size": st.integers(0, 20),
            "from": st.integers(0, 20),
            "_source": values,
            "aggs": values,
            "sort": st.sampled_from([["_score"], [{"year": "desc"}], "year"]),
            "post_filter": plain_leaves,
            "highlight": st.just({"fields": {"body": {}}}),
            "track_total_hits": st.booleans(),
        },
    )
    return st.builds(lambda query, more: {"query": query, **more}, queries, rest)


plain_bodies = bodies(st.recursive(plain_leaves, compound, max_leaves=6))
asking_bodies = bodies(st.recursive(meaning | plain_leaves, compound, max_leaves=6))
targets = st.sampled_from(["_search", "_count", "_async_search", "_search?typed_keys=true", "_search/template"])


def assert_understood(answer: Answer) -> None:
    """Passed on, or refused with a reason: the caller's request is at fault and never the gateway."""
    assert answer.status in (200, 400, 413, 415), answer
    if answer.status != 200:
        error = orjson.loads(answer.body)["error"]
        assert error["reason"]
        assert error["root_cause"]


@MANY
@given(body=st.binary(max_size=200) | st.binary(max_size=50).map(lambda more: b'{"semantic":' + more), data=st.data())
def test_random_bytes_pass_through_or_are_refused(url: str, engine: Engine, body: bytes, data: st.DataObject) -> None:
    apis = ["_search", "_count", "_msearch", "_bulk", "_doc", "_create/1", "_update/1", "_async_search", "_pit"]
    target = f"/{data.draw(st.sampled_from(['plain', 'meant']))}/{data.draw(st.sampled_from(apis))}"
    kind = data.draw(st.sampled_from(["application/json", "application/x-ndjson", "text/plain", ""]))
    answer = send(url, Request("POST", target, (("content-type", kind),), body))
    if answer.status == 200:
        got = engine.passed()
        assert (got.method, got.target, got.body) == (b"POST", target.encode(), body)
    else:
        assert_understood(answer)
        assert all(map(is_question, engine.received)), "its mapping was asked for"
        engine.received.clear()


@MANY
@given(
    asked=st.tuples(plain_bodies, targets | st.just("_msearch"), st.just("meant"))
    | st.tuples(asking_bodies, st.sampled_from(["_search", "_count", "_async_search", "_msearch"]), st.just("plain"))
)
def test_requests_that_are_not_semantic_or_without_vectors_pass_through_unchanged(
    url: str, engine: Engine, asked: tuple[dict[str, Any], str, str]
) -> None:
    body, target, index = asked
    sent = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    if target == "_msearch":
        sent = b" {} \n " + orjson.dumps(body) + b" \r\n{}\n"
    assert send(url, Request("POST", f"/{index}/{target}", JSON, sent)).status == 200
    got = engine.passed()
    assert (got.target, got.body) == (f"/{index}/{target}".encode(), sent)


def nested(depth: int, inner: str) -> bytes:
    return ('{"query":' + '{"bool":{"must":[' * depth + inner + "]}}" * depth + "}").encode()


def test_deep_nesting_does_not_crash(engine: Engine, tiny: Path) -> None:
    """Engines refuse more than 30 levels of queries themselves, with a reason."""
    children = '{"has_child":{"type":"a","query":{},"inner_hits":{}}}'
    with gateway(engine.url, tiny) as url:
        for depth in (100, 1_000, 100_000):
            for inner in ('{"match":{"semantic":"cats"}}', '{"match":{"title":"semantic"}}', children):
                assert_understood(send(url, Request("POST", "/meant/_search", JSON, nested(depth, inner))))


@MANY
@given(path=st.text("abc_/%.@:;\\*,<>{}?=&+~!'()[]| é", max_size=30), query=st.text("ab=&%:/?@+;é", max_size=20))
@example(path="/", query="")
@example(path="%", query="%")
def test_random_targets_pass_through_or_are_rejected(url: str, engine: Engine, path: str, query: str) -> None:
    target = f"/x{quote(path, safe='_/%.@:;,*+~!()')}" + (f"?{quote(query, safe='=&%:/?@+;')}" if query else "")
    answer = send(url, Request("GET", target))
    if answer.status == 200:
        assert engine.passed().target == target.encode()
    else:
        assert_understood(answer)
        assert engine.received == []
