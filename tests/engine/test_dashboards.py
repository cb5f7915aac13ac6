"""Dashboards on real data: every aggregation of theirs runs and finds something."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import orjson
import pytest

from es_sbert.diagnostics.saved_objects import DashboardProduct, SavedObject, build_saved_objects
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta, index_body, mapping_addition
from tests.conftest import also_es8
from tests.dashboards.checks import check_objects
from tests.dashboards.import_api import ImportApi, serving
from tests.dashboards.visualizations import request
from tests.e2e.cli_support import Cli, cli_in_process
from tests.engine.ingest_support import bulk, open_engine
from tests.engine.search_log import search_record, ship_searches

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return cli_in_process(capfd)


@dataclass(frozen=True)
class Shown:
    """An index and a log with something in them, on one engine."""

    url: str
    index: str
    searches: str

    @property
    def options(self) -> list[str]:
        return [self.index, "--url", self.url, "--search-log", self.searches]

    def objects(self) -> list[SavedObject]:
        with open_engine(self.url) as engine:
            built, notes = build_saved_objects(engine, self.index, searches=self.searches)
        assert [note.partition(",")[0] for note in notes] == ["Without a minimum cosine"]
        return built


def _meta(name: str, fingerprint: str, text: str, **more: Any) -> VectorFieldMeta:
    return VectorFieldMeta(fingerprint=fingerprint, model=name, dimensions=4, index_type="hnsw", text=text, **more)


@pytest.fixture(scope="module")
def shown(engine_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    unique = uuid.uuid4().hex[:12]
    made = Shown(engine_url, f"test-{unique}", f"test-searches-{unique}")
    with open_engine(engine_url) as engine:
        _fill_index(engine, made.index)
        month = ship_searches(engine_url, made.searches, _searches(), tmp_path_factory.mktemp("log"))
        engine.refresh(month)
        yield made
        for name in (made.index, month):
            engine.delete_index(name)
        _ask(engine_url, "DELETE", f"/_index_template/{made.searches}")


def _fill_index(engine: Engine, index: str) -> None:
    one = _meta("new-model", NEW, "{title}")
    parts = _meta("old-model", OLD, "{body}", passages=ChunkRules.from_tokens(64))
    body = index_body(engine.info.engine_type, "embedding", one, shards=1, replicas=0)
    mappings = body["mappings"]
    added = mapping_addition(engine.info.engine_type, "parts", parts, mappings["_meta"])
    mappings["_meta"] = added["_meta"]
    mappings["properties"] |= added["properties"] | {"title": {"type": "text"}, "body": {"type": "text"}}
    engine.create_index(index, body)
    documents: list[dict[str, Any]] = []
    for number in range(40):
        at = (NOW - timedelta(hours=number)).isoformat()
        of = {"tokens": number * 7, "truncated": number % 5 == 0, "embedded_at": at, "text_hash": "0"}
        document: dict[str, Any] = {"title": f"Title {number}", "body": "A body."}
        if number % 10:
            fingerprint = OLD if number % 4 == 0 else NEW
            document |= {"embedding": [1.0, 0.0, 0.0, number / 40], "embedding_meta": of | {"fingerprint": fingerprint}}
            document["parts"] = [{"start": 0, "end": 7, "vector": [0.0, 1.0, 0.0, 0.5]}]
            document["parts_meta"] = of | {"fingerprint": OLD, "passages": 1}
        documents.append(document)
    bulk(engine, index, *(line for document in documents for line in ({"index": {}}, document)))
    engine.refresh(index)


def _searches() -> list[Json]:
    kinds = ("lexical", "semantic", "hybrid")
    records = [
        search_record(
            kinds[number % 3],
            NOW - timedelta(hours=number),
            milliseconds={"total": 5.0 + number, "embedding": 2.0, "upstream": 3.0},
            api="_search" if number % 3 else "_msearch",
            texts=[f"query {number % 4}"] if number % 3 else [],
            rewrites=["virtual_field"],
            k=10,
            hits=number % 5,
        )
        for number in range(60)
    ]
    # Discover is opened before the index has documents.
    return [*records, search_record("browse", NOW, hits=0)]


def _patterns(objects: list[SavedObject]) -> dict[str, str]:
    """Id of each view → what it looks at."""
    return {saved.id: saved.attributes["title"] for saved in objects if saved.type == "index-pattern"}


def _ask(url: str, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(method, url + path, json=body, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@also_es8
def test_every_aggregation_runs_with_results(shown: Shown) -> None:
    objects = shown.objects()
    patterns = _patterns(objects)
    charts = [saved for saved in objects if saved.type == "visualization"]
    assert len(charts) == 2 * 4 + 10
    for chart in charts:
        [view] = [reference["id"] for reference in chart.references]
        answer = _ask(shown.url, "POST", f"/{patterns[view]}/_search", request(chart))
        assert answer["_shards"]["failed"] == 0
        assert answer["hits"]["total"]["value"] > 0, chart.attributes["title"]
        _check_filled(answer.get("aggregations", {}), chart.attributes["title"])


def _check_filled(aggregations: dict[str, Any], title: str) -> None:
    """Buckets everywhere, and a value in every metric."""
    for found in aggregations.values():
        if "buckets" in found:
            buckets = list(found["buckets"].values() if isinstance(found["buckets"], dict) else found["buckets"])
            assert any(bucket["doc_count"] for bucket in buckets), title
            _check_filled({name: value for name, value in buckets[0].items() if isinstance(value, dict)}, title)
        elif "values" in found:
            assert all(entry["value"] is not None for entry in found["values"]), title
        else:
            assert found["value"] is not None, title


def test_chart_figures_match_documents(shown: Shown) -> None:
    objects = shown.objects()
    by_title = {saved.attributes["title"]: saved for saved in objects}
    patterns = _patterns(objects)

    def aggregated(title: str) -> Any:
        chart = by_title[title]
        pattern = patterns[chart.references[0]["id"]]
        answer = _ask(shown.url, "POST", f"/{pattern}/_search", request(chart))
        return answer["aggregations"]

    states = aggregated(f"{shown.index}.embedding: documents")["2"]["buckets"]
    counts = {label: bucket["doc_count"] for label, bucket in states.items()}
    assert counts == {"current vector": 28, "vector of another model": 8, "no vector": 4, "truncated": 4}
    without = aggregated("Searches: without a hit")["2"]["buckets"]
    found = [bucket["3"]["buckets"]["without a hit"]["doc_count"] for bucket in without]
    assert sum(found) == 12
    queries = aggregated("Searches: queries without a hit")["3"]["buckets"]
    assert sum(bucket["doc_count"] for bucket in queries) == 12
    assert [bucket["doc_count"] for bucket in queries if bucket["key"] == "__missing__"] == [4]  # by words alone


def test_the_command_writes_or_imports_the_objects(shown: Shown, cli: Cli, tmp_path: Any) -> None:
    file = tmp_path / "docs.ndjson"
    done = cli("dashboards", *shown.options, "--output", file)
    assert done.code == 0, done.err
    written = file.read_bytes()
    assert cli("dashboards", *shown.options).out.encode() == written
    lines = [orjson.loads(line) for line in written.splitlines()]
    product = DashboardProduct.KIBANA if "typeMigrationVersion" in lines[0] else DashboardProduct.DASHBOARDS
    check_objects(product, lines)
    api = ImportApi(product)
    with serving(api) as url:
        done = cli("dashboards", *shown.options, "--kibana", url)
        assert done.code == 0, done.err
        assert f"{len(lines)} objects are in {product.label}" in done.err
        [stored] = api.objects.values()
        assert set(stored) == {(line["type"], line["id"]) for line in lines}
