"""The units and API keys of `examples/deploy`, run against an engine with security."""

from __future__ import annotations

import json
import ssl
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.conftest import free_port
from tests.e2e.cli_support import Cli
from tests.e2e.systemd_units import ServiceManager, environment_file, wait_for
from tests.e2e.test_privileges import table
from tests.engine.ingest_support import sentences
from tests.engine.secured import PASSWORD, Secured

pytestmark = [pytest.mark.slow, pytest.mark.engine]
DEPLOY = Path(__file__).parents[2] / "examples/deploy"
_TIMEOUT = 120


def key_request(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / f"keys/{name}.json").read_text())
    return found


def create_key(server: Secured, request: dict[str, Any]) -> str:
    # Other tests remove keys by their name.
    request = request | {"name": f"{request['name']}-{uuid.uuid4().hex[:8]}"}
    return str(server.ask("POST", "/_security/api_key?refresh=true", request)["encoded"])


def privileges(request: dict[str, Any]) -> dict[str, list[str]]:
    """Index pattern → privileges."""
    [role] = request["role_descriptors"].values()
    return {name: entry["privileges"] for entry in role["indices"] for name in entry["names"]}


def test_loader_key_has_the_privileges_of_the_table_and_monitor() -> None:
    [role] = key_request("loader")["role_descriptors"].values()
    cluster, index = table()["`ingest` without FILE"]
    # A watch reads the statistics of the index too.
    assert (role["cluster"], privileges(key_request("loader"))) == (cluster, {"docs*": [*index, "monitor"]})


def test_keys_allow_nothing_more_than_the_page_says(secured_es8: Secured) -> None:
    index = f"docs-{uuid.uuid4().hex[:8]}"
    for name in (index, f"other-{index}"):
        secured_es8.ask("PUT", f"/{name}/_doc/1", {"text": "the cat sleeps"})
    keys = {name: create_key(secured_es8, key_request(name)) for name in ("gateway", "loader", "application")}
    more = {"name": "more", "role_descriptors": {"all": {"cluster": ["all"]}}}
    attempts: list[tuple[str, str, object, set[str]]] = [
        ("GET", f"/{index}/_search", None, {"loader", "application"}),
        ("GET", f"/{index}/_mapping", None, {"gateway", "loader"}),
        ("PUT", f"/{index}/_doc/1", {"text": "changed"}, {"loader"}),
        ("GET", f"/{index}/_stats", None, {"loader"}),
        ("DELETE", f"/{index}/_doc/1", None, set()),
        ("DELETE", f"/{index}", None, set()),
        ("PUT", f"/{index}-new", None, set()),
        ("PUT", f"/{index}/_settings", {"index.refresh_interval": "1s"}, set()),
        ("GET", f"/other-{index}/_search", None, set()),
        ("GET", "/_security/user", None, set()),
        ("POST", "/_security/api_key", more, set()),
    ]
    verify = ssl.create_default_context(cafile=secured_es8.ca_certs)
    with httpx.Client(base_url=secured_es8.url, verify=verify, trust_env=False, timeout=_TIMEOUT) as http:
        for method, path, body, allowed in attempts:
            codes = {
                name: http.request(method, path, json=body, headers={"authorization": f"ApiKey {key}"}).status_code
                for name, key in keys.items()
            }
            assert codes == {name: 200 if name in allowed else 403 for name in keys}, (method, path)


def test_several_instances_serve_and_embed_with_keys_of_least_privileges(
    secured_es8: Secured, model: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique = uuid.uuid4().hex[:8]
    # An index whose name systemd would escape, and the usual one, whose name is that of the instance.
    first, second = f"docs-{unique}", f"docs+{unique}"
    ports = [free_port() for _ in range(2)]
    assert {"ES_SBERT_URL", "ES_SBERT_CA_CERTS", "ES_SBERT_MODEL"} <= set(environment_file())
    environment = environment_file() | {
        "ES_SBERT_URL": secured_es8.url,
        "ES_SBERT_CA_CERTS": str(secured_es8.ca_certs),
        "ES_SBERT_MODEL": str(model),
        "ES_SBERT_REGISTRY": str(tmp_path / "models.json"),
    }
    for name in ("ES_SBERT_URL", "ES_SBERT_CA_CERTS"):
        monkeypatch.setenv(name, environment[name])
    # The administrator creates the indices, once.
    with monkeypatch.context() as admin:
        admin.setenv("ES_SBERT_USERNAME", "elastic")
        admin.setenv("ES_SBERT_PASSWORD", PASSWORD)
        for index in (first, second):
            done = cli("index", "create", index, "--text-field", "text", "--model", str(model))
            assert done.code == 0, done.err
    for number, document in enumerate(sentences(6)):
        for index in (first, second):
            secured_es8.ask("PUT", f"/{quote(index)}/_doc/{number}?refresh=true", {"text": document["text"]})
    keys = {name: create_key(secured_es8, key_request(name)) for name in ("gateway", "loader", "application")}
    manager = ServiceManager(tmp_path, environment, keys | {"metrics": "the key"})
    gateways = [f"es-sbert-gateway@{port}" for port in ports]
    watches = [f"es-sbert-watch@{first}", "es-sbert-watch@second"]
    # Settings of single instances.
    for unit, lines in ((gateways[1], "OPTIONS=--hybrid --virtual-field meaning\n"), (watches[1], f"INDEX={second}\n")):
        (tmp_path / f"etc/es-sbert/{unit}.env").write_text(lines)
    embedded = {"query": {"exists": {"field": "embedding"}}}

    def count(index: str) -> int:
        return int(secured_es8.ask("POST", f"/{quote(index)}/_count", embedded)["count"])

    try:
        for unit in (*gateways, *watches):
            manager.start(unit)
        wait_for(lambda: count(first) == count(second) == 6, manager.log)
        caller = {"authorization": f"ApiKey {keys['application']}"}
        with httpx.Client(trust_env=False, timeout=_TIMEOUT, headers=caller) as http:
            for port, field in zip(ports, ("semantic", "meaning"), strict=True):
                url = f"http://127.0.0.1:{port}"
                assert http.get(f"{url}/readyz").status_code == 200
                answer = http.post(f"{url}/{first}/_search", json={"query": {"match": {field: "the cat sleeps"}}})
                assert answer.status_code == 200, answer.text
                assert len(answer.json()["hits"]["hits"]) == 6
                # What the application may not do, it may not do through the gateway, whose key has other privileges.
                assert http.get(f"{url}/{first}/_mapping").status_code == 403
                assert http.put(f"{url}/{first}/_doc/7", json={"text": "no"}).status_code == 403
                assert http.get(f"{url}/metrics").status_code == 401
        # Each watch writes its own dead-letter file.
        files = [tmp_path / f"var/lib/es-sbert/{name}.dead-letters.jsonl" for name in (first, "second")]
        for index in (first, second):
            secured_es8.ask("PUT", f"/{quote(index)}/_doc/odd", {"text": ["a list", 7]})
        for file in files:
            wait_for(file.exists, manager.log)
        # A watch that leaves a document without its vector fails its unit.
        assert [manager.stop(unit) for unit in (*gateways, *watches)] == [0, 0, 1, 1]
    finally:
        manager.kill_all()
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [(letter["index"], letter["id"]) for letter in letters] == [(first, "odd"), (second, "odd")]
    for port in ports:
        [logged] = (tmp_path / f"var/log/es-sbert/searches-{port}.jsonl").read_text().splitlines()
        assert (json.loads(logged)["index"], len(json.loads(logged)["query_hash"])) == (first, 1)
