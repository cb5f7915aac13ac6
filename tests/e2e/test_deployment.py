"""The units and API keys of `examples/deploy`, run against an engine with security."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.gateway.server import create_server
from es_sbert.gateway.settings import (
    GatewaySettings,
    ModelSettings,
)
from tests.conftest import free_port
from tests.e2e.cli_support import Cli
from tests.e2e.systemd_units import environment_file, install_units, wait_for
from tests.e2e.test_privileges import table
from tests.engine.ingest_support import sentences
from tests.engine.secured import PASSWORD, Secured
from tests.gateway.serving import running

pytestmark = [pytest.mark.slow, pytest.mark.engine]
DEPLOY = Path(__file__).parents[2] / "examples/deploy"
_TIMEOUT = 120
QUERY = {"query": {"match": {"semantic": "the cat sleeps"}}}


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
    manager = install_units(tmp_path, environment, keys | {"metrics": "the key"})
    gateways = [f"es-sbert-gateway@{port}" for port in ports]
    watches = [f"es-sbert-watch@{first}", "es-sbert-watch@second"]
    # Settings of single instances.
    for unit, lines in (
        (gateways[1], "OPTIONS=--hybrid --virtual-field meaning\n"),
        (watches[1], f"INDEX={second}\n"),
    ):
        (tmp_path / f"etc/es-sbert/{unit}.env").write_text(lines)
    embedded = {"query": {"exists": {"field": "embedding"}}}

    def count(index: str) -> int:
        return int(secured_es8.ask("POST", f"/{quote(index)}/_count", embedded)["count"])

    try:
        manager.systemctl("enable", "--now", *gateways, *watches)
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
        manager.systemctl("disable", "--now", *gateways, *watches)
    finally:
        manager.kill_all()
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [(letter["index"], letter["id"]) for letter in letters] == [(first, "odd"), (second, "odd")]
    # A watch that leaves a document without its vector fails its unit.
    assert manager.exit_codes == {unit: [0] for unit in gateways} | {unit: [1] for unit in watches}
    for port in ports:
        [logged] = (tmp_path / f"var/log/es-sbert/searches-{port}.jsonl").read_text().splitlines()
        assert (json.loads(logged)["index"], len(json.loads(logged)["query_hash"])) == (first, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "lacking"), [(pattern, name) for pattern, names in privileges(key_request("gateway")).items()
                             for name in names])  # fmt: skip
def test_every_privilege_of_the_gateway_key_is_necessary(
    secured_es8: Secured, model: Path, pattern: str, lacking: str
) -> None:
    unique = uuid.uuid4().hex[:8]
    index = f"docs-{unique}"
    secured_es8.ask("PUT", f"/{index}/_doc/1?refresh=true", {"text": "the cat sleeps"})
    request = key_request("gateway")
    [role] = request["role_descriptors"].values()
    for entry in role["indices"]:
        if pattern in entry["names"]:
            entry["privileges"].remove(lacking)
    role["indices"] = [entry for entry in role["indices"] if entry["privileges"]]
    caller = {"authorization": f"ApiKey {create_key(secured_es8, key_request('application'))}"}
    own = EngineSettings(
        url=secured_es8.url, ca_certs=secured_es8.ca_certs, api_key=SecretStr(create_key(secured_es8, request))
    )
    settings = GatewaySettings(
        upstream=own,
        models=ModelSettings(models=(str(model),), precision="fp32", threads=1),
    )
    with running(create_server(settings)) as url:
        answer = httpx.post(f"{url}/{index}/_search", json=QUERY, headers=caller, trust_env=False, timeout=_TIMEOUT)
    assert answer.status_code == 403
    assert "view_index_metadata" in answer.text
