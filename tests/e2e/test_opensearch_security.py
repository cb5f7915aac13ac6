"""The commands and the gateway on OpenSearch with security, as users with the documented permissions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from tests.e2e.cli_support import Cli
from tests.e2e.test_privileges import OPERATIONS, TASKS, Desk, behind_an_alias, table, with_vectors
from tests.engine.secured import PASSWORD
from tests.engine.secured_opensearch import SecuredOpenSearch
from tests.gateway import serving

USER = "anna"
_ROW = re.compile(r"^\| (?P<scope>cluster|index) \| (?P<privilege>[a-z_]+) \| (?P<permissions>`.+`) \|$", re.MULTILINE)


def permissions() -> dict[tuple[str, str], list[str]]:
    """Scope and privilege of Elasticsearch → the permissions of OpenSearch, as the page has them."""
    text = OPERATIONS.read_text().partition("## Privileges")[2].partition("\n## ")[0]
    return {
        (match["scope"], match["privilege"]): re.findall("`([^`]+)`", match["permissions"])
        for match in _ROW.finditer(text)
    }


class OpenSearchDesk(Desk):
    """The command line as one user, whose role is changed."""

    server: SecuredOpenSearch  # type: ignore[assignment]

    def use(self, cluster: Sequence[str], index: Sequence[str]) -> None:
        """Grant the user the permissions that correspond to these privileges of Elasticsearch."""
        if "all" in index:
            self.allow(["*"], ["*"])
            return
        known = permissions()
        reads = not {"index", "delete", "manage"} & {*index}
        composite = "cluster_composite_ops_ro" if reads else "cluster_composite_ops"
        self.allow(
            [composite, *(each for name in cluster for each in known["cluster", name])],
            [each for name in index for each in known["index", name]],
        )

    def allow(self, cluster: Sequence[str], index: Sequence[str], **limits: Any) -> None:
        self.server.set_user(USER, cluster, {"docs*": index}, **limits)
        self._patch.setenv("ES_SBERT_USERNAME", USER)
        self._patch.setenv("ES_SBERT_PASSWORD", PASSWORD)

    def admin(self) -> closing[Engine]:
        return closing(connect(self.settings(username="admin", password=SecretStr(PASSWORD), api_key=None)))

    def sources(self, index: str) -> dict[str, Any]:
        """Id → `_source` of all documents, as they are stored."""
        found = self.server.ask("POST", f"/{index}/_search", {"size": 100})["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in found}


@pytest.fixture
def desk(
    secured_opensearch: SecuredOpenSearch, cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> OpenSearchDesk:
    return OpenSearchDesk(secured_opensearch, cli, model, monkeypatch)  # type: ignore[arg-type]


def with_knn_vectors(desk: Desk) -> str:
    method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
    field = {"type": "knn_vector", "dimension": 16, "method": method}
    return with_vectors(desk, {"settings": {"index.knn": True}, "mappings": {"properties": {"embedding": field}}})


RUN = {
    task: TASKS[task]
    for task in (
        "`search`", "`index show`", "`doctor --index`", "`pairs --index`, `duplicates --index`, `cluster --index`",
        "`duplicates --write-field`, `cluster --write-field`",
        "`ingest FILE…` into a new index", "`ingest FILE…` into an index with the vector field",
        "`ingest` without FILE", "`ingest --prune`", "`index create`",
        "`index calibrate --save`", "`index migrate`",
    )
} | {"`index adopt`": (with_knn_vectors, TASKS["`index adopt`"][1])}  # fmt: skip


def test_listed_permissions_are_sufficient(desk: OpenSearchDesk) -> None:
    for task, (prepare, command) in RUN.items():
        name = prepare(desk)
        desk.use(*table()[task])
        done = command(desk, name)
        assert done.code == 0, (task, done.err)


def test_refused_permissions_are_named_with_their_list(desk: OpenSearchDesk) -> None:
    cluster = ["cluster_monitor", "cluster_composite_ops"]
    index = ["read", "indices:admin/get", "indices:admin/refresh*"]
    search = ["indices:data/read/search", "indices:data/read/point_in_time/*"]
    name = desk.loaded()
    desk.server.ask("PUT", f"/{name}/_doc/new?refresh=true", {"text": "the cat sleeps"})
    before = desk.sources(name)
    for in_cluster, in_index, missing in [
        (cluster[:1], [*index, "index"], "cluster permission indices:data/read/mget,"),
        ([cluster[0], "cluster_composite_ops_ro"], [*index, "index"], "cluster permission indices:data/write/bulk,"),
        (cluster, index, "index permissions indices:data/write/bulk[s], indices:data/write/update,"),
        (cluster, [*index[:2], "index"], "index permission indices:admin/refresh,"),
        (cluster, [*search, *index[1:], "index"], "index permission indices:data/read/mget[shard],"),
        ([], index, "cluster permission cluster:monitor/main,"),
    ]:
        desk.allow(in_cluster, in_index)
        done = desk.ingest(name)
        assert done.code != 0
        assert f"Give one of the user's roles the {missing} or an action group that includes" in done.err
        assert PASSWORD not in done.out + done.err
    assert desk.sources(name) == before
    assert {path.name for path in Path().iterdir()} == {"docs.jsonl", "fewer.jsonl"}  # no dead letters


def test_migration_that_may_not_fill_the_new_index_names_the_permission(desk: OpenSearchDesk) -> None:
    name = behind_an_alias(desk)
    desk.use(["monitor"], ["read", "manage"])
    migrate = "migrate", f"{name}-alias", "--index-type", "int8_hnsw", "--name", f"{name}-new", *desk.model
    done = desk.index(*migrate)
    assert done.code == 2
    assert "the index permissions indices:data/write/bulk[s], indices:data/write/index" in done.err
    desk.use(["monitor"], ["read", "index", "delete", "manage"])
    assert desk.index(*migrate).code == 0
    assert desk.sources(f"{name}-alias").keys() == desk.sources(name).keys()
    assert desk.server.ask("GET", f"/{name}*").keys() == {name, f"{name}-new"}


LIMITS: dict[str, dict[str, Any]] = {
    "documents": {"dls": json.dumps({"terms": {"id.keyword": ["d1", "d2"]}})},
    "fields": {"fls": ["~tags"]},
    "masked": {"masked_fields": ["text"]},
}


@pytest.mark.parametrize("limit", LIMITS)
def test_nothing_is_written_for_a_user_who_does_not_see_whole_documents(desk: OpenSearchDesk, limit: str) -> None:
    """Masked texts would be embedded, and hidden fields and documents would be missing in a copy."""
    name = behind_an_alias(desk)
    vectors = with_knn_vectors(desk)
    before, state = desk.sources(name), desk.server.ask("GET", f"/{name}")[name]
    migrate = "migrate", f"{name}-alias", "--index-type", "int8_hnsw", "--name", f"{name}-new", *desk.model
    commands = {
        "load in place": lambda: desk.ingest(name),
        "load of files": lambda: desk.ingest(name, "docs.jsonl", "--id-field", "id"),
        "prune": lambda: desk.ingest(name, "fewer.jsonl", "--id-field", "id", "--prune", "--yes"),
        "migration": lambda: desk.index(*migrate),
        "adoption": lambda: desk.adopt(vectors),
        "analysis": lambda: desk.write_field(name),
    }
    for index in (["read", "index", "delete", "manage"], ["read", "manage"]):
        desk.allow(["cluster_monitor", "cluster_composite_ops"], index, **LIMITS[limit])
        for what, command in commands.items():
            done = command()
            assert done.code == 2, what
            assert "document- or field-level security hides documents or fields" in done.err, what
            assert "neither `dls` nor `fls` nor `masked_fields`" in done.err, what
    assert desk.sources(name) == before
    after = desk.server.ask("GET", f"/{name}*")
    assert after == {name: state}


@pytest.fixture
def gateway(desk: OpenSearchDesk) -> Any:
    def served_with(**own: Any) -> Any:
        credentials = {"username": None, "password": None, "api_key": None, **own}
        upstream = EngineSettings(url=desk.server.url, ca_certs=desk.server.ca_certs, **credentials)
        return serving.gateway(upstream, desk.model[1], k=2)

    return served_with


SEMANTIC = {"query": {"match": {"semantic": "the cat sleeps"}}}


def test_gateway_gives_each_caller_what_the_role_allows(
    desk: OpenSearchDesk, gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = desk.loaded()
    desk.server.ask("PUT", "/hidden/_doc/1?refresh=true", {"text": "the cat"})
    desk.server.set_user("own", ["cluster:monitor/main"], {"docs*": ["indices:admin/get"]})
    desk.allow(["cluster_composite_ops_ro"], ["read"])
    caller = httpx.BasicAuth(USER, PASSWORD)
    with gateway() as url, httpx.Client(base_url=url, auth=caller, timeout=120) as client:
        answer = client.post(f"/{name}/_search", json=SEMANTIC)
        assert answer.status_code == 403
        assert "Grant the caller the index permission indices:admin/get" in answer.json()["error"]["reason"]
        desk.allow(["cluster_composite_ops_ro"], ["read", "indices:admin/get"])
        assert len(client.post(f"/{name}/_search", json=SEMANTIC).json()["hits"]["hits"]) == 6
        assert client.post(f"/{name}/_search", json=SEMANTIC, auth=(USER, "wrong")).status_code == 401
        assert client.post(f"/{name}/_search", json=SEMANTIC, auth=None).status_code == 401
    desk.allow(["cluster_composite_ops_ro"], ["read"])
    own = {"username": "own", "password": SecretStr(PASSWORD)}
    with gateway(**own) as url, httpx.Client(base_url=url, auth=caller, timeout=120) as client:
        assert client.get("/readyz").json()["engine"] == "ok"
        assert client.post(f"/{name}/_count", json=SEMANTIC).json()["count"] == 6
        lines = [{"index": name}, SEMANTIC, {"index": "hidden"}, SEMANTIC]
        body = "".join(json.dumps(line) + "\n" for line in lines)
        headers = {"content-type": "application/x-ndjson"}
        seen, refused = client.post("/_msearch", content=body, headers=headers).json()["responses"]
        assert len(seen["hits"]["hits"]) == 6
        assert (refused["status"], refused["error"]["type"]) == (403, "security_exception")
        assert client.post("/hidden/_search", json=SEMANTIC).status_code == 403
        assert client.put(f"/{name}/_doc/new", json={"text": "the cat"}).status_code == 403
    assert PASSWORD not in caplog.text
    assert "new" not in desk.sources(name)


def test_gateway_embeds_what_the_caller_may_write(desk: OpenSearchDesk, gateway: Any) -> None:
    name = desk.loaded()
    old = desk.sources(name)["d1"]
    desk.allow(["cluster_composite_ops"], ["read", "index", "indices:admin/get"])
    caller = httpx.BasicAuth(USER, PASSWORD)
    with gateway() as url, httpx.Client(base_url=url, auth=caller, timeout=120) as client:
        assert client.put(f"/{name}/_doc/new?refresh=true", json={"text": "the cat"}).status_code == 201
        lines = [{"update": {"_id": "d1"}}, {"doc": {"text": "a man plays"}}]
        body = "".join(json.dumps(line) + "\n" for line in lines)
        headers = {"content-type": "application/x-ndjson"}
        answer = client.post(f"/{name}/_bulk?refresh=true", content=body, headers=headers)
        assert answer.json()["errors"] is False
        sources = desk.sources(name)
        assert sources["new"]["embedding_meta"]["text_hash"]
        assert sources["d1"]["embedding"] != old["embedding"]
        # A masked text is not embedded: OpenSearch refuses the update.
        desk.allow(["cluster_composite_ops"], ["read", "index", "indices:admin/get"], masked_fields=["text"])
        assert client.post(f"/{name}/_update/d2", json={"doc": {"price": 3}}).status_code == 500
    assert desk.sources(name) == sources
