"""The API keys of `examples/deploy` against an engine with security."""

from __future__ import annotations

import json
import uuid
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
)
from tests.e2e.test_privileges import table
from tests.engine.secured import Secured
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
            QueryTextPolicy.of(queries=False), "here", index=log, flush_seconds=0.05, close_seconds=0.5
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
