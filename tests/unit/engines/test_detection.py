"""Detection against small web servers: what answers when the address is wrong. Real engines: tests/engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.address import parse_addresses
from es_sbert.engines.connect import connect
from es_sbert.engines.detection import check_nodes
from es_sbert.errors import EngineTooOld, EsSbertError, UnsupportedEngine, UsageError
from tests.raised import raises_as_recorded, record
from tests.unit.engines.web_server import opensearch_root, served


@contextmanager
def web_server(status: int, body: bytes, headers: dict[str, str]) -> Iterator[str]:
    with served(None) as server:
        server.status, server.body, server.headers = status, body, headers
        yield server.url


def error_of(status: int, body: Any, headers: dict[str, str] | None = None) -> EsSbertError:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    with web_server(status, raw, headers or {}) as url, raises_as_recorded(EsSbertError) as caught:
        connect(EngineSettings(url=url))
    return caught.value


ELASTIC = {"x-elastic-product": "Elasticsearch"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>Welcome to nginx</html>"),
        (200, b"[1, 2]"),
        (200, b'{"version": "2.1"}'),
        (200, b'{"name": "couchdb", "version": {"number": "3.3.1"}}'),
        (404, b"not found"),
        (302, b""),
    ],
)
def test_other_web_server_raises_unsupported_engine(status: int, body: bytes) -> None:
    error = error_of(status, body)
    assert isinstance(error, UnsupportedEngine)
    record(error)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"version": {"number": "8.18.4"}}, ELASTIC),
        ({"version": {"number": "7.10.2"}, "tagline": "You Know, for Search"}, {}),
        ({"version": {"number": "2.18.0", "distribution": "opensearch"}}, {}),
    ],
)
def test_unsupported_versions_are_rejected(body: Any, headers: dict[str, str]) -> None:
    error = error_of(200, body, headers)
    assert isinstance(error, EngineTooOld)
    record(error)


def test_only_old_versions_are_refused_before_a_gateway(silent_port: int) -> None:
    with (
        web_server(200, opensearch_root("one", "2.18.0"), {}) as old,
        web_server(200, opensearch_root("one", "2.19.0"), {}) as supported,
        web_server(200, b"<html>Welcome to nginx</html>", {}) as other,
        web_server(401, b"{}", {}) as secured,
    ):
        silent = f"http://127.0.0.1:{silent_port}"
        check_nodes(parse_addresses(EngineSettings(url=f"{supported},{other},{secured},{silent}")))
        for url in (old, f"{supported},{old}"):
            with pytest.raises(EngineTooOld):
                check_nodes(parse_addresses(EngineSettings(url=url)))


@pytest.mark.parametrize(
    ("other", "headers", "error"),
    [
        (opensearch_root("two"), {}, UsageError),
        (b'{"version":{"number":"9.2.0"}}', ELASTIC, UsageError),
        (b"<html>Welcome</html>", {}, UnsupportedEngine),
    ],
)
def test_addresses_that_are_not_of_one_cluster_are_rejected(
    other: bytes, headers: dict[str, str], error: type[EsSbertError]
) -> None:
    with (
        web_server(200, opensearch_root("one", "3.6.0"), {}) as first,
        web_server(200, other, headers) as second,
        raises_as_recorded(error),
    ):
        connect(EngineSettings(url=f"{first},{second}"))


def test_the_oldest_version_of_a_cluster_counts_and_a_node_without_a_cluster_is_no_other() -> None:
    with (
        web_server(200, opensearch_root("one", "3.7.0"), {}) as first,
        web_server(200, opensearch_root("_na_", "3.6.0"), {}) as second,
        closing(connect(EngineSettings(url=f"{first},{second}"))) as engine,
    ):
        assert engine.info.version == (3, 6, 0)


def test_a_node_that_is_not_ready_is_left_out() -> None:
    with (
        web_server(503, b"not ready", {}) as first,
        web_server(200, opensearch_root("one", "3.6.0"), {}) as second,
        closing(connect(EngineSettings(url=f"{first},{second}"))) as engine,
    ):
        assert engine.info.url == f"{first},{second}"
