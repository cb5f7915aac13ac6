"""What callers learn through a gateway with credentials of its own: nothing that the engine would not tell them."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

import httpx
import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import VectorFieldMeta, index_body
from es_sbert.index.vector_field import ensure_vector_field, request_vector_field
from tests.engine.secured import PASSWORD, Secured
from tests.gateway import patient
from tests.gateway.patient import NDJSON, ndjson
from tests.gateway.serving import gateway

PUBLIC, SECRET, BROKEN = "pub", "vault-3", "vault-4"
# Of the other indices: their names, fields and models.
HIDDEN = ("vault", "hush", "sotto")
SEMANTIC: Json = {"query": {"match": {"semantic": "the cat sleeps"}}}
DOCUMENT: Json = {"text": "the cat sleeps"}


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    json: Json | None = None
    lines: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path} {str(self.json)[:60] if self.lines is None else 'lines'}"


def _searches(index: str) -> list[Asked]:
    """A request to every API that the gateway looks into."""
    at = f"/{index}" if index else ""
    source: Json = {"source": SEMANTIC, "params": {}}
    return [
        Asked("POST", f"{at}/_search", SEMANTIC),
        Asked("POST", f"{at}/_search", {"query": {"match": {"semantic.hush_vector": "the cat sleeps"}}}),
        Asked("POST", f"{at}/_search", {"query": {"semantic": {"field": "semantic", "query": "the cat sleeps"}}}),
        Asked("POST", f"{at}/_search", {"query": {"neural": {"semantic": {"query_text": "a cat", "k": 3}}}}),
        Asked("GET", f"{at}/_search?q=semantic:cat"),
        Asked("POST", f"{at}/_count", SEMANTIC),
        Asked("POST", f"{at}/_msearch", lines=ndjson({}, SEMANTIC)),
        Asked("POST", f"{at}/_search/template", source),
        Asked("POST", f"{at}/_msearch/template", lines=ndjson({}, source)),
        Asked(
            "POST",
            f"{at}/_rank_eval",
            {"requests": [{"id": "one", "request": SEMANTIC, "ratings": []}], "metric": {"precision": {}}},
        ),
        Asked("POST", f"{at or '/_all'}/_delete_by_query", SEMANTIC),
        Asked("POST", f"{at or '/_all'}/_update_by_query", SEMANTIC),
        *([Asked("POST", f"{at}/_explain/1", SEMANTIC)] if at else []),
    ]


def _writes(index: str) -> list[Asked]:
    return [
        Asked("POST", f"/{index}/_doc", DOCUMENT),
        Asked("PUT", f"/{index}/_doc/9", DOCUMENT),
        Asked("POST", f"/{index}/_update/9", {"doc": DOCUMENT}),
        Asked("POST", "/_bulk", lines=ndjson({"index": {"_index": index, "_id": "9"}}, DOCUMENT)),
        Asked("POST", "/_reindex", {"source": {"index": index, "query": SEMANTIC["query"]}, "dest": {"index": "new"}}),
    ]


OWN_PAGES = [
    Asked("GET", "/healthz"),
    Asked("GET", "/readyz"),
    Asked("GET", "/metrics"),
    Asked("GET", "/v1/models"),
    Asked("GET", "/ui/"),
    Asked("GET", "/ui/api/indices"),
    Asked("GET", f"/ui/api/facets?index={SECRET}"),
    Asked("POST", "/ui/api/body", {"index": SECRET, "body": SEMANTIC}),
]  # fmt: skip


def credentials(server: Secured, **own: object) -> EngineSettings:
    """A gateway that may do all, unless other credentials are given."""
    all_rights = {"username": "elastic", "password": SecretStr(PASSWORD)}
    return EngineSettings.model_validate({"url": server.url, "ca_certs": server.ca_certs, **(own or all_rights)})


@pytest.fixture(scope="module")
def server(secured_es8: Secured, tiny_encoder: Encoder) -> Iterator[Secured]:
    """A server with an index for everyone and two that are hidden: of another model, and with a damaged mapping."""
    engine = connect(credentials(secured_es8))
    for name in (PUBLIC, SECRET, BROKEN, "new"):
        with suppress(HTTPError):
            secured_es8.ask("DELETE", f"/{name}")
    try:
        # Of two shards, about which the gateway has a question.
        ensure_vector_field(engine, PUBLIC, request_vector_field(tiny_encoder, text_template="{text}"), shards=2)
    finally:
        engine.close()
    meta = VectorFieldMeta(
        fingerprint="5077" * 8, model="sotto-voce", dimensions=3, index_type="hnsw", text="{hush_title}. {text}"
    )
    secured_es8.ask("PUT", f"/{SECRET}", index_body(EngineType.ELASTICSEARCH, "hush_vector", meta))
    secured_es8.ask("PUT", f"/{BROKEN}", {"mappings": {"_meta": {"es_sbert": {"fields": {"hush_vector": 3}}}}})
    [vector] = tiny_encoder.encode([DOCUMENT["text"]], "document")
    secured_es8.ask("PUT", f"/{PUBLIC}/_doc/1?refresh=true", {**DOCUMENT, "embedding": vector.tolist()})
    secured_es8.ask("PUT", f"/{SECRET}/_doc/1?refresh=true", {"text": "hush", "hush_vector": [1, 2, 3]})
    yield secured_es8
    for name in (PUBLIC, SECRET, BROKEN):
        secured_es8.ask("DELETE", f"/{name}")


@pytest.fixture(scope="module")
def keys(server: Secured) -> dict[str, str | None]:
    return {
        "none": None,
        "wrong": "d3Jvbmc6a2V5",
        "narrow": server.api_key(index={PUBLIC: ["read"]}),
        "writer": server.api_key(index={PUBLIC: ["create_doc"]}),
        "wide": server.api_key(index={"*": ["all"]}, cluster=["all"]),
    }


@pytest.fixture(scope="module")
def through(server: Secured, tiny: Path) -> Iterator[httpx.Client]:
    with gateway(credentials(server), tiny, k=1) as url, patient.client(url) as client:
        yield client


@pytest.fixture(scope="module")
def direct(server: Secured) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=server.ca_certs)
    with httpx.Client(base_url=server.url, verify=context, timeout=120, trust_env=False) as client:
        yield client


def _answer(client: httpx.Client, asked: Asked, key: str | None) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"ApiKey {key}"}
    if asked.lines is not None:
        headers |= NDJSON
    return client.request(asked.method, asked.path, json=asked.json, content=asked.lines, headers=headers)


REFUSED = [
    *((who, asked) for who in ("none", "wrong") for index in ("", PUBLIC, SECRET, "missing", "va*")
      for asked in _searches(index)),
    *((who, asked) for who in ("none", "wrong") for index in (PUBLIC, SECRET, "missing") for asked in _writes(index)),
    *((who, asked) for who in ("narrow", "writer") for index in (SECRET, BROKEN, "missing", f"{PUBLIC},{SECRET}")
      for asked in _searches(index)),
    *((who, asked) for who in ("narrow", "writer") for index in (SECRET, BROKEN, "missing")
      for asked in _writes(index)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("who", "asked"),
    # Each kind of caller, index and request, though not each of each: that is the long run.
    [
        pytest.param(*case, marks=() if number % 5 == 0 else pytest.mark.long, id=f"{case[0]} {case[1]}")
        for number, case in enumerate(REFUSED)
    ],
)
def test_unauthorized_caller_gets_engines_own_error(
    through: httpx.Client, direct: httpx.Client, keys: dict[str, str | None], who: str, asked: Asked
) -> None:
    expected = _answer(direct, asked, keys[who])
    answer = _answer(through, asked, keys[who])
    assert answer.status_code == expected.status_code, answer.text
    assert not [word for word in HIDDEN if word in answer.text.lower() and word not in expected.text.lower()]
    if expected.status_code in (401, 403):
        assert answer.json()["error"]["type"] == expected.json()["error"]["type"] == "security_exception"


@pytest.mark.parametrize(
    "asked", [one for index in ("", "_all", "*", "pub,va*", "va*") for one in _searches(index)], ids=str
)
def test_searches_are_limited_to_permitted_indices_and_reveal_no_others(
    through: httpx.Client, keys: dict[str, str | None], asked: Asked
) -> None:
    answer = _answer(through, asked, keys["narrow"])
    own = f"{asked.path} {asked.json}"
    assert not [word for word in HIDDEN if word in answer.text.lower() and word not in own]
    if asked.json == SEMANTIC and asked.path.endswith("/_search") and not asked.path.startswith("/va"):
        assert [hit["_index"] for hit in answer.json()["hits"]["hits"]] == [PUBLIC]


@pytest.mark.parametrize("who", ["none", "wrong", "narrow", "writer"])
@pytest.mark.parametrize("asked", OWN_PAGES, ids=str)
def test_gateway_pages_reveal_no_hidden_indices(
    through: httpx.Client, keys: dict[str, str | None], who: str, asked: Asked
) -> None:
    answer = _answer(through, asked, keys[who])
    assert answer.status_code in (200, 401, 403)
    # The engine's own refusal repeats the name that was asked for.
    assert not [word for word in ("hush", "sotto") if word in answer.text.lower()]


def test_point_in_time_of_another_caller_reveals_nothing(
    through: httpx.Client, direct: httpx.Client, keys: dict[str, str | None]
) -> None:
    opened = _answer(direct, Asked("POST", f"/{SECRET}/_pit?keep_alive=1m"), keys["wide"]).json()["id"]
    search = Asked("POST", "/_search", {**SEMANTIC, "pit": {"id": opened}})
    # Whoever may use it asks first, so that it is remembered.
    assert _answer(through, search, keys["wide"]).status_code in (200, 503)
    for who in ("none", "wrong", "narrow"):
        expected, answer = (_answer(client, search, keys[who]) for client in (direct, through))
        assert answer.status_code == expected.status_code != 200
        assert not [word for word in HIDDEN if word in answer.text.lower() and word not in expected.text.lower()]


def test_nothing_is_embedded_for_unauthorized_callers(through: httpx.Client, keys: dict[str, str | None]) -> None:
    def embedded() -> str:
        lines = through.get("/metrics").text.splitlines()
        return next(line for line in lines if line.startswith('es_sbert_gateway_vectors_total{source="model"}'))

    _answer(through, Asked("POST", f"/{PUBLIC}/_search", SEMANTIC), keys["narrow"])
    before = embedded()
    for who in ("none", "wrong"):
        for asked in (*_searches(PUBLIC), *_writes(PUBLIC)):
            _answer(through, asked, keys[who])
    text: Json = {"query": {"match": {"semantic": "a text that nobody has searched for"}}}
    for who in ("none", "wrong", "writer"):
        _answer(through, Asked("POST", f"/{PUBLIC}/_search", text), keys[who])
    assert embedded() == before


def test_newly_created_index_is_searched(server: Secured, through: httpx.Client) -> None:
    key = server.api_key(index={f"{PUBLIC}*": ["read"]})
    search = Asked("POST", f"/{PUBLIC}*/_search", {"query": {"match": {"semantic": {"query": "the cat", "k": 9}}}})
    assert {hit["_index"] for hit in _answer(through, search, key).json()["hits"]["hits"]} == {PUBLIC}
    mappings = server.ask("GET", f"/{PUBLIC}")[PUBLIC]["mappings"]
    document = server.ask("GET", f"/{PUBLIC}/_doc/1")["_source"]
    try:
        server.ask("PUT", f"/{PUBLIC}-2", {"mappings": mappings})
        server.ask("PUT", f"/{PUBLIC}-2/_doc/1?refresh=true", document)
        found = {hit["_index"] for hit in _answer(through, search, key).json()["hits"]["hits"]}
    finally:
        server.ask("DELETE", f"/{PUBLIC}-2")
    assert found == {PUBLIC, f"{PUBLIC}-2"}


def test_callers_of_a_gateway_without_credentials_need_view_index_metadata(server: Secured, tiny: Path) -> None:
    nobody = credentials(server, username=None, password=None, api_key=None)
    search = Asked("POST", f"/{PUBLIC}/_search", SEMANTIC)
    plain = Asked("POST", f"/{PUBLIC}/_search", {"query": {"match": {"text": "a semantic cat"}}})
    reader, viewer = (
        server.api_key(index={PUBLIC: privileges}) for privileges in (["read"], ["read", "view_index_metadata"])
    )
    with gateway(nobody, tiny, k=1) as url, patient.client(url) as client:
        for asked, key in ((search, viewer), (plain, reader)):
            assert [hit["_id"] for hit in _answer(client, asked, key).json()["hits"]["hits"]] == ["1"]
        refused = _answer(client, search, reader)
        assert (refused.status_code, "view_index_metadata" in refused.json()["error"]["reason"]) == (403, True)


def test_dead_key_of_the_gateway_is_an_outage(server: Secured, tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = server.api_key(cluster=["monitor"], index={PUBLIC: ["view_index_metadata"]})
    writer = {"authorization": f"ApiKey {server.api_key(index={PUBLIC: ['all']})}"}
    others: Json = {"query": {"bool": {"must_not": [SEMANTIC["query"]]}}}
    requests: list[tuple[str, str, Json]] = [
        ("POST", "_search", SEMANTIC),
        ("POST", "_count", SEMANTIC),
        ("POST", "_delete_by_query", others),
        ("PUT", "_doc/2", DOCUMENT),
        ("POST", "_update/1", {"doc": DOCUMENT}),
    ]
    own = credentials(server, api_key=SecretStr(key))
    with gateway(own, tiny, k=1) as url, patient.client(url, headers=writer) as client:
        assert client.get("/readyz").json()["engine"] == "ok"
        server.ask("DELETE", "/_security/api_key", {"ids": [base64.b64decode(key).decode().partition(":")[0]]})
        for method, path, body in requests:
            answer = client.request(method, f"/{PUBLIC}/{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "es_sbert_credentials_refused"), path
        # What needs no mapping goes on.
        assert client.post(f"/{PUBLIC}/_search", json={"query": {"match": {"text": "cat"}}}).status_code == 200
        assert client.get(f"/{PUBLIC}/_doc/1").json()["_source"]["text"] == DOCUMENT["text"]
        assert client.get(f"/{PUBLIC}/_doc/2").status_code == 404
        ready = client.get("/readyz")
        assert (ready.status_code, "own credentials" in ready.json()["engine"]) == (503, True)
        assert 'es_sbert_gateway_upstream_errors_total{reason="credentials"} 5.0' in client.get("/metrics").text
    assert "refuses the gateway's own credentials" in caplog.text
