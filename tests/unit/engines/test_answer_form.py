"""A server that answers every path with the description of an engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from es_sbert.config import EngineSettings
from es_sbert.diagnostics.doctor import check_engine
from es_sbert.engines.clients import TransportEngine
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import EsSbertError

BANNERS = {
    "Elasticsearch": {"version": {"number": "9.2.0"}, "tagline": "You Know, for Search", "cluster_uuid": "u"},
    "OpenSearch": {"version": {"number": "3.6.0", "distribution": "opensearch"}, "cluster_uuid": "u"},
}


CALLS: dict[str, Callable[[Engine], object]] = {
    "get_index": lambda engine: engine.get_index("docs"),
    "count": lambda engine: engine.count("docs"),
    "bulk": lambda engine: engine.bulk("docs", b'{"index":{}}\n{}\n', actions=1),
    "search": lambda engine: engine.search("docs", {}),
    "search_point_in_time": lambda engine: engine.search_point_in_time("id", {}),
    "multi_search": lambda engine: engine.multi_search("docs", [{}]),
    "open_point_in_time": lambda engine: engine.open_point_in_time("docs", shard=0),
    "get_aliases": lambda engine: engine.get_aliases("docs"),
    "shard_states": lambda engine: engine.shard_states("docs"),
    "index_uuids": lambda engine: engine.index_uuids("docs"),
    "result_window": lambda engine: engine.result_window("docs"),
    "store_size": lambda engine: engine.store_size("docs"),
    "is_task_done": lambda engine: engine.is_task_done("node:1"),
    "refresh": lambda engine: engine.refresh("docs"),
    "searched_shards": lambda engine: engine.searched_shards("docs"),
    "start_force_merge": lambda engine: engine.start_force_merge("docs"),
    "vector_size": lambda engine: engine.vector_size("docs", "v"),
}
# Methods that find nothing in the banner, but must read other forms of a response without another exception.
OTHER_CALLS: dict[str, Callable[[Engine], object]] = {
    "alias_terms": lambda engine: engine.alias_terms("docs,more", engine.get_indices("docs")),
    "mget": lambda engine: engine.mget("docs", [("1", None)], source_includes=None),
    "primary_terms": lambda engine: engine.primary_terms("docs"),
    "read_changes": lambda engine: engine.read_changes("docs", 0, 0, 1, query={}, source_includes=[]),
    "request_api": lambda engine: engine.request_api("/_nodes"),
    "visible_names": lambda engine: engine.visible_names(),
}


class _Client:
    """Answers every request with the same body, and notes the paths."""

    def __init__(self, body: Any, status: int) -> None:
        self._body, self._status = body, status
        self.paths: list[str] = []

    def perform_request(self, method: str, path: str, /, **options: Any) -> Any:
        self.paths.append(path)
        return SimpleNamespace(meta=SimpleNamespace(status=self._status, headers={}), body=self._body)

    def close(self) -> None:
        pass


def _engine(name: str, body: Any, status: int = 200) -> tuple[Engine, _Client]:
    client, engine_type = _Client(body, status), EngineType(name.lower())
    version = (3, 6, 0) if engine_type is EngineType.OPENSEARCH else (9, 5, 0)
    return TransportEngine(EngineInfo(engine_type, version, "http://here:9200"), client, None), client


_VALUES: tuple[Any, ...] = (None, 1, "x", [], [1], [None], {}, {"x": 1}, [{"x": 1}], [[]], {"docs": None}, {"0": [{}]})
_MEMBERS = (
    "_shards", "_all", "_nodes", "_clusters", "acknowledged", "aliases", "completed", "count", "docs", "error",
    "fields", "hits", "id", "indices", "items", "metadata", "pit_id", "response", "responses", "shards", "task",
)  # fmt: skip


@pytest.mark.parametrize("name", list(BANNERS))
@pytest.mark.parametrize("call", [*CALLS, *OTHER_CALLS])
def test_no_form_of_an_answer_raises_another_error(name: str, call: str) -> None:
    bodies: list[Any] = [[], 1, "x", *({member: value} for member in _MEMBERS for value in _VALUES)]
    bodies += [{"docs": {part: value}} for part in ("aliases", "mappings", "settings", "shards") for value in _VALUES]
    for body in bodies:
        with suppress(EsSbertError):
            (CALLS | OTHER_CALLS)[call](_engine(name, body)[0])


# As Elasticsearch Serverless answers.
_SERVERLESS = "Request for uri [/_cluster/health] exists but is not available when running in serverless mode"
_FULL = {"nodes": {"n": {"name": "n1", "fs": {"total": {"total_in_bytes": 100, "available_in_bytes": 4}}}}}
_UNCHECKED = {"cluster.routing.allocation.disk.threshold_enabled": "false"}


@pytest.mark.parametrize(
    ("status", "body", "health", "disk"),
    [
        (410, {"error": {"type": "api_not_available_exception", "reason": _SERVERLESS}},
         "warning: this engine does not report its health", "warning: the nodes do not report their disk usage"),
        (403, {}, "warning: this user may not read this information", "warning: this user may not read this"),
        (500, {}, "error: ", "error: "),
        (200, {"status": "red"} | _FULL, "error: the cluster is red", "error: n1 has 0.0 GB free, 96 %"),
        (200, {"status": "yellow", "persistent": _UNCHECKED} | _FULL, "ok: yellow, some replicas are not",
         "warning: n1 has"),
    ],
)  # fmt: skip
def test_doctor_says_what_the_cluster_reports(status: int, body: Any, health: str, disk: str) -> None:
    engine, _ = _engine("Elasticsearch", body, status)
    found = {each.about: f"{each.level}: {each.message}" for each in check_engine(engine, EngineSettings(), None)}
    assert found["engine"].startswith("ok: ")
    assert found["health"].startswith(health)
    assert found["disk"].startswith(disk)
