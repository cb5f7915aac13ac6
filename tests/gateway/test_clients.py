"""Official clients search by meaning through the gateway, those of other languages as `examples/clients` says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch

from tests.gateway.articles import MEANT, QUERY
from tests.gateway.shown_commands import shown_commands
from tests.node import EXAMPLES, install_node_project
from tests.programs import program, run

CLIENTS = EXAMPLES / "clients"
_COLOUR = re.compile(r"\x1b\[\d*m")  # Maven resets colours even where it writes to no terminal
_ELASTICSEARCH = ("match on semantic", "semantic query", "knn with query_vector_builder")


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JavaScript clients, installed."""
    return install_node_project(CLIENTS / "javascript", tmp_path_factory.mktemp("clients") / "javascript")


@pytest.fixture(scope="module")
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


def _found(output: str) -> dict[str, str]:
    """Search → title of the first hit."""
    plain = _COLOUR.sub("", output)
    return dict(line.split(": ", 1) for line in plain.splitlines() if ": " in line)


@pytest.mark.parametrize(
    ("engine_url", "version"), [("es9", "9"), ("es9", "8"), ("es8", "8")], indirect=["engine_url"], scope="session"
)
def test_javascript_of_elasticsearch(
    version: str, javascript: Path, hybrid_gateway_url: str, articles_index: str
) -> None:
    output = run([program("node"), "elasticsearch.js", version], folder=javascript,
                 environment={"GATEWAY": hybrid_gateway_url, "INDEX": articles_index})  # fmt: skip
    assert _found(output) == dict.fromkeys(_ELASTICSEARCH, MEANT)


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
def test_javascript_of_opensearch(javascript: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    output = run([program("node"), "opensearch.js"], folder=javascript,
                 environment={"GATEWAY": hybrid_gateway_url, "INDEX": articles_index})  # fmt: skip
    assert _found(output) == dict.fromkeys(("match on semantic", "semantic query", "neural query"), MEANT)


@pytest.mark.parametrize(
    ("engine_url", "main", "searches"),
    [("es9", "SearchElasticsearch", _ELASTICSEARCH),
     ("opensearch", "SearchOpenSearch", ("match on semantic", "neural query"))],
    indirect=["engine_url"], ids=["es9", "opensearch"], scope="session",
)  # fmt: skip
def test_java(main: str, searches: tuple[str, ...], java: Path, hybrid_gateway_url: str, articles_index: str) -> None:
    output = run(_maven("exec:java", f"-Dexec.mainClass={main}"), folder=java,
                 environment={"GATEWAY": hybrid_gateway_url, "INDEX": articles_index})  # fmt: skip
    assert _found(output) == dict.fromkeys(searches, MEANT)


QUERIES: tuple[dict[str, Any], ...] = (
    {"match": {"semantic": QUERY}},
    {"semantic": {"field": "embedding", "query": QUERY}},
)


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True, scope="session")
def test_python_of_elasticsearch(hybrid_gateway_url: str, articles_index: str) -> None:
    with Elasticsearch(hybrid_gateway_url) as client:
        for query in QUERIES:
            found = client.search(index=articles_index, query=query)
            assert found["hits"]["hits"][0]["_source"]["title"] == MEANT


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True, scope="session")
def test_python_of_opensearch(hybrid_gateway_url: str, articles_index: str) -> None:
    with OpenSearch(hybrid_gateway_url) as client:
        for query in (*QUERIES, {"neural": {"embedding": {"query_text": QUERY, "k": 3}}}):
            found = client.search(index=articles_index, body={"query": query})
            assert found["hits"]["hits"][0]["_source"]["title"] == MEANT


def test_curl(engine_url: str, hybrid_gateway_url: str, articles_index: str) -> None:
    commands = shown_commands("curl")
    assert len(commands) == 3
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        ours = command.replace("localhost:9210", urlsplit(hybrid_gateway_url).netloc)
        ours = ours.replace("localhost:9200", urlsplit(engine_url).netloc).replace("articles", articles_index)
        printed = run([program("bash"), "-o", "pipefail", "-c", ours],
                      environment={"ES_SBERT_URL": engine_url, "PATH": path})  # fmt: skip
        assert orjson.loads(printed)["hits"]["hits"][0]["_source"]["title"] == MEANT, command
