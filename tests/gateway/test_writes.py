"""Documents written through the gateway are those that `es-sbert ingest` loads, whoever writes them and how."""

from __future__ import annotations

import gzip
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from elasticsearch import Elasticsearch
from elasticsearch import helpers as elasticsearch_helpers
from opensearchpy import OpenSearch
from opensearchpy import helpers as opensearch_helpers

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour
from es_sbert.gateway.app import create_app
from es_sbert.gateway.settings import GatewaySettings, Limits, Meaning, OnEmbeddingFailure
from es_sbert.index.meta import VectorFieldMeta, text_hash
from es_sbert.index.schema import index_body
from es_sbert.index.vectors import read_vector
from es_sbert.loading import load_encoder
from tests.conftest import delete_index
from tests.engine.ingest_support import contents, load, open_engine, same_vectors, sentences, write_jsonl
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served

# Two vector fields: one of the text, one of passages of a longer text.
FIELDS: dict[str, Any] = {
    "vectors": ("embedding={text}", "parts={title}. {text}"), "passages": ("parts=16",), "id_field": "id",
}  # fmt: skip
JSON = {"content-type": "application/json"}


def documents(count: int) -> list[dict[str, Any]]:
    """Texts of one to many passages; a few documents lack a part of them."""
    made = []
    for number, document in enumerate(sentences(count)):
        title = {} if number % 7 == 3 else {"title": f"a man plays guitar {number} " * (number % 5)}
        made.append(document | title)
    return made


@pytest.fixture(scope="module")
def tiny_encoder(tiny: Path) -> Iterator[Encoder]:
    with load_encoder(str(tiny), precision="fp32", threads=1) as encoder:
        yield encoder


def settings(url: str, tiny: Path, policy: OnEmbeddingFailure = OnEmbeddingFailure.FAIL,
             limits: Limits | None = None) -> GatewaySettings:  # fmt: skip
    return GatewaySettings(upstream=EngineSettings(url=url), models=tiny_settings(tiny), limits=limits or Limits(),
                           meaning=Meaning(on_embedding_failure=policy))  # fmt: skip


@pytest.fixture(scope="module")
def gateway_url(engine_url: str, tiny: Path) -> Iterator[str]:
    # A body limit below what some of the tests' requests become with their vectors.
    with served(create_app(settings(engine_url, tiny, limits=Limits(body_bytes=1 << 20)))) as url:
        yield url


