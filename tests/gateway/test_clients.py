"""Official clients search by meaning through the gateway, those of other languages as `examples/clients` says."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch

from tests.gateway.articles import ARTICLES, MEANT, QUERY, articles
from tests.node import EXAMPLES, install_node_project
from tests.programs import program, run

CLIENTS = EXAMPLES / "clients"
PAGE = Path(__file__).parents[2] / "docs/clients.md"
_COLOR = re.compile(r"\x1b\[\d*m")  # Maven resets colors even where it writes to no terminal
_OPENSEARCH = ("match on semantic", "neural query")
_ELASTICSEARCH = ("match on semantic", "semantic query", "knn with query_vector_builder")


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_node_project(CLIENTS / "javascript", tmp_path_factory.mktemp("clients") / "javascript")


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients") / "java"
    folder.mkdir()
    for name in ("pom.xml", "src"):
        (folder / name).symlink_to(CLIENTS / "java" / name)
    run(_maven("compile"), folder=folder)
    return folder


def _maven(*arguments: str) -> list[str]:
    return [program("mvn"), "-q", "-B", *arguments]


def _found(command: Sequence[str], folder: Path, gateway: str, index: str) -> dict[str, str]:
    """Run a program, which indexes the articles anew: search → title of the first hit, as it prints them."""
    printed = run(command, folder=folder, environment={"GATEWAY": gateway, "INDEX": index})
    indexed, *found = _COLOR.sub("", printed).splitlines()
    assert indexed == f"{len(articles())} articles indexed"
    return dict(line.split(": ", 1) for line in found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine_url", "version"), [("es9", "9"), ("es9", "8"), ("es8", "8")], indirect=["engine_url"], scope="session"
)
def test_elasticsearch_js(javascript: Path, hybrid_gateway_url: str, articles_index: str, version: str) -> None:
    command = [program("node"), "elasticsearch.js", version, str(ARTICLES)]
    assert _found(command, javascript, hybrid_gateway_url, articles_index) == dict.fromkeys(_ELASTICSEARCH, MEANT)


@pytest.mark.long
@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
def test_opensearch_js(javascript: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    found = _found([program("node"), "opensearch.js", str(ARTICLES)], javascript, hybrid_gateway_url, articles_index)
    assert found == dict.fromkeys(("match on semantic", "semantic query", "neural query"), MEANT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine_url", "main", "searches"),
    [("es9", "SearchElasticsearch", _ELASTICSEARCH), ("opensearch", "SearchOpenSearch", _OPENSEARCH)],
    indirect=["engine_url"],
    scope="session",
)
def test_java(java: Path, hybrid_gateway_url: str, articles_index: str, main: str, searches: tuple[str, ...]) -> None:
    command = _maven("exec:java", f"-Dexec.mainClass={main}", f"-Dexec.args={ARTICLES}")
    assert _found(command, java, hybrid_gateway_url, articles_index) == dict.fromkeys(searches, MEANT)


QUERIES: tuple[dict[str, Any], ...] = (
    {"match": {"semantic": QUERY}},
    {"semantic": {"field": "embedding", "query": QUERY}},
)


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True, scope="session")
def test_elasticsearch_py(hybrid_gateway_url: str, articles_index: str) -> None:
    with Elasticsearch(hybrid_gateway_url) as client:
        for query in QUERIES:
            found = client.search(index=articles_index, query=query)
            assert found["hits"]["hits"][0]["_source"]["title"] == MEANT


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
def test_opensearch_py(hybrid_gateway_url: str, articles_index: str) -> None:
    with OpenSearch(hybrid_gateway_url) as client:
        for query in (*QUERIES, {"neural": {"embedding": {"query_text": QUERY, "k": 3}}}):
            found = client.search(index=articles_index, body={"query": query})
            assert found["hits"]["hits"][0]["_source"]["title"] == MEANT


def test_curl_examples(engine_url: str, hybrid_gateway_url: str, articles_index: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## curl\n")[2].partition("\n## ")[0]
    commands = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(commands) == 3
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        ours = command.replace("localhost:9280", urlsplit(hybrid_gateway_url).netloc)
        ours = ours.replace("localhost:9200", urlsplit(engine_url).netloc).replace("articles", articles_index)
        printed = run(
            [program("bash"), "-o", "pipefail", "-c", ours], environment={"ES_SBERT_URL": engine_url, "PATH": path}
        )
        assert orjson.loads(printed)["hits"]["hits"][0]["_source"]["title"] == MEANT, command
