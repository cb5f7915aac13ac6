"""What each build of `es-sbert engine` has and lacks: the table of docs/commands/engine.md, asked of real servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.local import ENGINES
from es_sbert.errors import RequestFailed
from tests.conftest import build_of
from tests.docs import PAGES
from tests.engine.test_local_engine import http

Request = tuple[str, str, Any]

_MATCH_ALL: dict[str, Any] = {"match_all": {}}
_SET = {"set": {"field": "a", "value": 1}}


def _field(type: str, **settings: Any) -> Request:
    return "PUT", "/INDEX/_mapping", {"properties": {type: {"type": type} | settings}}


def _search(**body: Any) -> Request:
    return "POST", "/INDEX/_search", body


# Row of the table → requests that all succeed where a build has the feature, and of which one fails elsewhere. INDEX
# holds one document with the integer field n.
PROBES: dict[str, list[Request]] = {
    "scripts (painless)": [
        _search(query={"script_score": {"query": _MATCH_ALL, "script": {"source": "doc['n'].value"}}}),
        ("POST", "/INDEX/_update/1", {"script": {"source": "ctx._source.n = 2"}}),
    ],
    "`GET /`": [("GET", "/", None)],
    "`_reindex`, `_update_by_query`, `_delete_by_query`": [
        ("POST", "/_reindex", {"source": {"index": "INDEX"}, "dest": {"index": "COPY"}}),
        ("POST", "/INDEX/_update_by_query", None),
        ("POST", "/INDEX/_delete_by_query", {"query": {"match_none": {}}}),
    ],
    "language analyzers, stemmers, n-grams": [
        ("POST", "/_analyze", {"analyzer": "english", "text": "dogs"}),
        ("POST", "/_analyze", {"tokenizer": "ngram", "filter": ["porter_stem"], "text": "dogs"}),
    ],
    "common ingest processors": [
        ("POST", "/_ingest/pipeline/_simulate", {"pipeline": {"processors": [_SET]}, "docs": [{"_source": {}}]})
    ],
    "parent and child documents (`join`)": [_field("join", relations={"question": "answer"})],
    "`bucket_sort`, `derivative`, `auto_date_histogram`": [
        _search(aggs={"a": {"terms": {"field": "n"}, "aggs": {"b": {"bucket_sort": {"size": 1}}}}})
    ],
    "search templates": [("POST", "/INDEX/_search/template", {"source": {"query": _MATCH_ALL}})],
    "`_rank_eval`": [
        ("POST", "/INDEX/_rank_eval", {
            "requests": [{"id": "a", "request": {"query": _MATCH_ALL}, "ratings": []}], "metric": {"precision": {}},
        })
    ],
    "`_async_search`": [("POST", "/INDEX/_async_search", {"query": _MATCH_ALL})],
    "percolator": [_field("percolator")],
    "`rank_feature`, `search_as_you_type`, `scaled_float`": [
        _field("rank_feature"), _field("search_as_you_type"), _field("scaled_float", scaling_factor=10),
    ],
    "`geo_shape`": [_field("geo_shape")],
    "data streams": [("GET", "/_data_stream", None)],
    "index lifecycle management (ILM)": [("GET", "/_ilm/status", None)],
    "`_sql`": [("POST", "/_sql", {"query": "SELECT 1"})],
}  # fmt: skip


def table() -> dict[str, dict[str, str]]:
    """Row → build → `yes` or `no`."""
    lines = (PAGES / "engine.md").read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| feature |"))
    builds = [cell.strip().strip("`") for cell in lines[begin].strip("|").split("|")][1:]
    rows = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        feature, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[feature] = dict(zip(builds, cells, strict=True))
    return rows


def has(engine: Engine, names: dict[str, str], requests: list[Request]) -> bool:
    """Whether the server carries out all of them; where it does not, the error names the missing module."""
    for method, path, body in requests:
        text = json.dumps(body)
        for placeholder, name in names.items():
            path, text = path.replace(placeholder, name), text.replace(placeholder, name)
        try:
            engine._request(method, path, body=json.loads(text))
        except RequestFailed as error:
            if error.status not in (400, 404, 405):
                raise
            return False
    return True


def test_feature_table_has_all_features_and_builds() -> None:
    rows = table()
    assert list(rows) == list(PROBES)
    for cells in rows.values():
        assert list(cells) == ["es9", "es9-small", "opensearch", "Docker"]
        assert set(cells.values()) <= {"yes", "no"}


@pytest.mark.parametrize(
    "fixture",
    [pytest.param("es9_full_url", marks=pytest.mark.long), "es9_url", "opensearch_url"],
)
def test_feature_table_matches_real_builds(
    fixture: str, request: pytest.FixtureRequest, fresh_index: Callable[[str], str]
) -> None:
    url: str = request.getfixturevalue(fixture)
    build = "es9" if fixture == "es9_full_url" else build_of(fixture.removesuffix("_url"))
    version = next(iter(http(url, "/_nodes/_local?filter_path=nodes.*.version")["nodes"].values()))["version"]
    if version != ENGINES[build].version:
        pytest.skip(f"the server is {version}, which is not {ENGINES[build].label}")
    found = {}
    with closing(connect(EngineSettings(url=url))) as engine:
        for feature, requests in PROBES.items():
            names = {"INDEX": fresh_index(url), "COPY": fresh_index(url)}
            http(url, f"/{names['INDEX']}/_doc/1?refresh=true", "PUT", {"n": 1})
            found[feature] = "yes" if has(engine, names, requests) else "no"
    assert found == {feature: cells[build] for feature, cells in table().items()}