@pytest.fixture
def client(gateway_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway_url, timeout=300, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def loaded(engine_url: str, tiny_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index that `es-sbert ingest` filled with sixty documents."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    folder = tmp_path_factory.mktemp("loaded")
    try:
        load(engine_url, tiny_encoder, name, write_jsonl(folder / "docs.jsonl", documents(60)), dead=folder / "dead",
             **FIELDS)  # fmt: skip
        yield name
    finally:
        delete_index(engine_url, name)


@pytest.fixture
def empty(engine_url: str, loaded: str, index_name: str) -> str:
    """An index like the loaded one, with no document."""
    with open_engine(engine_url) as engine:
        state = engine.get_index(loaded)
        assert state is not None
        knn = {"index.knn": True} if engine.info.flavour is Flavour.OPENSEARCH else {}
        engine.create_index(index_name, {"mappings": state.mappings, "settings": knn})
    return index_name


def make(url: str, index: str, meta: VectorFieldMeta, field: str = "embedding") -> None:
    with open_engine(url) as engine:
        engine.create_index(index, index_body(engine.info.flavour, field, meta))


def of_model(encoder: Encoder, text: str = "{text}", **changes: Any) -> VectorFieldMeta:
    info = encoder.info
    known = {"fingerprint": info.fingerprint, "model": info.model, "dimensions": info.dimensions, "index_type": "hnsw"}
    return VectorFieldMeta(**known | {"text": text} | changes)


def without_vectors(source: dict[str, Any]) -> dict[str, Any]:
    """A document without its vectors, and without when they were made."""
    plain = {key: value for key, value in source.items() if key not in ("_version", "embedding")}
    for field in ("embedding_meta", "parts_meta"):
        if plain.get(field) is not None:
            plain[field] = {key: value for key, value in plain[field].items() if key != "embedded_at"}
    if plain.get("parts") is not None:
        plain["parts"] = [(passage["start"], passage["end"]) for passage in passages(source)]
    return plain


def passages(source: dict[str, Any]) -> list[dict[str, Any]]:
    parts = source.get("parts") or []
    return parts if isinstance(parts, list) else [parts]


def vectors(source: dict[str, Any]) -> Vectors:
    """*Shape:* ``(vectors of the document, dimensions)`` float32."""
    found = [source["embedding"]] if source.get("embedding") is not None else []
    return np.array([read_vector(value) for value in [*found, *(passage["vector"] for passage in passages(source))]])


def assert_as_loaded(url: str, encoder: Encoder, loaded: str, index: str, folder: Path) -> None:
    """The two indices hold the same, and a load of the documents has nothing to do."""
    one, two = contents(url, loaded), contents(url, index)
    assert {key: without_vectors(source) for key, source in two.items()} == {
        key: without_vectors(source) for key, source in one.items()
    }
    for key, source in one.items():
        # Other texts run beside them, which changes the last digit of fp32.
        assert same_vectors(vectors(two[key]), vectors(source))
    summary = load(url, encoder, index, write_jsonl(folder / "docs.jsonl", documents(60)), dead=folder / "dead",
                   **FIELDS)  # fmt: skip
    assert (summary.unchanged, summary.read) == (60, 60)


def bulk_lines(actions: Sequence[tuple[str, dict[str, Any], Any]]) -> bytes:
    lines = [value for name, said, document in actions for value in ({name: said}, document)]
    return b"".join(orjson.dumps(line) + b"\n" for line in lines if line is not None)


def by_helpers(url: str, engine: str, index: str) -> None:
    """The bulk helpers of the official clients."""
    actions = [{"_index": index, "_id": document["id"], "_source": document} for document in documents(60)]
    if engine == "opensearch":
        with OpenSearch(url) as client:
            assert opensearch_helpers.bulk(client, actions, chunk_size=25) == (60, [])
    else:
        with Elasticsearch(url) as client:
            assert elasticsearch_helpers.bulk(client, actions, chunk_size=25) == (60, [])


def as_logstash(url: str, engine: str, index: str) -> None:
    """What the elasticsearch output of Logstash sends: gzip'd lines, results filtered.

    Its source: logstash-plugins/logstash-output-elasticsearch, lib/logstash/outputs/elasticsearch/http_client.rb.
    """
    made = documents(60)
    said = [{"_id": document["id"], "_index": index, "routing": None} for document in made]
    body = bulk_lines([("create" if n % 2 else "index", said[n], made[n]) for n in range(60)])
    headers = {
        "content-type": "application/json", "content-encoding": "gzip", "connection": "Keep-Alive",
        "user-agent": "Logstash/9.0.0", "x-elastic-product-origin": "logstash-output-elasticsearch",
    }  # fmt: skip
    target = f"{url}/_bulk?filter_path=errors,items.*.error,items.*.status"
    answer = httpx.post(target, content=gzip.compress(body), headers=headers, timeout=300, trust_env=False)
    assert answer.json() == {"errors": False, "items": [{"create" if n % 2 else "index": {"status": 201}}
                                                        for n in range(60)]}  # fmt: skip


def by_document_apis(url: str, engine: str, index: str) -> None:
    """One request a document, by every API that writes one."""
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        for number, document in enumerate(documents(60)):
            ways: list[Callable[[], httpx.Response]] = [
                lambda path=f"/{index}/_doc/{document['id']}", body=document: client.put(path, json=body),
                lambda path=f"/{index}/_doc/{document['id']}", body=document: client.post(path, json=body),
                lambda path=f"/{index}/_create/{document['id']}", body=document: client.put(path, json=body),
                lambda path=f"/{index}/_update/{document['id']}", body=document: client.post(
                    path, json={"doc": {"n": 1}, "upsert": body}
                ),
            ]  # fmt: skip
            assert ways[number % 4]().status_code == 201


@pytest.mark.parametrize(
    ("engine_url", "way"),
    [("es9", by_helpers), ("opensearch", by_helpers), ("es8", as_logstash), ("opensearch", as_logstash),
     ("es9", as_logstash), ("es9", by_document_apis), ("es8", by_document_apis), ("opensearch", by_document_apis)],
    indirect=["engine_url"], scope="session",
)  # fmt: skip
def test_written_is_as_loaded(
    way: Callable[[str, str, str], None], request: pytest.FixtureRequest, engine_url: str, gateway_url: str,
    loaded: str, empty: str, tiny_encoder: Encoder, tmp_path: Path,
) -> None:  # fmt: skip
    way(gateway_url, request.node.callspec.params["engine_url"], empty)
    assert_as_loaded(engine_url, tiny_encoder, loaded, empty, tmp_path)


def test_what_is_for_other_indices_or_brings_its_vectors_passes_byte_for_byte(
    engine_url: str, client: httpx.Client, loaded: str, empty: str, fresh_index: Callable[[str], str]
) -> None:
    plain = fresh_index(engine_url)
    source = b'{ "text" : "a cat", "n":1.0000000000000000001,"u":"\\u00e9" }'
    lines = b'{"index":{"_index":"%s","_id":"1"}}\n%s\n' % (plain.encode(), source)
    assert client.post("/_bulk", content=lines, headers=JSON).json()["errors"] is False
    assert source in client.get(f"/{plain}/_doc/1").content
    # In a request beside documents that do get vectors, too.
    lines += bulk_lines([("index", {"_index": empty, "_id": "2"}, {"text": "a man"})])
    assert client.post("/_bulk", content=lines, headers=JSON).json()["errors"] is False
    assert source in client.get(f"/{plain}/_doc/1").content
    [copied] = list(contents(engine_url, loaded).items())[:1]
    own = {key: value for key, value in copied[1].items() if key != "_version"}
    assert client.put(f"/{empty}/_doc/3", json=own).status_code == 201
    assert client.put(f"/{empty}/_doc/4", json={"text": "a cat"}, headers={"x-es-sbert": "off"}).status_code == 201
    assert client.put(f"/{empty}/_doc/5", json={"n": 1}).status_code == 201
    held = contents(engine_url, empty)
    assert {key: value for key, value in held["3"].items() if key != "_version"} == own
    assert held["2"]["embedding_meta"]["text_hash"] == text_hash("a man")
    assert held["4"] == {"text": "a cat", "_version": 1}
    assert held["5"] == {"n": 1, "_version": 1}


def test_updates_keep_text_and_vectors_together(
    engine_url: str, client: httpx.Client, empty: str, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    def update(document: str, body: dict[str, Any], **params: Any) -> int:
        return client.post(f"/{empty}/_update/{document}", json=body, params=params).status_code

    for document in ("1", "2", "3"):
        body = {"title": "a man", "text": "plays guitar", "n": 1}
        assert client.put(f"/{empty}/_doc/{document}", json=body, params={"routing": "r"}).status_code == 201
    before = contents(engine_url, empty)
    assert update("1", {"doc": {"n": 2}}, routing="r") == 200
    assert update("2", {"doc": {"title": "the cat"}}, routing="r") == 200
    assert update("3", {"doc": {"title": None, "text": ""}}, routing="r") == 200
    assert update("4", {"doc": {"title": "a mat"}}) == 404
    assert update("4", {"doc": {"title": "a mat"}, "doc_as_upsert": True}) == 201
    lines = bulk_lines([
        ("index", {"_id": "5"}, {"title": "a", "text": "a"}),
        ("update", {"_id": "5"}, {"doc": {"text": "cat"}}),
        ("update", {"_id": "2", "routing": "r"}, {"doc": {"text": "sleeps"}}),
        ("delete", {"_id": "4"}, None),
    ])  # fmt: skip
    assert client.post(f"/{empty}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    held = contents(engine_url, empty)
    assert held["1"] == before["1"] | {"n": 2, "_version": 2}
    assert set(held) == {"1", "2", "3", "5"}
    for document, title, text in (("2", "the cat", "sleeps"), ("5", "a", "cat")):
        assert_vector(held[document], tiny_encoder, text)
        assert held[document]["parts_meta"]["text_hash"] == text_hash(f"{title}. {text}")
    assert held["3"].get("embedding") is None
    assert held["3"]["embedding_meta"] is None
    # Nothing is left to do for a load that embeds what lacks a current vector.
    summary = load(engine_url, tiny_encoder, empty, dead=tmp_path / "dead")
    assert (summary.read, summary.indexed, summary.dead) == (4, 0, 0)


def assert_vector(source: dict[str, Any], encoder: Encoder, text: str) -> None:
    assert source["text"] == text
    assert source["embedding_meta"]["text_hash"] == text_hash(text)
    expected = encoder.encode([text], "document").vectors[0]
    np.testing.assert_allclose(read_vector(source["embedding"]), expected, rtol=0, atol=1e-6)


def test_text_and_vector_agree_whoever_writes_at_the_same_time(
    engine_url: str, client: httpx.Client, empty: str, tiny_encoder: Encoder
) -> None:
    start = threading.Barrier(8)

    def write(writer: int) -> None:
        start.wait(60)
        for number in range(12):
            text = f"{'a man plays guitar' if writer % 2 else 'the cat sleeps'} {writer} {number}"
            path = f"/{empty}/_doc/{number % 3}" if number % 2 else f"/{empty}/_update/{number % 3}"
            body = {"text": text} if number % 2 else {"doc": {"text": text}, "doc_as_upsert": True}
            answer = client.post(path, json=body, params={} if number % 2 else {"retry_on_conflict": 50})
            assert answer.status_code in (200, 201), answer.text

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(write, range(8)))
    held = contents(engine_url, empty)
    assert set(held) == {"0", "1", "2"}
    for source in held.values():
        assert_vector(source, tiny_encoder, source["text"])


def test_five_thousand_documents_in_one_request(
    engine_url: str, client: httpx.Client, index_name: str, tiny_encoder: Encoder, tmp_path: Path
) -> None:
    make(engine_url, index_name, of_model(tiny_encoder, index_type="flat"))
    made = [{"id": f"d{number}", "text": f"a man plays guitar {number}"} for number in range(5000)]
    lines = bulk_lines([("index", {"_id": document["id"]}, document) for document in made])
    assert len(lines) < 1 << 20, "with vectors it is larger than the limit: it goes in parts"
    answer = client.post(f"/{index_name}/_bulk", content=lines, headers=JSON).json()
    assert answer["errors"] is False
    assert [item["index"]["_id"] for item in answer["items"]] == [document["id"] for document in made]
    file = write_jsonl(tmp_path / "docs.jsonl", made)
    summary = load(engine_url, tiny_encoder, index_name, file, dead=tmp_path / "dead", id_field="id")
    assert (summary.read, summary.unchanged) == (5000, 5000)


@pytest.fixture
def unknown(engine_url: str, tiny_encoder: Encoder, fresh_index: Callable[[str], str]) -> str:
    """An index whose model the gateway does not have."""
    name = fresh_index(engine_url)
    make(engine_url, name, of_model(tiny_encoder, fingerprint="0" * 32, model="no-such-model"))
    return name


def test_what_cannot_be_embedded_is_refused_by_item_for_the_client_to_send_again(
    engine_url: str, client: httpx.Client, empty: str, unknown: str
) -> None:
    lines = bulk_lines([
        ("index", {"_index": empty, "_id": "1"}, {"text": "a cat"}),
        ("index", {"_index": unknown, "_id": "1"}, {"text": "a cat"}),
        ("create", {"_index": unknown}, {"text": "a cat"}),
        ("index", {"_index": unknown, "_id": "2"}, {"n": 1}),
        ("delete", {"_index": unknown, "_id": "2"}, None),
        ("index", {"_index": empty, "_id": "2"}, {"text": "a cat", "n": {}, "parts": "wrong"}),
        ("update", {"_index": unknown, "_id": "2"}, {"doc": {"text": "a"}, "doc_as_upsert": True}),
    ])  # fmt: skip
    asked: list[dict[str, str]] = [{}, {"filter_path": "errors,items.*.error,items.*.status"}, {"format": "yaml"}]
    for params in asked:
        answer = client.post("/_bulk", content=lines, headers=JSON, params=params).json()
        assert answer["errors"] is True
        results = [next(iter(item.items())) for item in answer["items"]]
        assert [name for name, _ in results] == ["index", "index", "create", "index", "delete", "index", "update"]
        statuses = [result["status"] for _, result in results]
        assert statuses in ([201, 503, 503, 201, 200, 400, 503], [200, 503, 503, 201, 200, 400, 503])
        assert results[1][1]["error"]["type"] == "es_sbert_model_unavailable"
        assert "Start the gateway with" in results[1][1]["error"]["reason"]
    assert contents(engine_url, unknown) == {}
    assert set(contents(engine_url, empty)) == {"1"}
    only = bulk_lines([("index", {"_index": unknown, "_id": "1"}, {"text": "a cat"})])
    answer = client.post("/_bulk", content=only, headers=JSON)
    assert (answer.status_code, answer.json()["errors"]) == (200, True)
    answer = client.put(f"/{unknown}/_doc/1", json={"text": "a cat"})
    assert (answer.status_code, answer.json()["status"]) == (503, 503)
    assert contents(engine_url, unknown) == {}


def test_what_cannot_be_embedded_passes_without_vectors_where_the_operator_wants_that(
    engine_url: str, unknown: str, tiny: Path, tiny_encoder: Encoder
) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(served(create_app(settings(engine_url, tiny, OnEmbeddingFailure.PASS))))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=300, trust_env=False))
        vector = tiny_encoder.encode(["a dog"], "document").vectors[0].tolist()
        assert client.put(f"/{unknown}/_doc/1", json={"text": "a cat", "embedding": vector}).status_code == 201
        assert client.put(f"/{unknown}/_doc/2", json={"text": "a cat"}).status_code == 201
        lines = bulk_lines([("update", {"_id": "1"}, {"doc": {"text": "a mat"}})])
        assert client.post(f"/{unknown}/_bulk", content=lines, headers=JSON).json()["errors"] is False
        held = contents(engine_url, unknown)
        assert held["1"].get("embedding") is None, "it stood for another text"
        assert held["2"] == {"text": "a cat", "_version": 1}
        metrics = client.get("/metrics").text
        assert 'es_sbert_gateway_documents_total{outcome="without"} 2.0' in metrics
        with open_engine(engine_url) as engine:
            state = engine.get_index(unknown)
            assert state is not None
        damaged = {"_meta": {"es_sbert": {"fields": {"embedding": {"model": 1}}}}}
        httpx.put(f"{engine_url}/{unknown}/_mapping", json=damaged, trust_env=False).raise_for_status()
        assert client.put(f"/{unknown}/_doc/3", json={"text": "a cat"}).status_code == 201


@pytest.mark.parametrize(
    "body",
    [b"", b"{}\n", b'{"index":{}}\n{"text":"a"}', b'{"index":{}}\n', b'{"index":{}}\n{"text":"a"}\n{"text"\n{}\n',
     b'{"bogus":{}}\n{"text":"a"}\n', b"\xff\xfe\n\n"],
)  # fmt: skip
def test_a_request_that_is_none_gets_the_engines_own_answer(
    engine_url: str, client: httpx.Client, empty: str, body: bytes
) -> None:
    direct = httpx.post(f"{engine_url}/{empty}/_bulk", content=body, headers=JSON, timeout=300, trust_env=False)
    through = client.post(f"/{empty}/_bulk", content=body, headers=JSON)
    assert through.status_code == direct.status_code == 400
    assert through.json() == direct.json()


def test_documents_that_are_none_are_the_engines_to_refuse(client: httpx.Client, empty: str) -> None:
    lines = (
        b'{"index":{"_id":"1"}}\n{"text":"a cat"}\n{"index":{"_id":"2"}}\n{"text":"a\n{"index":{"_id":"3"}}\n[]\n'
        b'{"index":{"_id":"4"}}\n{"text":"a","text":"b"}\n{"update":{"_id":"1"}}\n{"doc":7}\n'
        b'{"index":{"_id":"5"}}\n{"text":"a cat"}\n'
    )
    answer = client.post(f"/{empty}/_bulk", content=lines, headers=JSON)
    if answer.status_code == 200:
        statuses = [next(iter(item.values()))["status"] for item in answer.json()["items"]]
        assert (statuses[0], statuses[-1]) == (201, 201)
        assert statuses[1:5] == [400] * 4
    else:
        assert answer.json()["status"] == 400
    assert client.put(f"/{empty}/_doc/6", content=b'{"text":', headers=JSON).status_code == 400


def test_aliases_go_by_the_index_that_takes_the_writes(
    engine_url: str, client: httpx.Client, empty: str, fresh_index: Callable[[str], str], tiny_encoder: Encoder
) -> None:
    other, alias = fresh_index(engine_url), f"alias-{uuid.uuid4().hex[:12]}"

    def point(**write: bool) -> None:
        actions = [{"add": {"index": index, "alias": alias, "is_write_index": index == empty if write["to_empty"]
                            else index == other}} for index in (other, empty)]  # fmt: skip
        client.post("/_aliases", json={"actions": actions}).raise_for_status()

    client.put(f"/{other}", json={"mappings": {"properties": {"text": {"type": "text"}}}}).raise_for_status()
    point(to_empty=True)
    assert client.put(f"/{alias}/_doc/1", json={"text": "a cat"}).status_code == 201
    lines = bulk_lines([("update", {"_id": "1"}, {"doc": {"title": "a mat"}})])
    assert client.post(f"/{alias}/_bulk", content=lines, headers=JSON).json()["errors"] is False
    held = contents(engine_url, empty)["1"]
    assert_vector(held, tiny_encoder, "a cat")
    assert held["parts_meta"]["text_hash"] == text_hash("a mat. a cat")
    point(to_empty=False)
    assert client.put(f"/{alias}/_doc/2", json={"text": "a cat"}).status_code == 201
    assert contents(engine_url, other)["2"] == {"text": "a cat", "_version": 1}


def test_an_index_that_a_template_makes_has_vectors_from_its_first_document(
    engine_url: str, client: httpx.Client, index_name: str, tiny_encoder: Encoder
) -> None:
    with open_engine(engine_url) as engine:
        template = index_body(engine.info.flavour, "embedding", of_model(tiny_encoder))
    client.put(f"/_index_template/{index_name}", json={"index_patterns": [index_name], "template": template,
                                                       "priority": 500}).raise_for_status()  # fmt: skip
    try:
        assert client.post(f"/{index_name}/_doc", json={"text": "a cat"}).status_code == 201
        assert client.put(f"/{index_name}/_doc/2", json={"text": "the mat"}).status_code == 201
        for source in contents(engine_url, index_name).values():
            assert_vector(source, tiny_encoder, source["text"])
    finally:
        client.delete(f"/_index_template/{index_name}").raise_for_status()


# The build of Elasticsearch at hand makes data streams and has no API to delete them again.
@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
def test_a_data_stream_goes_by_its_newest_index(engine_url: str, client: httpx.Client, tiny_encoder: Encoder) -> None:
    stream = f"test-{uuid.uuid4().hex[:12]}"

    def template(model: str | None) -> dict[str, Any]:
        plain: dict[str, Any] = {"mappings": {"properties": {"text": {"type": "text"}}}}
        body = plain if model is None else index_body(Flavour.OPENSEARCH, "embedding", of_model(tiny_encoder))
        return {"index_patterns": [stream], "data_stream": {}, "template": body, "priority": 500}

    def write(text: str) -> dict[str, Any]:
        lines = bulk_lines([("create", {"_index": stream}, {"@timestamp": "2026-01-31T12:00:00Z", "text": text})])
        answer = client.post("/_bulk?refresh=true", content=lines, headers=JSON).json()
        assert answer["errors"] is False
        place = answer["items"][0]["create"]
        source: dict[str, Any] = client.get(f"/{place['_index']}/_doc/{place['_id']}").json()["_source"]
        return source

    try:
        client.put(f"/_index_template/{stream}", json=template("tiny")).raise_for_status()
        assert_vector(write("a cat"), tiny_encoder, "a cat")
        assert_vector(write("the mat"), tiny_encoder, "the mat")
        client.put(f"/_index_template/{stream}", json=template(None)).raise_for_status()
        client.post(f"/{stream}/_rollover").raise_for_status()
        assert set(write("a cat")) == {"@timestamp", "text"}, "older indices have vectors, the newest has none"
    finally:
        client.delete(f"/_data_stream/{stream}").raise_for_status()
        client.delete(f"/_index_template/{stream}").raise_for_status()


def test_an_index_that_is_made_anew_is_noticed_at_once(
    engine_url: str, client: httpx.Client, index_name: str, tiny_encoder: Encoder
) -> None:
    with open_engine(engine_url) as engine:
        body = index_body(engine.info.flavour, "embedding", of_model(tiny_encoder))
    assert client.put(f"/{index_name}/_doc/1", json={"text": "a cat"}).status_code == 201
    client.delete(f"/{index_name}").raise_for_status()
    client.put(f"/{index_name}", json=body).raise_for_status()
    assert client.put(f"/{index_name}/_doc/1", json={"text": "a cat"}).status_code == 201
    assert_vector(contents(engine_url, index_name)["1"], tiny_encoder, "a cat")
