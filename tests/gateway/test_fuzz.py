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

from es_sbert.bundle.bundle import open_encoder_bundle
from es_sbert.gateway.search.hidden_fields import hide_in_search
from es_sbert.gateway.settings import HideVectors, SemanticSettings
from es_sbert.index.mapping import VectorFieldMeta
from tests.gateway.echo import HEAD, Echo, Received, is_question
from tests.gateway.recorded import Request
from tests.gateway.serving import gateway
from tests.gateway.wire import Answer, send
from tests.tiny import HIDDEN

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
        out.write(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        return True

    def passed(self) -> Received:
        """The request that was passed on, among the gateway's own questions."""
        [got] = [got for got in self.received if not is_question(got) and got.target != _POINT_IN_TIME]
        self.received.clear()
        assert self.refused == []
        return got


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[Engine]:
    field = VectorFieldMeta(
        fingerprint=open_encoder_bundle(tiny).manifest.fingerprint,
        model="tiny",
        dimensions=HIDDEN,
        index_type="hnsw",
        text="{title}. {body}",
    )
    with Engine(field) as server:
        yield server


@pytest.fixture(scope="module")
def url(engine: Engine, tiny: Path) -> Iterator[str]:
    """A gateway that leaves nothing out of hits, so that only semantic queries change a request."""
    with gateway(engine.url, tiny, semantic=SemanticSettings(hide_vectors=HideVectors.NEVER)) as address:
        # An error shape is the engine's once the gateway has seen it.
        send(address, Request("GET", "/"))
        # With its first use of vectors, the gateway asks for the engine's version.
        send(address, Request("POST", "/meant/_search", JSON, b'{"query":{"match":{"semantic":"a"}}}'))
        yield address


@pytest.fixture(scope="module")
def hiding_url(engine: Engine, tiny: Path) -> Iterator[str]:
    """A gateway as it runs by default."""
    with gateway(engine.url, tiny) as address:
        send(address, Request("POST", "/meant/_search", JSON, b"{}"))  # it asks for the engine's version
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
    st.builds(
        lambda text, k: {"neural": {"embedding": {"query_text": text, "k": k}}},
        words.filter(str.strip),
        st.integers(1, 20),
    ),
)


