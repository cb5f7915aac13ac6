"""Defaults of an index, a cluster, an alias or a role that change what the engine answers, or what it stores.

Each line of the table "Defaults of the engine" in docs/reliability.md has a test here, in
tests/engine/test_cluster_settings.py, tests/e2e/test_default_search_pipeline.py (search pipelines),
tests/engine/test_ingest_read_back.py (ingest pipelines) or tests/engine/test_partial_answers.py (time limits).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from es_sbert.analysis.text_collection import read_index
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import AccessDenied, EsSbertError
from es_sbert.index.privileges import ADOPT, CREATE, LOAD, MIGRATE_FROM, PRUNE, SEARCH, require_privileges
from tests.conftest import also_opensearch2
from tests.engine.ingest_support import load, open_engine, put, write_jsonl
from tests.engine.secured import Secured
from tests.engine.sources import read_sources
from tests.engine.vectors import state_of

COUNT = 60


def documents() -> list[dict[str, Any]]:
    return [{"id": str(n), "text": f"number {n} of {COUNT}", "n": n, "group": n % 2} for n in range(COUNT)]


def fill(engine: Engine, index: str, settings: dict[str, Any]) -> None:
    properties = {"n": {"type": "integer"}, "group": {"type": "integer"}, "text": {"type": "text"}}
    body = {"number_of_shards": 2, "number_of_replicas": 0} | settings
    if engine.info.engine_type is EngineType.OPENSEARCH:
        body["index.knn"] = True  # OpenSearch 2 needs it
    engine.create_index(index, {"settings": body, "mappings": {"properties": properties}})
    put(engine, index, documents())


def embedded(url: str, index: str) -> set[str]:
    """Ids of the documents that have a vector, read without a search."""
    with open_engine(url) as engine:
        found = read_sources(engine, index, [each["id"] for each in documents()] + ["new"], source_includes=["*"])
    return {key for key, source in found.items() if "embedding" in source}


SETTINGS: dict[str, dict[str, Any]] = {
    "windows": {
        "index.max_result_window": 7,
        "index.max_inner_result_window": 1,
        "index.max_terms_count": 1,
        "index.max_docvalue_fields_search": 0,
        "index.max_script_fields": 0,
    },
    "sorted": {"index.sort.field": ["n"], "index.sort.order": ["desc"]},
    "stale": {
        "index.refresh_interval": "-1",
        "index.requests.cache.enable": True,
        "index.queries.cache.enabled": True,
        "index.search.idle.after": "1ms",
    },
    "fields": {"index.query.default_field": ["group"], "index.query.parse.allow_unmapped_fields": False},
}


@also_opensearch2
@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_an_index_change_no_load(
    engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path, name: str
) -> None:
    dead, path = tmp_path / "dead", write_jsonl(tmp_path / "docs.jsonl", documents()[:20])
    with open_engine(engine_url) as engine:
        fill(engine, index_name, SETTINGS[name])
        assert load(engine_url, tiny, index_name, dead=dead).indexed == COUNT
        # Counted twice, with a write in between: the request cache forgets what a refresh has changed.
        assert engine.count(index_name) == COUNT
        engine.bulk(index_name, b'{"delete":{"_id":"59"}}\n')
        assert load(engine_url, tiny, index_name, dead=dead).unchanged == COUNT - 1
        assert engine.count(index_name) == COUNT - 1
        assert len(read_index(index_name, engine, "embedding").ids) == COUNT - 1
        # Only documents of loads from files are pruned, so those become such documents first.
        everything = write_jsonl(tmp_path / "all.jsonl", documents())
        load(engine_url, tiny, index_name, everything, dead=dead, id_field="id")
        report = load(engine_url, tiny, index_name, path, dead=dead, id_field="id", prune=True)
    assert (report.unchanged, report.pruned, report.missing) == (20, COUNT - 20, 0)
    assert embedded(engine_url, index_name) == {each["id"] for each in documents()[:20]}


def test_filter_and_routing_of_an_alias_limit_all_of_a_load(
    engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    alias, routed, dead = f"{index_name}-odd", f"{index_name}-routed", tmp_path / "dead"
    with open_engine(engine_url) as engine:
        fill(engine, index_name, {})
        add = {"index": index_name, "alias": alias, "filter": {"term": {"group": 1}}}
        engine.update_aliases([{"add": add}, {"add": {"index": index_name, "alias": routed, "routing": "a"}}])
        engine.refresh(index_name)
        odd = {each["id"] for each in documents() if each["group"]}
        assert engine.count(alias) == len(odd)
        assert load(engine_url, tiny, alias, dead=dead).indexed == len(odd)
        assert embedded(engine_url, index_name) == odd
        assert len(engine.searched_shards(routed)) == 1
        shown = engine.count(routed)
        assert shown < COUNT
        assert load(engine_url, tiny, routed, dead=dead).read == shown
        # A prune through the alias removes none of the documents that it does not show.
        everything = write_jsonl(tmp_path / "all.jsonl", documents())
        load(engine_url, tiny, index_name, everything, dead=dead, id_field="id")
        few = write_jsonl(tmp_path / "few.jsonl", [each for each in documents() if each["group"]][:5])
        assert load(engine_url, tiny, alias, few, dead=dead, id_field="id", prune=True).pruned == len(odd) - 5
        assert engine.count(index_name) == COUNT - len(odd) + 5


def test_opensearch_graphs_are_of_float32_vectors_whatever_the_default_is(
    opensearch_url: str, opensearch2_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path
) -> None:
    path, dead = write_jsonl(tmp_path / "docs.jsonl", documents()[:3]), tmp_path / "dead"
    for url in (opensearch_url, opensearch2_url):
        index = fresh_index(url)
        options: dict[str, Any] = {"dead": dead, "id_field": "id", "index_type": "hnsw"}
        with open_engine(url) as engine:
            assert load(url, tiny, index, path, **options).indexed == 3
            state = state_of(engine, index)
            # As an earlier version of es-sbert made it.
            del state.mappings["properties"]["embedding"]["compression_level"]
            engine.delete_index(index)
            engine.create_index(index, {"settings": {"index.knn": True}, "mappings": state.mappings})
            assert load(url, tiny, index, path, **options).indexed == 3
            assert load(url, tiny, index, path, vector_field="second", **options).indexed == 3
            properties = state_of(engine, index).mappings["properties"]
        levels = [properties[name].get("compression_level") for name in ("embedding", "second")]
        assert levels == [None, "1x"], url


@pytest.mark.parametrize("block", ["write", "read_only", "read_only_allow_delete", "metadata", "read"])
def test_blocks_of_an_index_end_a_load_before_it_writes(
    es9_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path, block: str
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        fill(engine, index, {})
        engine.put_settings(index, {f"index.blocks.{block}": "true"})
        try:
            report = load(es9_url, tiny, index, dead=tmp_path / "dead", retry_seconds=0)
            reason, remedy = str(report.stopped), "the report says how to resume"
        except EsSbertError as error:
            reason, remedy = error.message, error.remedy
        finally:
            engine.put_settings(index, {f"index.blocks.{block}": None})
    assert "block" in reason
    assert remedy
    assert embedded(es9_url, index) == set()


@pytest.fixture
def trial(secured_es8: Secured, alone_on_engines: None) -> Iterator[Secured]:
    """The server with a trial license, which document- and field-level security need."""
    secured_es8.ask("POST", "/_license/start_trial?acknowledge=true")
    yield secured_es8
    secured_es8.ask("POST", "/_license/start_basic?acknowledge=true")


def test_security_that_hides_documents_or_fields_is_noticed_before_a_write(trial: Secured) -> None:
    index = f"test-{uuid.uuid4().hex[:12]}"
    trial.ask("PUT", f"/{index}/_doc/1?refresh=true", {"text": "a", "secret": "s"})
    trial.ask("PUT", f"/{index}/_doc/2?refresh=true", {"text": "b", "secret": "s"})
    limits: dict[str, dict[str, Any]] = {
        "documents": {"query": json.dumps({"ids": {"values": ["1"]}})},
        "fields": {"field_security": {"grant": ["*"], "except": ["secret"]}},
        "nothing": {},
    }
    try:
        for hidden, limit in limits.items():
            role = {"cluster": ["monitor"], "indices": [{"names": [f"{index}*"], "privileges": ["all"], **limit}]}
            key = {"name": hidden, "role_descriptors": {"role": role}}
            made = trial.ask("POST", "/_security/api_key?refresh=true", key)["encoded"]
            settings = EngineSettings(url=trial.url, ca_certs=trial.ca_certs, api_key=SecretStr(made))
            with closing(connect(settings)) as engine:
                for task in (LOAD, PRUNE, ADOPT, MIGRATE_FROM):
                    if hidden == "nothing":
                        require_privileges(engine, index, task)
                        continue
                    with pytest.raises(AccessDenied) as caught:
                        require_privileges(engine, index, task)
                    assert "neither `query` nor `field_security`" in caught.value.remedy
                require_privileges(engine, index, SEARCH)
                require_privileges(engine, f"{index}-new", CREATE)
                require_privileges(engine, f"{index}-new", MIGRATE_FROM)
                assert engine.get_index(f"{index}-new") is None
                assert engine.mget(index, [("1", None)], source_includes=["text"])[0]["_seq_no"] == 0  # type: ignore[index]
    finally:
        trial.ask("DELETE", f"/{index}")
