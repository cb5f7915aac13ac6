"""The units and API keys of `examples/deploy`, run as they are against an engine with security."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.gateway.server import create_server
from es_sbert.gateway.settings import (
    GatewaySettings,
    ModelSettings,
    QueryTextPolicy,
    SearchLogSettings,
    monthly_index,
)
from tests.conftest import free_port
from tests.e2e.cli_support import Cli
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


@contextmanager
def started(unit: str, instance: str, folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a unit's command as systemd would start it: specifiers replaced, with its credentials and environment."""
    text = (DEPLOY / "systemd" / unit).read_text()
    [command] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    for name, value in re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE):
        command = command.replace(f"${{{name}}}", value)
    words = shlex.split(command.replace("%i", instance).replace("%d", str(folder)))
    assert words[0] == "/opt/es-sbert/bin/es-sbert"
    with (folder / f"{unit}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "es_sbert.cli.main", *words[1:]],
            cwd=folder,
            env=os.environ | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], what: str, *logs: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, what + "".join(log.read_text() for log in logs)
        time.sleep(0.1)


def test_units_serve_and_embed_with_keys_of_least_privileges(
    secured_es8: Secured, model: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, port = f"docs-{uuid.uuid4().hex[:8]}", free_port()
    month = monthly_index("es-sbert-searches", datetime.now(UTC))
    variables = dict(line.split("=", 1) for line in (DEPLOY / "systemd/es-sbert.env").read_text().splitlines()
                     if line and not line.startswith("#"))  # fmt: skip
    assert {"ES_SBERT_URL", "ES_SBERT_CA_CERTS", "ES_SBERT_MODEL"} <= set(variables)
    environment = variables | {
        "ES_SBERT_URL": secured_es8.url,
        "ES_SBERT_CA_CERTS": str(secured_es8.ca_certs),
        "ES_SBERT_MODEL": str(model),
    }
    for name in ("ES_SBERT_URL", "ES_SBERT_CA_CERTS"):
        monkeypatch.setenv(name, environment[name])
    # The administrator creates the index, once.
    with monkeypatch.context() as admin:
        admin.setenv("ES_SBERT_USERNAME", "elastic")
        admin.setenv("ES_SBERT_PASSWORD", PASSWORD)
        done = cli("index", "create", index, "--text-field", "text", "--model", str(model))
        assert done.code == 0, done.err
    for number, document in enumerate(sentences(6)):
        secured_es8.ask("PUT", f"/{index}/_doc/{number}?refresh=true", {"text": document["text"]})
    keys = {name: create_key(secured_es8, key_request(name)) for name in ("gateway", "loader", "application")}
    gateway_folder, watch_folder = tmp_path / "gateway", tmp_path / "watch"
    for folder, key in ((gateway_folder, "gateway"), (watch_folder, "loader")):
        folder.mkdir()
        (folder / "api-key").write_text(keys[key])
    (gateway_folder / "metrics-key").write_text("the key of metrics")
    (gateway_folder / "search-log-key").write_text("0123456789abcdef")
    caller = {"authorization": f"ApiKey {keys['application']}"}
    gateway_log = gateway_folder / "es-sbert-gateway@.service.log"
    watch_log = watch_folder / "es-sbert-watch@.service.log"
    with (
        started("es-sbert-gateway@.service", str(port), gateway_folder, environment) as gateway,
        started("es-sbert-watch@.service", index, watch_folder, environment) as watch,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=_TIMEOUT, headers=caller) as http,
    ):

        def is_ready() -> bool:
            try:
                return http.get("/readyz").status_code == 200
            except httpx.ConnectError:
                return False

        embedded = {"query": {"exists": {"field": "embedding"}}}
        wait_for(is_ready, "the gateway is not ready\n", gateway_log)
        wait_for(
            lambda: secured_es8.ask("POST", f"/{index}/_count", embedded)["count"] == 6, "not embedded\n", watch_log
        )
        answer = http.post(f"/{index}/_search", json=QUERY)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["hits"]["hits"]) == 6
        # What the application may not do, it may not do through the gateway, whose key has other privileges.
        assert http.get(f"/{index}/_mapping").status_code == 403
        assert http.put(f"/{index}/_doc/7", json={"text": "no"}).status_code == 403
        assert http.get("/metrics").status_code == 401
        for process in (gateway, watch):
            process.send_signal(signal.SIGTERM)
        wait_for(lambda: gateway.poll() is not None, "the gateway does not end\n", gateway_log)
        assert gateway.returncode == 0, gateway_log.read_text()
        wait_for(lambda: watch.poll() is not None, "the watch does not end\n", watch_log)
        assert watch.returncode == 0, watch_log.read_text()  # every document has its vector
    logged = secured_es8.ask("POST", f"/{month}/_search?q=index:{index}")
    assert "query_hash" in logged["hits"]["hits"][0]["_source"]


@pytest.mark.parametrize(
    ("pattern", "lacking"), [(pattern, name) for pattern, names in privileges(key_request("gateway")).items()
                             for name in names])  # fmt: skip
def test_every_privilege_of_the_gateway_key_is_necessary(
    secured_es8: Secured, model: Path, pattern: str, lacking: str
) -> None:
    unique = uuid.uuid4().hex[:8]
    index, log = f"docs-{unique}", f"es-sbert-searches-{unique}"
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
        search_log=SearchLogSettings(
            QueryTextPolicy.from_options(queries=False), "here", index=log, flush_seconds=0.05, close_seconds=0.5
        ),
    )
    with running(create_server(settings)) as url:
        answer = httpx.post(f"{url}/{index}/_search", json=QUERY, headers=caller, trust_env=False, timeout=_TIMEOUT)
    if pattern == "docs*":
        assert answer.status_code == 403
        assert "view_index_metadata" in answer.text
    else:
        found = secured_es8.ask("POST", f"/{log}-*/_count?ignore_unavailable=true")
        assert found["count"] == 0
