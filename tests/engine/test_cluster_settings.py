"""Settings of a cluster that change what the engine answers: a load and a scan go around them.

These tests have servers of their own: other tests would see the settings too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from es_sbert.analysis.text_collection import read_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from tests.conftest import ENGINES, build_of, start_server, stop_server
from tests.engine.ingest_support import load, open_engine, write_jsonl
from tests.engine.test_engine_defaults import COUNT, documents, embedded
from tests.faults.servers import call


@pytest.fixture(scope="module", params=ENGINES)
def engine_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine in turn, as a server that only this module uses."""
    server = start_server(build_of(request.param), "512m")
    try:
        yield server["engine"]["url"]
    finally:
        stop_server(server)


@contextmanager
def cluster_settings(url: str, settings: dict[str, Any]) -> Iterator[None]:
    call(url, "PUT", "/_cluster/settings", {"persistent": settings})
    try:
        yield
    finally:
        call(url, "PUT", "/_cluster/settings", {"persistent": dict.fromkeys(settings)})


CLUSTER_SETTINGS: dict[str, Any] = {
    "search.allow_expensive_queries": False,
    "search.default_allow_partial_results": False,
    "search.max_buckets": 1,
    "action.auto_create_index": False,
    "action.destructive_requires_name": True,
    "search.default_search_timeout": "1m",
}
OPENSEARCH_SETTINGS: dict[str, Any] = {
    "search.concurrent_segment_search.mode": "all",
    "search.query_rewriting.enabled": True,
    "search.keyword_index_or_doc_values_enabled": True,
    "cluster.search.enabled_system_generated_factories": ["*"],
}


def test_settings_of_the_cluster_change_no_load(
    engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    with open_engine(engine_url) as engine:
        is_opensearch = engine.info.engine_type is EngineType.OPENSEARCH
        with cluster_settings(engine_url, CLUSTER_SETTINGS | (OPENSEARCH_SETTINGS if is_opensearch else {})):
            path = write_jsonl(tmp_path / "docs.jsonl", documents())
            assert load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id").indexed == COUNT
            write_jsonl(path, documents()[:20])
            report = load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id", prune=True)
            assert (report.unchanged, report.pruned) == (20, COUNT - 20)
            engine.bulk(index_name, b'{"index":{"_id":"new"}}\n{"text":"another"}\n')
            assert load(engine_url, tiny, index_name, dead=tmp_path / "dead").indexed == 1
            assert len(read_index(index_name, engine, "embedding").ids) == 21
    assert len(embedded(engine_url, index_name)) == 21
