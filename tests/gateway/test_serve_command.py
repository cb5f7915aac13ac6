"""`es-sbert serve` as its operator types it: models and the key of its own API."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pytest

from es_sbert.cli.main import main
from es_sbert.encoder.encoder import Encoder
from tests.engine.vectors import field_of
from tests.gateway import patient
from tests.gateway.echo import Echo, Received, Reply, whole
from tests.gateway.running import serve
from tests.gateway.serving import gateway
from tests.programs import server
from tests.tiny import write_tiny_bert

pytestmark = pytest.mark.slow
NOBODY = "http://127.0.0.1:9"  # the port of `discard`: nothing listens there


def test_serve_models_and_key_without_engine(tiny: Path, tmp_path: Path) -> None:
    other = write_tiny_bert(tmp_path / "other", seed=1)
    (tmp_path / "key").write_text("the right key\n")
    (tmp_path / "metrics-key").write_text("the key of metrics\n")
    options = ["--model", str(tiny), "--also-model", str(other),
               "--precision", "fp32", "--embeddings-key-file", str(tmp_path / "key"),
               "--metrics-key-file", str(tmp_path / "metrics-key"), "--log-format", "json",
               "--max-connections-per-client", "40"]  # fmt: skip
    with serve(NOBODY, tmp_path, *options) as url, patient.client(url) as http:
        assert http.get("/v1/models").status_code == 401
        http.headers["authorization"] = "Bearer the right key"
        assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["tiny", "other"]
        answer = http.post("/v1/embeddings", json={"input": "cat", "model": "other"})
        assert answer.status_code == 200, answer.text
        first = http.post("/v1/embeddings", json={"input": "cat"})
        assert first.json()["data"] != answer.json()["data"]
        assert http.get("/healthz").status_code == 200
        ready = http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["model"] == "ok"
        assert ready.json()["engine"] != "ok"
        assert http.get("/metrics").status_code == 401
        shown = http.get("/metrics", headers={"authorization": "Bearer the key of metrics"}).text
        assert 'model="other"' in shown
        assert str(tmp_path) not in shown
    log = (tmp_path / "gateway.log").read_text()
    assert "the right key" not in log
    assert "the key of metrics" not in log
    serving = orjson.loads(log.splitlines()[0])
    assert (serving["event"], serving["address"]) == ("serving", url)
    assert serving["modes"]["embeddings API"] == "/v1/embeddings of tiny, other (with a key)"
    assert serving["modes"]["metrics, health"] == "/metrics (with a key), /healthz, /readyz"
    assert "Traceback" not in log


def test_log_names_the_engine_without_the_password_of_its_address(tiny: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "es_sbert.cli.main", "serve", "--port", "0", "--model", str(tiny)]
    environment = {"ES_SBERT_URL": "http://anna:hunter2@127.0.0.1:9,http://127.0.0.1:10"}
    log = tmp_path / "gateway.log"
    with server([*command, "--hybrid"], folder=tmp_path, environment=environment, log=log) as url:
        pass
    shown = log.read_text().splitlines()
    assert shown[0].startswith(f"{url} passes requests on to ")
    assert "  hybrid search     match queries of embedded texts" in shown
    assert "passes requests on to http://127.0.0.1:9,http://127.0.0.1:10." in log.read_text()
    assert "hunter2" not in log.read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tls-certificate", "missing"], "the TLS certificate missing or its key cannot be used"),
        (["--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
    ],
)
def test_address_and_certificate_that_cannot_be_used_exit_2(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--upstream", NOBODY, *options])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def opensearch(tiny_encoder: Encoder, root: Any) -> Reply:
    """An OpenSearch with the index `docs`, which has vectors, and this answer to `GET /`."""
    meta = field_of(tiny_encoder.info, "{title}").model_dump(mode="json")
    method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
    vector = {"dimension": tiny_encoder.info.dimensions, "compression_level": "1x", "method": method}
    mapping = {"_meta": {"es_sbert": {"fields": {"embedding": meta}}}, "properties": {"embedding": vector}}
    docs = {"mappings": mapping, "settings": {"index": {"knn": "true"}}}
    answers = {b"/": root, b"/docs?": {"docs": docs}, b"/docs/_field_caps?": {"indices": ["docs"]}}

    def reply(got: Received, out: BinaryIO) -> bool:
        path, mark, _ = got.target.partition(b"?")
        body = orjson.dumps(answers.get(path + mark, {"hits": {"hits": []}}))
        return bool(out.write(whole(body).replace(b"X-elastic-product: Elasticsearch\r\n", b"")))

    return reply


OLD = {"version": {"number": "2.18.0", "distribution": "opensearch"}}


def test_engine_that_is_too_old_is_refused_at_the_start(
    tiny_encoder: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    with Echo(opensearch(tiny_encoder, OLD)) as engine, pytest.raises(SystemExit) as ended:
        main(["serve", "--port", "0", "--upstream", engine.url])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"OpenSearch 2.18.0 at {engine.url} is too old" in told
    assert "OpenSearch 2.19.0 or newer" in told


def test_semantic_requests_are_refused_once_an_engine_turns_out_too_old(tiny: Path, tiny_encoder: Encoder) -> None:
    """As one that was not running when the gateway started."""
    semantic = {"query": {"match": {"semantic": "cats"}}}
    with Echo(opensearch(tiny_encoder, OLD)) as engine, gateway(engine.url, tiny) as url, patient.client(url) as http:
        for path, body in (("_search", semantic), ("_doc", {"title": "cats"})):
            answer = http.post(f"/docs/{path}", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (501, "es_sbert_engine_too_old")
            assert "the engine behind the gateway is OpenSearch 2.18.0" in error["reason"]
            assert engine.url not in error["reason"]
        assert http.post("/docs/_search", json={"query": {"match": {"title": "cats"}}}).status_code == 200
        assert http.post("/docs/_doc", json={"title": "cats"}, headers={"x-es-sbert": "off"}).status_code == 200
