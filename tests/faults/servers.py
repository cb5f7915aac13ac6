"""A real server that a fault may kill, stop, freeze and give another configuration."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from es_sbert.engines.local import start_engine, stop_engine
from tests.conftest import build_of, free_port, port_is_free
from tests.engine_builds import find_build, with_settings


class OwnServer:
    """One server on one port, with the same data however often it is started."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        self._name = name
        self._settings = settings
        self._port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        """Start it, or start it again."""
        self._server = start_engine(
            with_settings(find_build(build_of(self._name)), self._settings), port=self._port, heap="512m", timeout=400
        )

    def stop(self) -> None:
        """As an operator stops it."""
        stop_engine(self._server)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        os.killpg(self._server.pid, signal.SIGKILL)
        stop_engine(self._server)  # nothing is left to stop, but its exit status must be collected
        while not port_is_free(self._port):
            time.sleep(0.05)

    def freeze(self) -> None:
        """It keeps its connections, takes new ones, and answers none."""
        os.killpg(self._server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self._server.pid, signal.SIGCONT)

    def purge(self) -> None:
        """Stop it and remove its data."""
        stop_engine(self._server, purge=True)


@contextmanager
def own_server(name: str, settings: Mapping[str, str]) -> Iterator[OwnServer]:
    """A server that is stopped and removed at the end."""
    server = OwnServer(name, settings)
    try:
        yield server
    finally:
        server.purge()


def call(url: str, method: str, path: str, body: dict[str, Any] | None) -> Any:
    """The answer of an API that `Engine` does not have."""
    data = None if body is None else orjson.dumps(body)
    request = urllib.request.Request(f"{url}{path}", data, {"content-type": "application/json"}, method=method)
    # Without the proxies of the environment: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as response:
        return orjson.loads(response.read())
