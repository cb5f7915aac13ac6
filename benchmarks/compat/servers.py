"""Servers for the suites: engines with the settings that the suites require, and the gateway."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.compat.cluster import Cluster
from es_sbert.engines.local import start_engine, stop_engine
from es_sbert.engines.local.engine_home import EngineHome
from tests.conftest import build_of, free_port
from tests.gateway.running import serve

# What the README of the YAML suites asks for, and `path.repo`. Elasticsearch's builds here have no repositories by URL.
_SETTINGS = {"node.attr.testattr": "test"}
_OPENSEARCH_SETTINGS = {"repositories.url.allowed_urls": "http://snapshot.*"}
_STARTED_WITHIN = 400.0


@contextmanager
def own_cluster(engine: str) -> Iterator[Cluster]:
    """A server that is started here, and removed with its data at the end.

    Args:
        engine: `es9`, `es8` or `opensearch`; the build is that of the tests.
    """
    build, port = build_of(engine), free_port()
    layout = EngineHome.from_environment(os.environ, root=os.geteuid() == 0)
    settings = _OPENSEARCH_SETTINGS if engine == "opensearch" else {}
    settings = _SETTINGS | settings | {"path.repo": str(layout.work(build, port) / "tmp")}
    server = start_engine(build, port=port, timeout=_STARTED_WITHIN, settings=settings)
    try:
        with given_cluster(server.url, may_wipe=True) as cluster:
            yield cluster
    finally:
        stop_engine(server, purge=True)


@contextmanager
def given_cluster(url: str, *, may_wipe: bool) -> Iterator[Cluster]:
    """A server that runs already."""
    cluster = Cluster(url, may_wipe=may_wipe)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def gateway(upstream: str, *options: str) -> Iterator[str]:
    """The gateway in front of a server; gives its address."""
    with tempfile.TemporaryDirectory() as folder, serve(upstream, Path(folder), *options) as url:
        yield url
