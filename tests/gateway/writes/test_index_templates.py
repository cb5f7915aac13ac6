"""Writes that create their index: its vector fields are those of the index templates that the engine applies."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.mapping import index_body
from tests.conftest import delete_index
from tests.engine.ingest_support import contents, open_engine
from tests.engine.vectors import field_of
from tests.faulty_proxy import Exchange, FaultyProxy, answer
from tests.gateway import patient
from tests.gateway.serving import gateway
from tests.gateway.writes.support import JSON, OUTCOMES, Counters, assert_vector, bulk, bulk_lines

Json = dict[str, Any]
Kind = Literal["_index_template", "component"]
KINDS: tuple[Kind, ...] = ("_index_template", "component")
TEXT = {"text": "a cat"}


class Templates:
    """Templates for indices whose names begin with a prefix of a test; all are deleted after it, with the indices."""

    def __init__(self, client: httpx.Client, engine_url: str, encoder: Encoder) -> None:
        self.client = client
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        self._url, self._encoder = engine_url, encoder
        self._paths: list[str] = []

    def vectors(self, field: str = "embedding", text: str = "{text}") -> Json:
        with open_engine(self._url) as engine:
            return index_body(engine.info.engine_type, field, field_of(self._encoder.info, text))

    def put(self, kind: Kind, template: Json, *, patterns: str = "*", name: str = "") -> None:
        name = f"{self.prefix}{name}"
        body: Json = {"index_patterns": [f"{self.prefix}{patterns}"]}
        body |= {"priority": 500, "template": template}
        if kind == "component":
            self.put_at(f"/_component_template/{name}", {"template": template})
            body |= {"composed_of": [name], "template": {}}
        self.put_at(f"/_index_template/{name}", body)

    def put_at(self, path: str, body: Json) -> None:
        self._paths.insert(0, path)
        self.client.put(path, json=body).raise_for_status()

    def clear(self) -> None:
        with open_engine(self._url) as engine:
            for path in self._paths:
                engine.send("DELETE", path)
            listed = engine.request_api("/_stats/store", {"filter_path": "indices.*.uuid"}) or {}
        for index in listed.get("indices", {}):
            if index.startswith(self.prefix):
                delete_index(self._url, index)


@pytest.fixture
def templates(client: httpx.Client, engine_url: str, tiny_encoder: Encoder) -> Iterator[Templates]:
    templates = Templates(client, engine_url, tiny_encoder)
    yield templates
    templates.clear()


# A write that creates an index: method, path, body.
WRITES: dict[str, tuple[str, str, Json]] = {
    "index": ("PUT", "_doc/1", TEXT),
    "without-id": ("POST", "_doc", TEXT),
    "create": ("PUT", "_create/1", TEXT),
    "upsert": ("POST", "_update/1", {"doc": {"n": 1}, "upsert": TEXT}),
    "doc-as-upsert": ("POST", "_update/1", {"doc": TEXT, "doc_as_upsert": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_first_document_of_each_api_has_its_vector(
    client: httpx.Client, engine_url: str, templates: Templates, tiny_encoder: Encoder, counters: Counters, kind: Kind
) -> None:
    alias = f"{templates.prefix}-alias"
    templates.put(kind, templates.vectors() | {"aliases": {alias: {}}}, patterns="-new-*")
    names = [f"{templates.prefix}-new-{api}" for api in WRITES]
    for name, (method, path, body) in zip(names, WRITES.values(), strict=True):
        assert client.request(method, f"/{name}/{path}", json=body).status_code == 201
    several = [f"{templates.prefix}-new-bulk{number}" for number in range(3)]
    other = f"{templates.prefix}-other"
    actions = [("index", {"_index": name, "_id": "1"}, TEXT) for name in [*several, other]]
    bulk(client, actions)
    for name in [*names, *several]:
        [source] = contents(engine_url, name).values()
        assert_vector({**source}, tiny_encoder, "a cat")
    assert contents(engine_url, other)["1"].keys() == {"text", "_version"}
    assert client.get(f"/{alias}/_count").json()["count"] == len(names) + len(several)
    assert counters.documents() == {}
    assert counters.increase(OUTCOMES) == {"embedded": len(names) + len(several)}


def test_legacy_template_with_vector_fields_is_refused_unless_a_composable_one_replaces_it(
    client: httpx.Client, engine_url: str, templates: Templates, counters: Counters
) -> None:
    name, other = f"{templates.prefix}-new", f"{templates.prefix}-other"
    remedy = f"PUT _index_template/{templates.prefix}"
    legacy = {"index_patterns": [f"{templates.prefix}-n*"], "order": 1000} | templates.vectors()
    templates.put_at(f"/_template/{templates.prefix}", legacy)
    templates.put_at(f"/_template/{templates.prefix}-plain", {"index_patterns": [f"{templates.prefix}-*"]})
    assert client.put(f"/{other}/_doc/1", json=TEXT).status_code == 201
    answered = client.put(f"/{name}/_doc/1", json=TEXT)
    assert answered.status_code == 400
    assert remedy in answered.json()["error"]["reason"]
    for indices, statuses in (((other, name, other), [201, 400, 201]), ((name, name), [400, 400])):
        lines = bulk_lines([("index", {"_index": index}, TEXT) for index in indices])
        items = client.post("/_bulk", content=lines, headers=JSON).raise_for_status().json()["items"]
        assert [item["index"]["status"] for item in items] == statuses
        assert remedy in items[1]["index"]["error"]["reason"]
    assert counters.increase(OUTCOMES) == {"refused": 4}
    templates.put("_index_template", {}, name="composable")
    assert client.put(f"/{name}/_doc/1", json=TEXT).status_code == 201
    assert contents(engine_url, name)["1"].keys() == {"text", "_version"}


def test_failed_lookup_of_templates_is_an_error(engine_url: str, tiny: Path, fresh_index: Callable[[str], str]) -> None:
    failing, status = "", 0

    def fail(exchange: Exchange) -> tuple[int, bytes]:
        return answer(status)(exchange) if exchange.path.startswith(failing) else exchange.forward()

    with (
        FaultyProxy(engine_url, always=fail, paths="") as proxy,
        gateway(proxy.url, tiny) as url,
        patient.client(url, headers={"accept-encoding": "identity"}) as client,  # the proxy does not pass on headers
        open_engine(engine_url) as engine,
    ):
        counters = Counters(client)
        for failing, status in product(("/_index_template", "/_template"), (404, 429, 500)):  # noqa: B007
            name, other = fresh_index(engine_url), fresh_index(engine_url)
            single = client.put(f"/{name}/_doc/1", json=TEXT)
            actions = [("index", {"_index": other}, TEXT), ("create", {"_index": other}, TEXT)]
            several = client.post("/_bulk", content=bulk_lines(actions), headers=JSON)
            assert single.status_code == several.status_code == (429 if status == 429 else 503)
            assert (counters.documents(), counters.increase(OUTCOMES)) == ({}, {"refused": 3})
            assert (engine.get_index(name), engine.get_index(other)) == (None, None)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, "no handler found for uri [/_template] and method [GET]"),
        (410, {"type": "api_not_available_exception", "reason": "not available when running in serverless mode"}),
    ],
)
def test_engine_without_legacy_templates_has_none(
    engine_url: str, tiny: Path, index_name: str, status: int, error: object
) -> None:
    def lack(exchange: Exchange) -> tuple[int, bytes]:
        is_legacy = exchange.path.startswith("/_template")
        return (status, orjson.dumps({"error": error, "status": status})) if is_legacy else exchange.forward()

    with FaultyProxy(engine_url, always=lack, paths="") as proxy, gateway(proxy.url, tiny) as url:
        assert patient.put(f"{url}/{index_name}/_doc/1", json=TEXT).status_code == 201
