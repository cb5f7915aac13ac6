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
from tests.gateway.shown_commands import shown_commands
from tests.node import EXAMPLES, install_node_project
from tests.programs import program, run

CLIENTS = EXAMPLES / "clients"
_COLOR = re.compile(r"\x1b\[\d*m")  # Maven resets colors even where it writes to no terminal
_ELASTICSEARCH = ("match on semantic", "semantic query", "knn with query_vector_builder")


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JavaScript clients, installed."""
    return install_node_project(CLIENTS / "javascript", tmp_path_factory.mktemp("clients") / "javascript")


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Java programs, compiled."""
    folder = tmp_path_factory.mktemp("clients") / "java"
    folder.mkdir()
    for name in ("pom.xml", "src"):
        (folder / name).symlink_to(CLIENTS / "java" / name)
    run(_maven("compile"), folder=folder)
    return folder


def _maven(*arguments: str) -> list[str]:
    return [program("mvn"), "-q", "-B", *arguments]


def _found(command: Sequence[str], folder: Path, gateway: str, index: str) -> dict[str, str]:
    """Run a program, which indexes the articles anew: search → title of the first hit, as it prints them.

    Were the gateway not to embed what is written, the articles would have lost their vectors, and nothing be found.
    """
    printed = run(command, folder=folder, environment={"GATEWAY": gateway, "INDEX": index})
    indexed, *found = _COLOR.sub("", printed).splitlines()
    assert indexed == f"{len(articles())} articles indexed"
    return dict(line.split(": ", 1) for line in found)


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True, scope="session")
@pytest.mark.long
def test_elasticsearch_js_9(javascript: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    found = _found(
        [program("node"), "elasticsearch.js", "9", str(ARTICLES)], javascript, hybrid_gateway_url, articles_index
    )
    assert found == dict.fromkeys(_ELASTICSEARCH, MEANT)


@pytest.mark.parametrize("engine_url", ["es9", "es8"], indirect=True, scope="session")
@pytest.mark.long
def test_elasticsearch_js_8(javascript: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    found = _found(
        [program("node"), "elasticsearch.js", "8", str(ARTICLES)], javascript, hybrid_gateway_url, articles_index
    )
    assert found == dict.fromkeys(_ELASTICSEARCH, MEANT)


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
@pytest.mark.long
def test_opensearch_js(javascript: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    found = _found([program("node"), "opensearch.js", str(ARTICLES)], javascript, hybrid_gateway_url, articles_index)
    assert found == dict.fromkeys(("match on semantic", "semantic query", "neural query"), MEANT)


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True, scope="session")
@pytest.mark.long
def test_elasticsearch_java(java: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    found = _found(
        _maven("exec:java", "-Dexec.mainClass=SearchElasticsearch", f"-Dexec.args={ARTICLES}"),
        java,
        hybrid_gateway_url,
        articles_index,
    )
    assert found == dict.fromkeys(_ELASTICSEARCH, MEANT)


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
@pytest.mark.long
def test_opensearch_java(java: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    found = _found(
        _maven("exec:java", "-Dexec.mainClass=SearchOpenSearch", f"-Dexec.args={ARTICLES}"),
        java,
        hybrid_gateway_url,
        articles_index,
    )
    assert found == dict.fromkeys(("match on semantic", "neural query"), MEANT)


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
    commands = shown_commands("curl")
    assert len(commands) == 3
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        ours = command.replace("localhost:9280", urlsplit(hybrid_gateway_url).netloc)
        ours = ours.replace("localhost:9200", urlsplit(engine_url).netloc).replace("articles", articles_index)
        printed = run(
            [program("bash"), "-o", "pipefail", "-c", ours], environment={"ES_SBERT_URL": engine_url, "PATH": path}
        )
        assert orjson.loads(printed)["hits"]["hits"][0]["_source"]["title"] == MEANT, command
