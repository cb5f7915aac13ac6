"""Answers of another shape than an engine's, to what the gateway asks about documents that are written."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.engine.vectors import field_of
from tests.gateway.echo import OK, Echo, Received
from tests.gateway.serving import gateway
from tests.gateway.writes.bulks import whole


@pytest.mark.parametrize(
    ("index", "asked", "answer"),
    [
        ("docs", b"/_mget", {"docs": []}),
        ("docs", b"/_mget", {"docs": [1]}),
        ("docs", b"/_mget", {"docs": [{"error": "no"}]}),
        ("docs", b"/_mget", {}),
        ("alias", b"/logs/_alias", []),
        ("alias", b"/logs/_alias", {"logs": {"aliases": {"alias": 1}}}),
        ("none", b"/_index_template/_simulate_index/none", {"template": []}),
    ],
)
def test_unexpected_engine_response_becomes_502(
    tiny: Path, tiny_encoder: Encoder, index: str, asked: bytes, answer: object
) -> None:
    meta = field_of(tiny_encoder.info, text="{title}. {text}").model_dump(mode="json")
    mapping: Json = {"docs": {"mappings": {"_meta": {"es_sbert": {"fields": {"embedding": meta}}}}}}
    stream = {"backing": mapping["docs"] | {"data_stream": "logs"}}

    def reply(got: Received, out: BinaryIO) -> bool:
        path = got.target.partition(b"?")[0]
        if path == asked:
            out.write(whole(orjson.dumps(answer)))
        elif path == b"/none":
            out.write(whole(b"{}", b"404 Not Found"))
        elif path in (b"/docs", b"/alias"):
            out.write(whole(orjson.dumps(mapping if path == b"/docs" else stream)))
        else:
            out.write(OK)
        return True

    with Echo(reply=reply) as echo, gateway(echo.url, tiny) as url:
        body = {"doc": {"title": "a cat"}}
        got = httpx.post(f"{url}/{index}/_update/1", json=body, timeout=300, trust_env=False)
        assert asked in {received.target.partition(b"?")[0] for received in echo.received}
        assert all(b"_update" not in received.target for received in echo.received)
    assert (got.status_code, got.json()["error"]["type"]) == (502, "es_sbert_upstream_unreachable")
