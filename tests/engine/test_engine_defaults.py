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
from es_sbert.diagnostics.doctor import check_index, inspect_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, EsSbertError
from es_sbert.index.mapping import VectorFieldMeta, index_body
from es_sbert.index.privileges import ADOPT, CREATE, LOAD, MIGRATE_FROM, PRUNE, SEARCH, require_privileges
from es_sbert.index.vector_field import VectorField
from tests.conftest import also_opensearch2
from tests.engine.ingest_support import load, open_engine, put, write_jsonl
from tests.engine.secured import Secured
from tests.engine.sources import read_sources
from tests.engine.vectors import state_of, vector_mapping
from tests.raised import raises_as_recorded

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


def knn(space_type: str = "cosinesimil", **parameters: Any) -> Json:
    return {"method": {"name": "hnsw", "engine": "lucene", "space_type": space_type, "parameters": parameters}}


# Mappings of other programs and versions, and what `doctor` says: empty if such a field works as any other.
BY_HAND: list[tuple[str, Json, Json, str]] = [
    ("es9", {"similarity": None, "index": False}, {}, "compares vectors by nothing (`index: false`)"),
    ("es9", {"similarity": "dot_product"}, {}, "compares vectors by dot_product"),
    ("es9", {"similarity": None}, {}, ""),  # cosine by default
    ("es9", {"element_type": "bfloat16"}, {}, "holds vectors of bfloat16"),
    ("es9", {"index_options": {"type": "bbq_disk"}}, {}, "the index type bbq_disk"),
    ("es9", {"index_options": {"type": "hnsw", "m": 4}}, {}, "`m` 4 instead of 16"),
    (
        "es9",
        {"index_options": {"type": "bbq_hnsw", "m": 32, "ef_construction": 9}},
        {},
        "`ef_construction` 9 instead of",
    ),
    # Searches themselves say how many candidates they compare again by float32 vectors.
    ("es9", {"index_options": {"type": "bbq_hnsw", "rescore_vector": {"oversample": 0}}}, {}, ""),
    ("es9", {"index_options": {"type": "bbq_hnsw", "on_disk_rescore": True}}, {}, ""),
    ("es9", {"index_options": {"type": "int8_hnsw", "confidence_interval": 0.9}}, {}, ""),
    # Without `engine: lucene` too, the native library would crash the server of the tests.
    ("opensearch", {"mode": "on_disk"}, {}, "chosen by the engine"),
    ("opensearch", {"compression_level": "4x"}, {}, "chosen by the engine"),
    ("opensearch", knn(encoder={"name": "sq", "parameters": {"bits": 1}}), {}, "the encoder sq of 1 bit"),
    ("opensearch", knn(encoder={"name": "sq", "parameters": {"bits": 7, "confidence_interval": 0.9}}), {}, ""),
    ("opensearch", knn("l2"), {}, "compares vectors by l2"),
    ("opensearch", knn(m=4, ef_construction=8), {}, "`m` 4 instead of 16 and `ef_construction` 8 instead of 100"),
    ("opensearch", {"data_type": "byte"}, {}, "holds vectors of byte"),
    ("opensearch", {}, {"index.knn.advanced.approximate_threshold": -1}, ""),  # no graph: exact, but slow
    *((engine, {}, {}, "") for engine in ("opensearch", "opensearch2")),  # as earlier versions of es-sbert made it
    ("opensearch", {"method": None, "space_type": "cosinesimil"}, {"index.knn": None}, ""),
]


@pytest.mark.parametrize("made", BY_HAND, ids=[str(row[1:3]) for row in BY_HAND])
def test_doctor_names_what_decides_about_hits_of_a_mapping_made_by_hand(
    request: pytest.FixtureRequest, fresh_index: Callable[[str], str], made: tuple[str, Json, Json, str]
) -> None:
    engine_name, changes, settings, expected = made
    url = request.getfixturevalue(f"{engine_name}_url")
    index, meta = fresh_index(url), VectorFieldMeta(fingerprint="a" * 32, model="m", dimensions=64, index_type="hnsw")
    with open_engine(url) as engine:
        body, fields = index_body(engine.info.engine_type, "embedding", meta), list[VectorField]()
        body["mappings"]["properties"]["embedding"] = stated(vector_mapping(engine, 64) | changes)
        engine.create_index(index, body | {"settings": stated(body["settings"] | settings)})
        found = inspect_index(engine, index, [], fields)
        found += check_index(engine, state_of(engine, index), fields, {meta.fingerprint: None})
        bad = [finding for finding in found if finding.level != "ok"]
    assert [(expected in finding.message, bool(finding.remedy)) for finding in bad] == [(True, True)] * bool(expected)
    assert bool(fields) == (not expected or "instead" in expected)


def stated(settings: Json) -> Json:
    return {name: value for name, value in settings.items() if value is not None}


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
                    with raises_as_recorded(AccessDenied):
                        require_privileges(engine, index, task)
                require_privileges(engine, index, SEARCH)
                require_privileges(engine, f"{index}-new", CREATE)
                require_privileges(engine, f"{index}-new", MIGRATE_FROM)
                assert engine.get_index(f"{index}-new") is None
                assert engine.mget(index, [("1", None)], source_includes=["text"])[0]["_seq_no"] == 0  # type: ignore[index]
    finally:
        trial.ask("DELETE", f"/{index}")