def compound(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(leaves, max_size=3)
    return st.one_of(
        leaves,
        st.builds(
            lambda must, should, none, kept: {
                "bool": {"must": must, "should": should, "must_not": none, "filter": kept}
            },
            parts,
            parts,
            parts,
            parts,
        ),
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
    apis = [
        "_search",
        "_count",
        "_msearch",
        "_bulk",
        "_doc",
        "_doc/1",
        "_create/1",
        "_update/1",
        "_async_search",
        "_pit",
    ]
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
@given(body=plain_bodies, target=targets, index=st.sampled_from(["plain", "meant"]))
def test_non_semantic_requests_pass_through_unchanged(
    url: str, engine: Engine, body: dict[str, Any], target: str, index: str
) -> None:
    sent = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    assert send(url, Request("POST", f"/{index}/{target}", JSON, sent)).status == 200
    got = engine.passed()
    assert (got.target, got.body) == (f"/{index}/{target}".encode(), sent)


HIDDEN_FIELDS = ["embedding", "embedding_meta"]
own_filters = st.sampled_from(
    [{}, {"_source": {"excludes": ["title"]}}, {"_source": ["title"]}, {"pit": {"id": "x"}}, {"size": 0}]
)


@MANY
@given(body=plain_bodies, more=own_filters, index=st.sampled_from(["plain", "meant"]), indented=st.booleans())
def test_hiding_vectors_changes_the_source_filter_only(
    hiding_url: str, engine: Engine, body: dict[str, Any], more: dict[str, Any], index: str, indented: bool
) -> None:
    body |= more
    sent = orjson.dumps(body, option=orjson.OPT_INDENT_2 if indented else None)
    assert send(hiding_url, Request("POST", f"/{index}/_search", JSON, sent)).status == 200
    got = engine.passed()
    target, _, query = got.target.partition(b"?")
    assert target == f"/{index}/_search".encode()
    expected = orjson.loads(sent)
    if hide_in_search(expected, [], HIDDEN_FIELDS) is None or index == "plain":
        assert (query, got.body) == (b"", sent)
    elif got.body == sent:
        assert query == b"_source_excludes=embedding%2Cembedding_meta"
        assert expected == body | {"_source": {"excludes": HIDDEN_FIELDS}}
    else:
        assert query == b""
        assert orjson.loads(got.body) == expected


@MANY
@given(body=asking_bodies, target=st.sampled_from(["_search", "_count", "_async_search"]))
def test_index_without_vectors_is_never_rewritten(url: str, engine: Engine, body: dict[str, Any], target: str) -> None:
    sent = orjson.dumps(body)
    assert send(url, Request("POST", f"/plain/{target}", JSON, sent)).status == 200
    assert engine.passed().body == sent


def within(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    yield value
    if isinstance(value, dict):
        for inner in value.values():
            yield from within(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from within(inner)


def asks(value: Any) -> bool:
    return any(
        isinstance(node, dict)
        and (
            "neural" in node
            or "semantic" in node
            or any("semantic" in (said or ()) for said in node.values() if isinstance(said, dict))
        )
        for node in within(value)
    )


@MANY
@given(body=asking_bodies)
def test_semantic_searches_are_rewritten_to_native_queries(url: str, engine: Engine, body: dict[str, Any]) -> None:
    answer = send(url, Request("POST", "/meant/_search", JSON, orjson.dumps(body)))
    assert_understood(answer)
    if answer.status != 200:
        # The gateway's own questions may have been asked; the search itself was not.
        assert all(map(is_question, engine.received))
        engine.received.clear()
        return
    rewritten = orjson.loads(engine.passed().body)
    if not asks(body):
        assert rewritten == body
        return
    assert not asks(rewritten["query"]), rewritten["query"]
    for kept in body.keys() - {"query", "size", "sort", "track_scores"}:
        assert rewritten[kept] == body[kept]


@MANY
@given(
    lines=st.lists(
        st.tuples(
            st.fixed_dictionaries({}, optional={"index": st.sampled_from(["meant", "plain", ["meant"]])}),
            asking_bodies | plain_bodies,
        ),
        max_size=4,
    ),
    end=st.sampled_from([b"", b"\n", b"\n\n", b"\r\n"]),
)
def test_fuzzed_msearch_is_rewritten_or_passed_through(
    url: str, engine: Engine, lines: list[tuple[dict[str, Any], dict[str, Any]]], end: bytes
) -> None:
    sent = b"\n".join(orjson.dumps(part) for pair in lines for part in pair) + end
    answer = send(url, Request("POST", "/meant/_msearch", (("content-type", "application/x-ndjson"),), sent))
    assert_understood(answer)
    passed = [got for got in engine.received if not is_question(got)]
    engine.received.clear()
    assert len(passed) <= 1
    if not any(asks(body) for _, body in lines):
        assert passed[0].body == sent


def nested(depth: int, inner: str) -> bytes:
    return ('{"query":' + '{"bool":{"must":[' * depth + inner + "]}}" * depth + "}").encode()


@pytest.mark.parametrize("depth", [10, 100, 1_000, 10_000, 100_000])
@pytest.mark.parametrize(
    "inner",
    [
        '{"match":{"semantic":"cats"}}',
        '{"match":{"title":"semantic"}}',
        '{"has_child":{"type":"a","query":{},"inner_hits":{}}}',
    ],
)
def test_deep_nesting_does_not_crash(hiding_url: str, engine: Engine, depth: int, inner: str) -> None:
    """Engines refuse more than 30 levels of queries themselves, with a reason."""
    assert_understood(send(hiding_url, Request("POST", "/meant/_search", JSON, nested(depth, inner))))
    engine.received.clear()


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", "x" * 10_000, "x" * 10_001, "\x00", "\u202e", "🦊" * 100, '"', "\\", 5, None, True,
     [], ["a"], {}, {"a": "b"}, 1e308, "AND", "((((", '"\\'],
)  # fmt: skip
@pytest.mark.parametrize(
    "query",
    [lambda text: {"match": {"semantic": text}}, lambda text: {"match": {"semantic": {"query": text}}},
     lambda text: {"semantic": {"field": "embedding", "query": text}}, lambda text: {"query_string": {"query": text}},
     lambda text: {"query_string": {"query": f"semantic:{text}"}}, lambda text: {"neural": {"embedding": text}},
     lambda text: {"neural": {"embedding": {"query_text": text, "k": text}}}, lambda text: {"bool": {"must": text}},
     lambda text: {"simple_query_string": {"query": text, "fields": ["semantic"]}}, lambda text: {"match": text}],
)  # fmt: skip
def test_odd_query_texts_are_rewritten_or_rejected(url: str, engine: Engine, query: Any, text: Any) -> None:
    assert_understood(send(url, Request("POST", "/meant/_search", JSON, orjson.dumps({"query": query(text)}))))
    engine.received.clear()


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
