"""An answer to one of the gateway's own questions that has another shape than an engine's is a 502, not a bug."""

from __future__ import annotations

import itertools
import random
from typing import BinaryIO

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.gateway.echo import HEAD, Echo, Received
from tests.gateway.recorded import Request
from tests.gateway.security.conftest import JSON
from tests.gateway.wire import send

LINES = (("content-type", "application/x-ndjson"),)
META = {"fingerprint": "f" * 64, "model": "tiny", "dimensions": 3, "index_type": "hnsw", "text": "{title} {body}"}
MAPPINGS = {"_meta": {"es_sbert": {"fields": {"embedding": META}}}, "properties": {"embedding": {"dims": 3}}}
SHAPES: list[object] = [
    [], [[]], "text", 3, None, {"a": []}, {"a": "text"}, {"a": None}, {"a": 3}, {"a": {"mappings": []}},
    {"a": {"mappings": {"_meta": []}}}, {"a": {"mappings": {"_meta": {"es_sbert": []}}}},
    {"a": {"mappings": {"_meta": {"es_sbert": {"fields": []}}}}}, {"a": {"mappings": {"properties": []}}},
    {"a": {"mappings": {"properties": {"title": "text"}}}}, {"a": {"mappings": MAPPINGS, "settings": []}},
    {"a": {"mappings": MAPPINGS, "settings": {"index": {"number_of_shards": "many"}}}},
    {"a": {"mappings": MAPPINGS, "aliases": []}}, {"a": {"mappings": MAPPINGS, "aliases": {"b": "text"}}},
    {"other": {"mappings": MAPPINGS, "aliases": {"a": {}}}},
    {"indices": "a"}, {"indices": {"a": []}}, {"hits": []}, {"hits": {"hits": {}}}, {"hits": {"hits": ["text"]}},
    {"aggregations": []}, {"aggregations": {"indices": {"buckets": [{}]}}}, {"docs": {}}, {"docs": []},
    {"docs": ["text"]}, {"docs": [{"error": "text"}]}, {"responses": "text"}, {"items": "text"},
    {"template_output": []}, {"data_streams": "text"}, {"aliases": [{"name": "a"}]}, {"template": []},
    {"error": {"failed_shards": ["text"], "_shards": []}},
]  # fmt: skip
SEMANTIC = {"query": {"match": {"semantic": "cats"}}}
KTH = {"query": {"match": {"semantic": {"query": "cats", "k": 3}}}, "pit": {"id": "cGl0"}}
REQUESTS = [
    Request("POST", "/a/_search", JSON, orjson.dumps(SEMANTIC)),
    Request("POST", "/_search", JSON, orjson.dumps(KTH)),
    Request("POST", "/a/_search/template", JSON, orjson.dumps({"source": SEMANTIC})),
    Request("POST", "/a/_msearch", LINES, b"{}\n" + orjson.dumps(SEMANTIC) + b"\n"),
    Request("POST", "/a/_msearch/template", LINES, b"{}\n" + orjson.dumps({"source": SEMANTIC}) + b"\n"),
    Request("POST", "/a/_delete_by_query", JSON, orjson.dumps(SEMANTIC)),
    Request("POST", "/a/_doc", JSON, b'{"title":"cats","body":"dogs"}'),
    Request("POST", "/a/_update/1", JSON, b'{"doc":{"title":"cats"}}'),
    Request("POST", "/a/_bulk", LINES, b'{"index":{}}\n{"title":"cats","body":"dogs"}\n{"update":{"_id":"1"}}\n'
            b'{"doc":{"title":"cats"}}\n'),
    Request("GET", "/ui/api/indices"),
    Request("GET", "/ui/api/facets?index=a"),
    Request("POST", "/ui/api/body", JSON, orjson.dumps({"index": "a", "body": SEMANTIC})),
]  # fmt: skip


@pytest.fixture(scope="module")
def mapping(tiny_encoder: Encoder) -> bytes:
    info = tiny_encoder.info
    meta = META | {"fingerprint": info.fingerprint, "dimensions": info.dimensions}
    # Behind an alias, on two shards: the gateway has more questions then.
    index = {
        "mappings": {
            "_meta": {"es_sbert": {"fields": {"embedding": meta}}},
            "properties": {"embedding": {"dims": info.dimensions}},
        },
        "aliases": {"a": {}},
        "settings": {"index": {"number_of_shards": "2"}},
    }
    return orjson.dumps({"index": index})


UPDATE = REQUESTS[7]
# Of 2,964 combinations. Each request, shape and status is among them.
DRAWN = random.Random(2).sample(list(itertools.product(REQUESTS, SHAPES, (200, 404, 503), (False, True))), 150)
DRAWN += [(UPDATE, {"docs": docs}, 200, True) for docs in ([], [{"error": "no"}], [1])]


@pytest.mark.parametrize(
    ("request_", "shape", "status", "mapped"),
    DRAWN,
    ids=[f"{one.method} {one.target} {shape!r} {status} {mapped}" for one, shape, status, mapped in DRAWN],
)
def test_unexpected_engine_response_is_not_a_500(
    url: str, echo: Echo, mapping: bytes, request_: Request, shape: object, status: int, mapped: bool
) -> None:
    def reply(got: Received, out: BinaryIO) -> bool:
        if mapped and b"filter_path" in got.target and b"_meta.es_sbert" in got.target:
            body, line = mapping, b"200 OK"
        else:
            body, line = orjson.dumps(shape), b"%d Strange" % status
        out.write(HEAD.replace(b"200 OK", line) + b"content-length: %d\r\n\r\n" % len(body) + body)
        return True

    echo.reply = reply
    # The mapping is remembered for a moment.
    send(url, Request("PUT", "/a/_mapping", JSON, b"{}"))
    answer = send(url, request_)
    assert answer.status != 500, answer
    if answer.status == 502:
        assert b"sent an unexpected response. Send the request again" in answer.body
    assert b"127.0.0.1" not in answer.body
    if request_ is UPDATE and mapped and status == 200:  # its document may have another text
        assert answer.status == 502
        assert not any(got.target.startswith(b"/a/_update") for got in echo.received)
